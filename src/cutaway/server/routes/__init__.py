"""Endpoints that generate no text: vectors, masks, tokens, the server's state, the page."""
