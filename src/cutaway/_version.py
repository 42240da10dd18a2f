"""The release, once: the build and every room read it here."""

__version__ = "0.1.0"
