"""Saved prefixes: the keys and values of a text's whole KV blocks in a file.

Knows the format, its hashes and how it is written.
"""

from cutaway.files.prefix.header import PrefixHeader
from cutaway.files.prefix.reader import PrefixReader
from cutaway.files.prefix.writer import write_prefix

__all__ = ["PrefixHeader", "PrefixReader", "write_prefix"]
