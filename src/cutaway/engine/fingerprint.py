"""The fingerprint of a run: a hash of the logits' bits at every generated position.

It is made of the hashes of rows (sampling/row_hash.py). Two runs with equal fingerprints computed
the same logits to the last bit.
"""

from cutaway.sampling.row_hash import GOLDEN, MIX, row_hash

__all__ = ["START", "chain_hash", "row_hash"]

START = 0xC07A_0A1D


def chain_hash(so_far: int, row: int) -> int:
    """Append one row's hash to the hash of the rows before it."""
    mixed = (so_far ^ row) * int(MIX) % 2**64
    return (mixed ^ (mixed >> 29)) * int(GOLDEN) % 2**64
