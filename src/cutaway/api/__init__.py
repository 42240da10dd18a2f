"""The Python API: ``LLM``, ``AsyncLLM`` and the results of many requests."""
