"""Scores, rankings and decisions: how likely a model finds given answers."""
