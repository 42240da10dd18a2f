"""Weights on disk: a file's metadata, its tensor table and its numbers.

Knows bytes and formats. Refuses to know what a layer is. What most runs do without is imported
from its own module: `quantised`, `gguf_writer`, `safetensors`.
"""

from .decode import dequantize
from .file import ModelFile, TensorInfo
from .formats import FORMATS, FORMATS_BY_ID, QuantFormat
from .gguf import GGUFFile
from .split import open_gguf

__all__ = [
    "FORMATS",
    "FORMATS_BY_ID",
    "GGUFFile",
    "ModelFile",
    "QuantFormat",
    "TensorInfo",
    "dequantize",
    "open_gguf",
]
