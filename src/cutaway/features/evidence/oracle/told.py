"""What another engine told of its answers: token ids and log-probabilities, one answer a line.

Also whole rows of logits in a safetensors file, which compare it over the whole vocabulary.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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
    1e30  # below which a sum of them is finite; engines tell -1e9 and less of what they mask
)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer of another engine.

    prompt_token_ids  what it read, or what this model makes of the prompt
    token_ids         what it wrote
    logprobs          natural, of each of these, as it told them; None where it told none
    messages          of the conversation, where the prompt was one
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    messages: tuple[Mapping[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A line of the file that ``read_told`` reads."""
        ids = {"prompt_token_ids": [*self.prompt_token_ids], "token_ids": [*self.token_ids]}
        messages = {"messages": [*map(dict, self.messages)]} if self.messages else {}
        return {**messages, **ids, "logprobs": [*self.logprobs]}


def read_told(path: str | Path, llm: "BaseLLM") -> list[Told]:
    """The answers in a file, a JSON object a line; InputError names the line and the field.

    ``token_ids`` and ``logprobs`` must be there. The prompt is ``prompt_token_ids``, ``messages``
    or ``prompt`` (a text); where ids are missing, this model's tokenizer and template make them.
    """
    try:
        data = read_bounded(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path} has no answers: write one a line")
    return [_told(strict_json.parse(line, w), w, llm) for n, line in lines for w in _name(path, n)]


def _name(path: str | Path, number: int) -> Iterator[str]:
    yield f"{path}: line {number}"


_FIELDS = ("prompt_token_ids", "messages", "prompt", "token_ids", "logprobs")


def _told(line: Any, what: str, llm: "BaseLLM") -> Told:
    if not isinstance(line, dict):
        raise InputError(f"{what} must be an object with {', '.join(_FIELDS)}, not {shown(line)}")
    for name in ("token_ids", "logprobs"):
        if not isinstance(line.get(name), list) or not line[name]:
            raise InputError(f"{what}: {name} must be a list that is not empty")
    ids = checked_ids(f"{what}: token_ids", line["token_ids"], llm)
    logprobs = tuple(
        checked_logprob(f"{what}: logprobs[{i}]", p) for i, p in enumerate(line["logprobs"])
    )
    if len(ids) != len(logprobs):
        raise InputError(f"{what}: {len(ids)} token_ids and {len(logprobs)} logprobs: give as many")
    messages = line.get("messages") or ()
    return Told(_prompt(line, what, llm), ids, logprobs, tuple(messages))


def _prompt(line: dict[str, Any], what: str, llm: "BaseLLM") -> tuple[int, ...]:
    if (ids := line.get("prompt_token_ids")) is not None:
        return checked_ids(f"{what}: prompt_token_ids", ids, llm)
    if messages := line.get("messages"):
        try:
            return tuple(llm.chat_ids(messages))
        except InputError as error:
            raise InputError(f"{what}: {error}") from None
    if isinstance(text := line.get("prompt"), str):
        return tuple(llm.tokenize(text))
    raise InputError(f"{what} has no prompt: give prompt_token_ids, messages or prompt")


def checked_ids(name: str, ids: Any, llm: "BaseLLM") -> tuple[int, ...]:
    """Ids of this model's vocabulary; InputError otherwise."""
    found = tuple(check_ids(name, ids))
    size = llm.tokenizer.vocab_size
    if wrong := [i for i in found if not 0 <= i < size]:
        raise InputError(
            name, f": {wrong[0]} is no token of {llm.name}, which has {size}: use the same model"
        )
    return found


def checked_logprob(name: str, value: Any) -> float | None:
    """A log-probability as it was told, or None; InputError otherwise."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -_MOST_NATS <= value <= 1e-3:  # 0 as others round it
        raise InputError(
            name, f" must be a natural logarithm of at most 0, or null, not {shown(value)}"
        )
    return float(value)


def write_told(path: str | Path, answers: list[Told]) -> None:
    """Write answers as ``read_told`` reads them; InputError where the file cannot be written."""
    try:
        text = "".join(json.dumps(each.to_dict()) + "\n" for each in answers)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


# -- whole rows of logits --------------------------------------------------------------------------


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
