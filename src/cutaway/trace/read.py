"""Reading a trace, also one that was cut short.

Knows that the records must agree with each other; nothing is believed unchecked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from cutaway.engine.events import Pass, Step
from cutaway.errors import FormatError, InputError
from cutaway.trace.figures import bits, chain_label, percent, probability
from cutaway.trace.html import Chip, by_surprise
from cutaway.trace.inflate import whole_lines
from cutaway.trace.passes import pass_from_json, tokens_of
from cutaway.trace.record import End, Head, Token
from cutaway.trace.renames import VERSION, to_current
from cutaway.trace.steps import observed, step_from_json


@dataclass(frozen=True)
class Trace:
    """One run on record.

    tokens     what each id that occurs stands for
    end        None where the run was cut short, or is still going on
    sha256     of the file, by which a fork names its parent
    passes     of a canvas, what each did
    version    of the format of its file
    """

    head: Head
    tokens: Mapping[int, Token]
    steps: tuple[Step, ...]
    end: End | None
    sha256: str
    path: Path | None = None
    passes: tuple[Pass, ...] = ()
    version: int = VERSION

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Trace":
        """From a file, gzipped or not. InputError if it cannot be opened, FormatError if it is
        no trace; what follows the last whole line of an aborted run is left out."""
        file = Path(path)
        try:
            with file.open("rb") as stream:
                return cls._from(stream, file)
        except FormatError:
            raise
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{file}: the trace cannot be read: {why}") from error

    @classmethod
    def parse(cls, raw: bytes, path: Path | None = None) -> "Trace":
        """From the bytes of a file."""
        return cls._from(BytesIO(raw), path)

    @classmethod
    def _from(cls, file: BinaryIO, path: Path | None) -> "Trace":
        records, name = _Records(), str(path or "the trace")
        digest, number = sha256(), 1
        try:
            for line in whole_lines(file, digest.update):
                records.take(line)
                number += 1
        except ValueError as error:
            raise FormatError(f"{name}, line {number}: {error}") from error
        if records.head is None:
            raise FormatError(f"{name}: this is not a trace: it has no whole line")
        return cls(
            records.head, records.tokens, tuple(records.steps), records.end, digest.hexdigest(),
            path, tuple(records.passes), records.version,
        )  # fmt: skip

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """The tokens that were written."""
        return tuple(step.token_id for step in self.steps)

    @property
    def text(self) -> str:
        """The text as its reader saw it."""
        held_back = self.end.text if self.end else ""
        return "".join(step.text for step in self.steps) + held_back

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        return self._token(token_id).bytes

    def name_of(self, token_id: int) -> str:
        """How a token is shown to a person: its name where it is special, else its text; a byte
        that is no whole character as ``\\xe4``."""
        token = self._token(token_id)
        return token.name or token.bytes.decode("utf-8", "backslashreplace")

    def _repr_html_(self) -> str:
        """The text in a notebook: its tokens by surprise, without scripts."""
        return by_surprise(map(self._chip, self.steps), self._facts())

    def _facts(self) -> str:
        head = self.head
        ended = self.end.reason if self.end else "cut short, or still going on"
        by, count = f"{head.backend} {head.tier}", f"{len(self.steps)} steps"
        return " · ".join([f"seed {head.seed}", chain_label(head.chain), by, count, ended])

    def _chip(self, step: Step) -> Chip:
        title = (
            f"step {step.index}: {percent(probability(step.logprob))}, "
            f"{bits(step.logprob):.2f} bits, rank {observed(step).rank}, {step.source}"
        )
        return Chip(self.name_of(step.token_id), bits(step.logprob), title)

    def _token(self, token_id: int) -> Token:
        # Unknown are only those of a prompt whose run was cut short before its first step.
        return self.tokens.get(token_id) or Token(token_id, b"", f"[{token_id}]")


class _Records:
    """What was read so far. ``take`` raises ValueError where a line does not go with it."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.version = VERSION
        self.tokens: dict[int, Token] = {}
        self.steps: list[Step] = []
        self.passes: list[Pass] = []
        self.stands: dict[int, int | None] = {}  # in each cell, None where it is masked
        self.end: End | None = None

    def take(self, line: bytes) -> None:
        """The next line, without its end."""
        data = _object(line)
        kind = data.get("kind")
        if self.head is None:
            _require(kind == "head", "this is not a trace: its first line is no head")
            self.version = data.get("version", VERSION)
        data = to_current(data, self.version)
        if self.head is None:
            self._take_head(Head.from_json(data))
            return
        _require(self.end is None, "something follows the end; one file holds one run")
        _require(kind != "head", "there is a second head; one file holds one run")
        match kind:
            case "tok":
                self._take_token(Token.from_json(data), self.head)
            case "step":
                self._take_step(step_from_json(data, self.head), self.head)
            case "pass":
                self._take_pass(pass_from_json(data), self.head)
            case "end":
                self.end = End.from_json(data)
            case _:
                raise ValueError(f"there is no record of kind {kind!r:.40}")

    def _take_head(self, head: Head) -> None:
        for token_id in head.token_ids:
            _require(token_id < head.vocab_size, f"token {token_id} is outside the vocabulary")
        self.head = head

    def _take_token(self, token: Token, head: Head) -> None:
        _require(token.id < head.vocab_size, f"token {token.id} is outside the vocabulary")
        _require(token.id not in self.tokens, f"token {token.id} has a second line")
        self.tokens[token.id] = token

    def _take_step(self, step: Step, head: Head) -> None:
        seen, here = observed(step), len(self.steps)
        found = {c.id for c in seen.candidates}
        _require(step.index == here, f"index is {step.index}, and the next step is {here}")
        position = len(head.prompt_token_ids) + here
        _require(step.position == position, f"position is {step.position}, not {position}")
        _require(step.token_id in found, f"the chosen token {step.token_id} is no candidate")
        _require(found >= {*head.tracked_ids}, "a tracked token is no candidate")
        for candidate in seen.candidates:
            by = candidate.removed_by
            _require(by is None or by < len(seen.stages), f"removed_by: there is no stage {by}")
        removed = {i for report in seen.stages for i in report.top_removed}
        drawn = (
            {step.sampled_id}
            if step.unconstrained_id is None
            else {step.sampled_id, step.unconstrained_id}
        )
        self._require_tokens(found | removed | drawn)
        if not self.steps:
            self._require_tokens(head.token_ids)
        if step.pass_index is not None:
            _require(
                step.pass_index < len(self.passes), f"there is no pass {step.pass_index} before it"
            )
            stands = self.stands.get(step.position)
            _require(step.token_id == stands, f"passes left {stands} at {step.position}")
        self.steps.append(step)

    def _take_pass(self, made: Pass, head: Head) -> None:
        _require(head.decoder is not None, "a pass is of a canvas, and the head has no decoder")
        here, positions = len(self.passes), [cell.position for cell in made.cells]
        _require(made.index == here, f"index is {made.index}, and the next pass is {here}")
        first = len(head.prompt_token_ids)
        _require(made.block[0] >= first, "block begins within the prompt")
        _require(made.block[1] <= first + head.cells, "block ends behind the canvas")
        in_order = sorted({*positions}) == positions
        _require(in_order, "cells must be in the order of their positions")
        for position in (*positions, *made.masked_again):
            _require(position in range(*made.block), f"cell {position} is not in the block")
        self._require_tokens(tokens_of(made))
        for cell in made.cells:
            stands, again = self.stands.get(cell.position), cell.position in made.masked_again
            _require(cell.was == stands, f"was: at {cell.position} passes left {stands}")
            may_be = (None,) if again else (cell.was, cell.token_id)
            _require(cell.now in may_be, f"now: {cell.now} cannot come to stand at {cell.position}")
            self.stands[cell.position] = cell.now
        self.stands.update(dict.fromkeys(made.masked_again))
        self.passes.append(made)

    def _require_tokens(self, ids: set[int]) -> None:
        for token_id in ids - self.tokens.keys():
            raise ValueError(f"token {token_id} has no line of its own before this one")


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("this is no line of JSON") from None
    _require(isinstance(data, dict), "this is no JSON object")
    found: dict[str, Any] = data
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
