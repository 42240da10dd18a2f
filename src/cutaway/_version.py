"""The numbers of the release and of the arithmetic, which the build and all modules read here."""

__version__ = "0.2.0"

ARITHMETIC = 1
"""Two releases with the same number give equal bits, and equal texts, for equal requests.

Raise it when a change alters a bit of a logit or of a hash, or lets another token be drawn from the
same logits: in kernels, graphs, stages or luck. tests/compute/native/test_bits.py fails then.
"""
