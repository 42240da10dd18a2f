"""What the forms of OpenAI, Anthropic and Ollama share: fields of requests, parts of answers."""
