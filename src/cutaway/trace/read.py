"""Read a trace, complete or cut short, and check that its records agree.

Knows files, gzipped or not, and the order of records.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from cutaway.base.arithmetic import plainly
from cutaway.base.counting import count_from_1
from cutaway.engine.events import Pass, Step
from cutaway.errors import FormatError, InputError
from cutaway.trace import steps
from cutaway.trace.check import VERSION, to_current
from cutaway.trace.figures import bits, chain_label, percent, probability
from cutaway.trace.html import Chip, show_surprise
from cutaway.trace.record import End, Head, Token
from cutaway.trace.steps import observation_of

# -- lines of a file ---------------------------------------------------------------------------
# The length of lines and files is limited, since 8 MB of gzip can expand to 8 GB of text.

MIB = 1 << 20

MOST_BYTES = 1024 * MIB
"""The limit of a file's text in bytes: 128k steps of 20 candidates are 300 MB."""

LONGEST_LINE = 16 * MIB
"""The limit of a line in bytes: a head with a bias for 262k tokens has 8 MB, a step of 1000
candidates 100 kB."""

PIECE = MIB
"""Bytes read at a time, and inflated at a time."""

_GZIP = b"\x1f\x8b"


def whole_lines(file: BinaryIO, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """Yield each complete line without its line feed, and call ``see`` with all bytes of the file.

    A gzipped file may lack its end, as after an aborted run. Raises ValueError, with a sentence,
    if the stream is damaged or too long.
    """
    total, rest = 0, b""
    for piece in _text(file, see):
        total += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > LONGEST_LINE:
            raise ValueError(f"it is longer than {LONGEST_LINE // MIB} MiB: this is no trace")
        if total > MOST_BYTES:
            raise ValueError(f"the file holds more than {MOST_BYTES // MIB} MiB of text")


def _text(file: BinaryIO, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """Return the file's text, inflated if it is gzipped, in pieces of any length."""
    start = file.read(len(_GZIP))
    pieces = _seen(chain([start], iter(partial(file.read, PIECE), b"")), see)
    return _inflate(pieces) if start == _GZIP else pieces


def _seen(pieces: Iterable[bytes], see: Callable[[bytes], object]) -> Iterator[bytes]:
    for piece in pieces:
        see(piece)
        yield piece


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    try:
        for piece in pieces:
            data = stream.decompress(piece, PIECE)
            while data or stream.unconsumed_tail:
                yield data
                data = stream.decompress(stream.unconsumed_tail, PIECE)
            if stream.unused_data:
                raise ValueError("the gzip stream is damaged: something follows its end")
    except zlib.error as error:
        raise ValueError(f"the gzip stream is damaged: {error}") from None


# -- the trace ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """A recorded run.

    tokens     id -> token, for every token in the records
    end        None if the run was cut short or has not ended yet
    sha256     hash of the file, in hex, by which a fork names its parent
    passes     passes over a canvas
    version    version of the file's format
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
        """Read a file, gzipped or not, and ignore an incomplete last line.

        InputError if the file cannot be read, FormatError if it is not a trace.
        """
        file = Path(path)
        try:
            with file.open("rb") as stream:
                return cls._read_from(stream, file)
        except FormatError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{file}: the trace cannot be read: {reason}") from error

    @classmethod
    def parse(cls, raw: bytes, path: Path | None = None) -> "Trace":
        """Read a trace from the bytes of its file."""
        return cls._read_from(BytesIO(raw), path)

    @classmethod
    @plainly
    def _read_from(cls, file: BinaryIO, path: Path | None) -> "Trace":
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
        """The ids of the generated tokens."""
        return tuple(step.token_id for step in self.steps)

    @property
    def text(self) -> str:
        """The generated text, as the engine streamed it."""
        held_back = self.end.text if self.end else ""
        return "".join(step.text for step in self.steps) + held_back

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return self._token(token_id).bytes

    def name_of(self, token_id: int) -> str:
        """Return a token as people read it: its name if it is special, else its text.

        Bytes of an incomplete character are escaped, as in ``\\xe4``.
        """
        token = self._token(token_id)
        return token.name or token.bytes.decode("utf-8", "backslashreplace")

    def _repr_html_(self) -> str:
        """Return HTML of the text for a notebook: tokens coloured by surprise, no scripts."""
        head = self.head
        ending = self.end.reason if self.end else "cut short, or still going on"
        by, count = f"{head.backend} {head.tier}", f"{len(self.steps)} steps"
        facts = " · ".join([f"seed {head.seed}", chain_label(head.chain), by, count, ending])
        return show_surprise(map(self._chip, self.steps), facts)

    def _chip(self, step: Step) -> Chip:
        title = (
            f"step {count_from_1(step.index)}: {percent(probability(step.logprob))}, "
            f"{bits(step.logprob):.2f} bits, rank {observation_of(step).rank}, {step.source}"
        )
        return Chip(self.name_of(step.token_id), bits(step.logprob), title)

    def _token(self, token_id: int) -> Token:
        # Tokens of the prompt are unknown if the run was cut short before its first step.
        return self.tokens.get(token_id) or Token(token_id, b"", f"[{token_id}]")


class _Records:
    """The records so far. ``take`` raises ValueError if the next line contradicts them."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.version = VERSION
        self.tokens: dict[int, Token] = {}
        self.steps: list[Step] = []
        self.passes: list[Pass] = []
        self.canvas: dict[int, int | None] = {}  # position -> token id; None: masked
        self.finished: tuple[int, int] | None = None  # the block whose cells got likeliest tokens
        self.end: End | None = None

    def take(self, line: bytes) -> None:
        """Take the next line, without its line feed."""
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
                self._take_step(steps.step_from_json(data, self.head), self.head)
            case "pass":
                self._take_pass(steps.pass_from_json(data), self.head)
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
        seen, here = observation_of(step), len(self.steps)
        candidate_ids = {c.id for c in seen.candidates}
        _require(step.index == here, f"index is {step.index}, not {here}")
        position = len(head.prompt_token_ids) + here
        _require(step.position == position, f"position is {step.position}, not {position}")
        _require(
            step.token_id in candidate_ids, f"the chosen token {step.token_id} is no candidate"
        )
        _require(candidate_ids >= {*head.tracked_ids}, "a tracked token is no candidate")
        for candidate in seen.candidates:
            by = candidate.removed_by
            _require(by is None or by < len(seen.stages), f"removed_by: there is no stage {by}")
        self._require_tokens(steps.tokens_of(step))
        if not self.steps:
            self._require_tokens(head.token_ids)
        if step.pass_index is not None:
            _require(
                step.pass_index < len(self.passes),
                f"pass_index is {step.pass_index}, and no such pass is before it",
            )
            left = self.canvas.get(step.position)
            _require(step.token_id == left, f"passes left {left} at {step.position}")
        self.steps.append(step)

    def _take_pass(self, canvas_pass: Pass, head: Head) -> None:
        _require(head.decoder is not None, "a pass is of a canvas, and the head has no decoder")
        here, positions = len(self.passes), [cell.position for cell in canvas_pass.cells]
        _require(canvas_pass.index == here, f"index is {canvas_pass.index}, not {here}")
        first = len(head.prompt_token_ids)
        _require(canvas_pass.block[0] >= first, "block begins within the prompt")
        _require(canvas_pass.block[1] <= first + head.cells, "block ends behind the canvas")
        _require(
            canvas_pass.block != self.finished,
            "now: only a block's last pass leaves a token that was not drawn",
        )
        in_order = sorted({*positions}) == positions
        _require(in_order, "cells must be in the order of their positions")
        for position in (*positions, *canvas_pass.masked_again):
            _require(
                position in range(*canvas_pass.block), f"position {position} is not in the block"
            )
        self._require_tokens(steps.tokens_of_pass(canvas_pass))
        for cell in canvas_pass.cells:
            left, again = self.canvas.get(cell.position), cell.position in canvas_pass.masked_again
            _require(cell.was == left, f"was: at {cell.position} passes left {left}")
            may_be = (None,) if again else (cell.was, cell.token_id)
            if cell.now not in may_be:
                may_end = head.chooses_anew and cell.now is not None  # with its likeliest token
                _require(may_end, f"now: it cannot leave {cell.now} at {cell.position}")
                self.finished = canvas_pass.block
            self.canvas[cell.position] = cell.now
        self.canvas.update(dict.fromkeys(canvas_pass.masked_again))
        self.passes.append(canvas_pass)

    def _require_tokens(self, ids: set[int]) -> None:
        for token_id in ids - self.tokens.keys():
            raise ValueError(f"token {token_id} has no line of its own before this one")


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("this is no line of JSON") from None
    _require(isinstance(data, dict), "this is no JSON object")
    fields: dict[str, Any] = data
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
