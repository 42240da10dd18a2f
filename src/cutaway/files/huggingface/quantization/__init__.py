"""Quantised matrices of folders: AWQ, GPTQ, AutoRound, compressed-tensors, FP8, bitsandbytes and
gpt-oss' MXFP4.

Knows how each method packs a matrix into several tensors, and makes of them one in a format of
`weights.formats`, exactly: codes, the codes that stand for 0, and scales are the file's own
numbers.
"""

from cutaway.files.huggingface.quantization.method import OLD_CONFIGS, quantization_of
from cutaway.files.huggingface.quantization.shards import QuantisedShards

__all__ = ["OLD_CONFIGS", "QuantisedShards", "quantization_of"]
