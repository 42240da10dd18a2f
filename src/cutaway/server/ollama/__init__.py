"""Ollama's forms: what a request may say, and how an answer looks, whole and line by line.

Knows its words for what every endpoint does in the same way. Refuses to know connections.
"""
