"""The HTTP face: an OpenAI-compatible server on the asynchronous engine.

Knows HTTP, JSON and server-sent events. Refuses to know how tokens are computed.
"""
