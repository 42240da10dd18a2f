"""Revise: a draft whose most surprising tokens are tried again."""
