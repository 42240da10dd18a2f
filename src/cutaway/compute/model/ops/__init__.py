"""The ops of a graph: each with its fields, the check of its shapes, and its definition.

A module's last class has the methods that add its ops to a graph: ``Graph`` inherits all of them.
Knows no backend.
"""
