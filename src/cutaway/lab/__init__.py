"""What needs a model and a run: again, looked into, practised by hand, measured.

Refuses to know terminals and HTTP.
"""
