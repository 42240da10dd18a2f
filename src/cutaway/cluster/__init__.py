"""Many replicas of one model behind one door.

Knows which replica writes what, and who goes on where one is lost. Refuses to know how a token is
made. Only ``serving`` and ``bulk`` import Ray, so that all else is used and tested without it.
"""
