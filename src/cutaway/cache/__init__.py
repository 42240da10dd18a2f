"""KV blocks as integers: which are free, who holds them, and which text can be found again.

Refuses to know tensors: what a block holds, and where, is the backend's.
"""

from cutaway.cache.blocks import BlockManager

__all__ = ["BlockManager"]
