"""From a graph to the calls that make a plan: what is fused, and which buffer each tensor has.

Imports no backend. On the CPU and in a page native/calls.cpp makes a plan of the calls.
"""
