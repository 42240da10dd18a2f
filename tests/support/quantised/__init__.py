"""Matrices quantised by each method, and what they are by its definition."""
