"""KV blocks as integers: which ids are free.

Refuses to know tensors: what a block holds, and where, is the backend's.
"""

from cutaway.cache.pool import BlockPool

__all__ = ["BlockPool"]
