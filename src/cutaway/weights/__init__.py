"""Weights on disk: a file's metadata, its tensor table and its numbers.

Knows bytes and formats. Refuses to know what a layer is.
"""

from .decode import dequantize
from .file import ModelFile, TensorInfo
from .formats import FORMATS, FORMATS_BY_ID, QuantFormat
from .gguf import GGUFFile
from .gguf_writer import write_gguf
from .quantised import QuantisedFile, refuse_quantised
from .safetensors import SafetensorsFile

__all__ = [
    "FORMATS",
    "FORMATS_BY_ID",
    "GGUFFile",
    "ModelFile",
    "QuantFormat",
    "QuantisedFile",
    "SafetensorsFile",
    "TensorInfo",
    "dequantize",
    "refuse_quantised",
    "write_gguf",
]
