"""The release and the arithmetic, once: the build and every room read them here."""

__version__ = "0.2.0"

ARITHMETIC = 1
"""What equal numbers of two releases promise: equal bits, and equal texts, of equal requests.

Raise it when a change makes one bit of a logit or of a hash of them another, or lets another token
be drawn from the same logits: kernels, graphs, stages, luck.
tests/compute/native/test_bits.py says so where that is noticed.
"""
