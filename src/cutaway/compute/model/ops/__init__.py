"""The units: each op with its fields, the check of its shapes, its definition, and what it says.

A module's last class has the methods by which a graph collects its ops: ``Graph`` is all of them.
Knows no backend.
"""
