"""The Python API: a request's keywords, ``LLM``, ``AsyncLLM`` and what they return.

Refuses to know HTTP and terminals.
"""
