"""Ollama's API: the fields of its requests, and its answers, whole and line by line."""
