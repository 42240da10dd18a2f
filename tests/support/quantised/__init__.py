"""Matrices quantised by each method, and their numbers by the method's definition."""
