"""The least that llama-cpp-python needs to continue a text.

python llama_cold.py FILE THREADS TEXT TOKENS
"""

import sys
from importlib import import_module
from typing import Any


def main(path: str, threads: str, text: str, tokens: str) -> None:
    lib: Any = import_module("llama_cpp")
    count = int(threads)
    llm = lib.Llama(path, n_threads=count, n_threads_batch=count, flash_attn=True, verbose=False)
    for part in llm(text, max_tokens=int(tokens), temperature=0, stream=True):
        print(part["choices"][0]["text"], end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
