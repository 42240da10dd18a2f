"""Helpers for every part of the package: checks, files, progress, the compiled core."""
