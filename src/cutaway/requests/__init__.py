"""Requests: from keywords to a ``Request``, and from its events to a ``Completion``."""
