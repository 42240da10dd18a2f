"""Scores, rankings and decisions: how likely a model finds what might be answered.

Refuses to know how log-probabilities and vectors are computed.
"""
