"""Requantise a file to Q4_0 with llama.cpp: python llama_quantize.py FROM TO."""

import ctypes
import sys
from importlib import import_module
from typing import Any


def main(source: str, target: str) -> None:
    lib: Any = import_module("llama_cpp")
    lib.llama_backend_init()
    params = lib.llama_model_quantize_default_params()
    params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    params.output_tensor_type = params.token_embedding_type = lib.GGML_TYPE_Q8_0
    code = lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code:
        sys.exit(f"llama_model_quantize says {code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
