"""Whole rows of logits in a safetensors file: what compares an engine over the whole vocabulary."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.features.evidence.oracle.told import Told
from cutaway.files.weights.safetensors import write_safetensors


def write_rows(path: str | Path, llm: LLM, answers: Sequence[Told]) -> None:
    """For each answer ``answers.N.logits``, float32 (tokens, vocab): what each was drawn from.

    Before penalties and temperature; ``answers.N.token_ids`` and ``answers.N.prompt_token_ids`` are
    beside it. All rows are in memory at once. CutawayError where the file cannot be written.
    """
    tensors: dict[str, NDArray[Any]] = {}
    for n, told in enumerate(answers):
        ids = [*told.prompt_token_ids, *told.token_ids[:-1]]
        name = f"answers.{n}"
        tensors[f"{name}.prompt_token_ids"] = np.array(told.prompt_token_ids, np.int64)
        tensors[f"{name}.token_ids"] = np.array(told.token_ids, np.int64)
        tensors[f"{name}.logits"] = llm.logits(ids, len(told.prompt_token_ids) - 1)
    write_safetensors(
        Path(path), tensors, {"model": llm.name, "weights": llm.model.identity.weights}
    )
