"""HTTP itself: who may ask, limits of bodies and time, refusals, the process, the log, the metrics.

Refuses to know the forms in which clients ask, and how tokens are made.
"""
