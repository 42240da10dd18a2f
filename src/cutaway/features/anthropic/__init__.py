"""Anthropic's API: the fields of its requests, and its answers, whole and streamed."""
