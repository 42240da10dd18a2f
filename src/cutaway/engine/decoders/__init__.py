"""Decoders: how a sequence's rows and draws become its text, one for each kind of request."""
