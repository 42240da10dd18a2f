"""What llama.cpp predicts and writes: one process, one file, texts of token ids.

    python llama_logits.py MODEL OUT.npy < request.json

The request is {"text": [ids], "prompt": [ids], "new": n}. OUT gets the logits of every position
of the text, float32 (n, vocab); standard output gets the ids that are written greedily after the
prompt.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

import numpy as np


def logits(model: Any, ids: list[int]) -> Any:
    """(n, vocab)."""
    model.reset()
    model.eval(ids)
    return np.array(model.scores[: len(ids)], np.float32)


def greedy(model: Any, ids: list[int], new: int) -> list[int]:
    """The next tokens, without sampling."""
    model.reset()
    written: list[int] = []
    for _ in range(new):
        model.eval(ids if not written else written[-1:])
        written.append(int(np.argmax(model.scores[model.n_tokens - 1])))
    return written


def main() -> None:
    path, out = sys.argv[1:]
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is not an answer
    size = max(len(request["text"]), len(request["prompt"]) + request["new"]) + 8
    model = import_module("llama_cpp").Llama(
        path, n_ctx=size, n_batch=size, logits_all=True, verbose=False
    )
    np.save(out, logits(model, request["text"]))
    print(json.dumps(greedy(model, request["prompt"], request["new"])), file=answers)


if __name__ == "__main__":
    main()
