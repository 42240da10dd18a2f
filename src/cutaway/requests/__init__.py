"""From keywords to a ``Request``, and from its events to a ``Completion``.

Refuses to know HTTP and terminals.
"""
