"""Revise: try to replace the most surprising tokens of a draft."""
