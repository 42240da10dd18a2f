"""The ops of a graph: each op with its fields, the check of its shapes, and its definition.

A module's last class has the methods that add the module's ops to a graph; ``Graph`` inherits all.
Knows no backend.
"""
