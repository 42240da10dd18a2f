"""Endpoints that do not generate text: embeddings, masks, tokens, the server's state, the page."""
