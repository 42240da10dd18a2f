"""Answers of another engine: token ids and log-probabilities, one answer on each line.

Also writes whole rows of logits into a safetensors file, to compare over the whole vocabulary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base import strict_json
from cutaway.base.checks import check_ids, shown
from cutaway.base.whole_files import read_bounded
from cutaway.errors import InputError
from cutaway.files.weights.safetensors import write_safetensors

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM


_MOST_NATS = (
    1e30  # sums of smaller ones are finite; engines give -1e9 or less for tokens that they mask
)


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An answer of another engine.

    prompt_token_ids  the ids that the engine read, or this model's encoding of the prompt
    token_ids         the ids that the engine wrote
    logprobs          the engine's natural log-probability of each written token; None where the
                      engine gave none
    messages          the messages, where the prompt was a conversation
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    messages: tuple[Mapping[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a line of the file that ``read_answers`` reads."""
        ids = {"prompt_token_ids": [*self.prompt_token_ids], "token_ids": [*self.token_ids]}
        messages = {"messages": [*map(dict, self.messages)]} if self.messages else {}
        return {**messages, **ids, "logprobs": [*self.logprobs]}


def read_answers(path: str | Path, llm: "BaseLLM") -> list[EngineAnswer]:
    """Read a file of answers, one JSON object on a line; InputError names the line and the field.

    ``token_ids`` and ``logprobs`` must be there. The prompt is ``prompt_token_ids``, ``messages``
    or ``prompt`` (a text); where ids are missing, this model's tokenizer and template make them.
    """
    try:
        data = read_bounded(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    lines = [
        (f"{path}: line {n}", line) for n, line in enumerate(data.splitlines(), 1) if line.strip()
    ]
    if not lines:
        raise InputError(f"{path} has no answers: write one a line")
    return [_read_answer(strict_json.parse(line, label), label, llm) for label, line in lines]


_FIELDS = ("prompt_token_ids", "messages", "prompt", "token_ids", "logprobs")


def _read_answer(line: Any, label: str, llm: "BaseLLM") -> EngineAnswer:
    if not isinstance(line, dict):
        raise InputError(f"{label} must be an object with {', '.join(_FIELDS)}, not {shown(line)}")
    for name in ("token_ids", "logprobs"):
        if not isinstance(line.get(name), list) or not line[name]:
            raise InputError(f"{label}: {name} must be a list that is not empty")
    ids = checked_ids(f"{label}: token_ids", line["token_ids"], llm)
    logprobs = tuple(
        checked_logprob(f"{label}: logprobs[{i}]", p) for i, p in enumerate(line["logprobs"])
    )
    if len(ids) != len(logprobs):
        raise InputError(
            f"{label}: {len(ids)} token_ids and {len(logprobs)} logprobs: give as many"
        )
    messages = line.get("messages") or ()
    return EngineAnswer(_prompt(line, label, llm), ids, logprobs, tuple(messages))


def _prompt(line: dict[str, Any], label: str, llm: "BaseLLM") -> tuple[int, ...]:
    if (ids := line.get("prompt_token_ids")) is not None:
        return checked_ids(f"{label}: prompt_token_ids", ids, llm)
    if messages := line.get("messages"):
        try:
            return tuple(llm.chat_ids(messages))
        except InputError as error:
            raise InputError(f"{label}: {error}") from None
    if isinstance(text := line.get("prompt"), str):
        return tuple(llm.tokenize(text))
    raise InputError(f"{label} has no prompt: give prompt_token_ids, messages or prompt")


def checked_ids(name: str, ids: Any, llm: "BaseLLM") -> tuple[int, ...]:
    """Return the ids if they are in this model's vocabulary; InputError otherwise."""
    token_ids = tuple(check_ids(name, ids))
    size = llm.tokenizer.vocab_size
    if wrong := [i for i in token_ids if not 0 <= i < size]:
        raise InputError(
            name, f": {wrong[0]} is no token of {llm.name}, which has {size}: use the same model"
        )
    return token_ids


def checked_logprob(name: str, value: Any) -> float | None:
    """Return a log-probability as it was given, or None; InputError where it is neither."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -_MOST_NATS <= value <= 1e-3:  # others may round 0 up
        raise InputError(
            name, f" must be a natural logarithm of at most 0, or null, not {shown(value)}"
        )
    return float(value)


def write_answers(path: str | Path, answers: list[EngineAnswer]) -> None:
    """Write answers as ``read_answers`` reads them; InputError where the file cannot be written."""
    try:
        text = "".join(json.dumps(answer.to_dict()) + "\n" for answer in answers)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


# -- whole rows of logits --------------------------------------------------------------------------


def write_rows(path: str | Path, llm: LLM, answers: Sequence[EngineAnswer]) -> None:
    """Write ``answers.N.logits`` of each answer, float32 (tokens, vocab): a row for each token.

    The rows are the model's logits before penalties and temperature. ``answers.N.token_ids`` and
    ``answers.N.prompt_token_ids`` are in the file, too. All rows are in memory at once.
    CutawayError where the file cannot be written.
    """
    tensors: dict[str, NDArray[Any]] = {}
    for n, answer in enumerate(answers):
        ids = [*answer.prompt_token_ids, *answer.token_ids[:-1]]
        name = f"answers.{n}"
        tensors[f"{name}.prompt_token_ids"] = np.array(answer.prompt_token_ids, np.int64)
        tensors[f"{name}.token_ids"] = np.array(answer.token_ids, np.int64)
        before = len(answer.prompt_token_ids)
        tensors[f"{name}.logits"] = llm.logits(ids, before - 1, prompt_tokens=before)
    write_safetensors(
        Path(path), tensors, {"model": llm.name, "weights": llm.model.identity.weights}
    )
