"""Quantise a file with llama.cpp: python llama_quantize.py FROM TO FORMAT [HEAD].

FORMAT as its own tool names it, in small letters (q4_k_m). HEAD: the format of the embedding and
the output matrix, where it is not to be the one that llama.cpp chooses.
"""

import ctypes
import sys
from importlib import import_module
from typing import Any


def main(source: str, target: str, format: str, head: str = "") -> None:
    lib: Any = import_module("llama_cpp")
    lib.llama_backend_init()
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{format.upper()}")
    params.allow_requantize = True
    if head:
        kind = getattr(lib, f"GGML_TYPE_{head.upper()}")
        params.output_tensor_type = params.token_embedding_type = kind
    code = lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code:
        sys.exit(f"llama_model_quantize says {code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
