"""OpenAI's forms: what a request may say, and how an answer looks, whole and streamed.

Refuses to know connections.
"""
