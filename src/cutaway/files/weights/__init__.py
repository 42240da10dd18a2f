"""Weights on disk: a file's metadata, its tensor table and its numbers.

Knows bytes and formats. Modules that most runs do not need are imported by themselves: `quantised`,
`gguf_writer`, `safetensors`.
"""

from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo, pieces
from cutaway.files.weights.formats import FORMATS, FORMATS_BY_ID, QuantFormat
from cutaway.files.weights.gguf import GGUFFile, open_gguf
