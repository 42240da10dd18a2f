"""Speculation: draft tokens, which a decoder takes or refuses, as if each had been drawn alone."""
