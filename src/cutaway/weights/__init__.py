"""Weights on disk: a GGUF file's metadata, its tensor table and its numbers.

Knows bytes and formats. Refuses to know what a layer is.
"""

from .decode import dequantize
from .formats import FORMATS, FORMATS_BY_ID, QuantFormat
from .gguf import GGUFFile, TensorInfo

__all__ = ["FORMATS", "FORMATS_BY_ID", "GGUFFile", "QuantFormat", "TensorInfo", "dequantize"]
