"""The HTTP server: the APIs of OpenAI, Anthropic and Ollama on the asynchronous engine."""
