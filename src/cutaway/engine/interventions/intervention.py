"""One intervention: frozen data that can be compared, pickled and written into a trace.

``bind`` checks that a model has the place, and its width. As a line of text an intervention is
"L25.H2 x 0", "L9.mlp x 0.5 at 3-7 from 2" or "knock_out 3-7". Positions are given as people write
them ("3-7, 9", a number, several numbers), and stored as spans.

Control vectors in files are interventions, too: each has a vector for some of the layers. The
format is that of repeng and llama.cpp: a GGUF file of the architecture "controlvector", whose
tensor ``direction.N`` is added to the residual stream after layer N.
"""

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_choice, check_int, shown
from cutaway.errors import InputError, Name
from cutaway.files.weights import GGUFFile

# -- positions -------------------------------------------------------------------------------------

Spans = tuple[tuple[int, int], ...]
"""(first, last) of each run of neighbours, in order; between two runs there is a gap."""
LAST = 2**31 - 1
"""The largest position."""

_PART = re.compile(r"\s*([0-9]{1,10})\s*(?:-\s*([0-9]{1,10})\s*)?", re.ASCII)


def check_spans(name: str, value: Any) -> Spans:
    """Return the spans that "3-7, 9" or numbers stand for; InputError if there is no position."""
    if isinstance(value, str):
        return _join(_parse_span(name, value, part) for part in value.split(","))
    numbers = value if isinstance(value, Iterable) else [value]
    spans = _join(_span(name, number) for number in numbers)
    if not spans:
        raise InputError(name, ": name at least one, such as 3-7")
    return spans


def spans_text(spans: Spans) -> str:
    """Return spans as text, which ``check_spans`` reads."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def from_position(spans: Spans, start: int) -> Spans:
    """Return the part of the spans from a position on."""
    return tuple((max(first, start), last) for first, last in spans if last >= start)


def _span(name: str, value: Any) -> tuple[int, int]:
    """Return the span of a number, or of (first, last)."""
    ends = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    first, last = (check_int(name, end, 0, LAST) for end in ends)
    if last < first:
        raise InputError(name, f": {first}-{last} ends before it begins")
    return first, last


def _parse_span(name: str, whole: str, part: str) -> tuple[int, int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise InputError(name, f" are numbers and spans such as 3-7,9, not {shown(whole)}")
    first = int(match[1])
    return _span(name, (first, int(match[2] or first)))


def _join(spans: Iterable[tuple[int, int]]) -> Spans:
    runs: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = runs[-1][0], max(runs[-1][1], last)
        else:
            runs.append((first, last))
    return tuple(runs)


# -- the intervention ------------------------------------------------------------------------------

KINDS = ("scale", "add", "patch", "knock_out")
_PARTS = "attn|mlp|shared|conv|delta_net|mamba2|selective_scan|wkv7|embedding"
_NUMBER = "(?:0|[1-9][0-9]{0,4})"
_PLACE = re.compile(rf"L({_NUMBER})(?:\.({_PARTS}|[HV]{_NUMBER}|S(?:{_NUMBER})?))?", re.ASCII)

_EARLIER = re.compile(r"^(\s*)blind\b")


@runtime_checkable
class Looked(Protocol):
    """Where a patch may take its values from: ``cutaway.features.inside.Look``."""

    def part(self, place: str, /) -> NDArray[np.float32]:
        """The activations at a place."""
        ...

    @property
    def position(self) -> int:
        """The position of the row."""
        ...


@dataclass(frozen=True, slots=True)
class Intervention:
    """A change of the activations at one place, or positions that are not attended to.

    where      "L9", the stream after layer 9; "L9.attn" or "L9.mlp", what these add to it
               ("L9.shared" of a mixture: what the MLP beside its experts adds; "L9.embedding",
               what a layer of Gemma 4 adds of an embedding of its own; "L9.conv",
               "L9.delta_net", "L9.mamba2", "L9.wkv7" and "L9.selective_scan" of layers with a
               recurrent state); "L9.H3", the output of head 3 before the output matrix; "L9.V1",
               the values of key-value head 1, or what head 1 with a recurrent state puts into it;
               "L9.S", the layer's recurrent state once the row's token is in it, and "L9.S1" the
               part of head 1. Empty for knock_out
    number     the factor, or the strength
    vector     of add and patch: float32 numbers in little-endian order
    positions  of the rows that it changes, or the positions that are hidden; None: all
    from_step  the first row changed is that of this step's logits; None: the first row
    """

    kind: str
    where: str = ""
    number: float = 1.0
    vector: bytes = field(default=b"", repr=False)
    positions: Spans | None = None
    from_step: int | None = None

    def __post_init__(self) -> None:
        check_choice("intervention", self.kind, KINDS)
        if self.kind != "knock_out":
            check_place(self.where)
        elif self.where or self.positions is None:
            raise InputError(
                "intervention", ": knock_out takes positions, and no place: knock_out 3-7"
            )
        with_vector = self.kind in ("add", "patch")
        if with_vector != bool(self.vector) or len(self.vector) % 4:
            raise InputError(
                "intervention", f": {self.kind} takes {'a' if with_vector else 'no'} vector"
            )
        if not np.isfinite(self.numbers).all():
            raise InputError("intervention", ": every number of a vector must be finite")
        self._set("number", _finite(self.number))
        if self.positions is not None:
            self._set("positions", check_spans("positions", self.positions))
        if self.from_step is not None:
            self._set("from_step", check_int("from_step", self.from_step, 0, LAST))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def numbers(self) -> NDArray[np.float32]:
        """The vector."""
        return np.frombuffer(self.vector, "<f4")

    def __str__(self) -> str:
        text = {
            "scale": f"{self.where} x {_number(self.number)}",
            "add": f"{self.where} + {_number(self.number)} * {self.sha256[:12]}",
            "patch": f"{self.where} = {self.sha256[:12]}",
            "knock_out": f"knock_out {spans_text(self.positions or ())}",
        }[self.kind]
        if self.kind != "knock_out" and self.positions is not None:
            text += f" at {spans_text(self.positions)}"
        return text if self.from_step is None else f"{text} from {self.from_step}"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the vector, in hex."""
        return sha256(self.vector).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the object that a trace's head has of it, the vector included."""
        line: dict[str, Any] = {"text": str(self), "kind": self.kind, "where": self.where}
        line["number"] = self.number
        line["positions"] = None if self.positions is None else spans_text(self.positions)
        line["from_step"] = self.from_step
        if self.vector:
            line["sha256"], line["vector"] = self.sha256, b64encode(self.vector).decode()
        return line

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Intervention":
        """Return the intervention of an object that ``to_json`` made; InputError for any other."""
        settings = {"kind", "where", "number", "positions", "from_step"}
        keys = settings | {"text", "sha256", "vector"}
        if not isinstance(line, Mapping) or not {"kind"} <= line.keys() <= keys:
            raise InputError(
                f"an intervention is an object with kind, where and number, not {shown(line)}"
            )
        try:
            vector = b64decode(line.get("vector", ""), validate=True)
        except (Base64Error, TypeError, ValueError):
            raise InputError("intervention", ": vector must be float32 numbers in base64") from None
        values = {name: line[name] for name in line if name in settings}
        intervention = cls(**values | {"kind": current_name(values["kind"])}, vector=vector)
        if current_name(line.get("text", str(intervention))) != str(intervention):
            raise InputError(
                "intervention", f": its text is {intervention}, not {shown(line['text'])}"
            )
        if line.get("sha256", intervention.sha256) != intervention.sha256:
            raise InputError("intervention", ": sha256 is not that of its vector")
        return intervention


def scale(
    where: str, factor: float, *, positions: Any = None, from_step: int | None = None
) -> Intervention:
    """Multiply the activations of a place by a factor; 0 ablates the place."""
    return Intervention("scale", where, factor, b"", positions, from_step)


def add(
    where: str,
    vector: ArrayLike,
    strength: float = 1.0,
    *,
    positions: Any = None,
    from_step: int | None = None,
) -> Intervention:
    """Add ``strength`` times a vector to the activations of a place."""
    return Intervention("add", where, strength, as_bytes(vector), positions, from_step)


def patch(
    where: str,
    values: "Looked | ArrayLike",
    *,
    positions: Any = None,
    from_step: int | None = None,
) -> Intervention:
    """Replace the activations of a place by a vector, or by the activations of a look at it.

    positions: the rows that get the values; None with a look means the position of its row
    """
    if isinstance(values, Looked):
        positions = values.position if positions is None else positions
        values = values.part(where)
    return Intervention("patch", where, 1.0, as_bytes(values), positions, from_step)


def knock_out(positions: Any, *, from_step: int | None = None) -> Intervention:
    """Knock positions out of attention: no later row attends to them, in any layer.

    Positions keep their numbers (Geva et al. 2023, arXiv 2304.14767).
    """
    return Intervention("knock_out", "", 1.0, b"", positions, from_step)


def current_name(text: Any) -> Any:
    """Return a text or kind with today's word: older traces call knock_out "blind"."""
    return _EARLIER.sub(r"\1knock_out", text) if isinstance(text, str) else text


def check_place(place: Any) -> tuple[int, str]:
    """Return the layer, and "", "attn", "mlp", "H3", "V1", "S" or "S3"; InputError otherwise."""
    match = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if match is None:
        raise InputError(
            "intervention",
            f": a place is L9, L9.attn, L9.mlp, L9.H3, L9.V1 or L9.S, not {shown(place)}",
        )
    return int(match[1]), match[2] or ""


def _number(value: float) -> str:
    """Write a number with all its digits, and no more."""
    return repr(value).removesuffix(".0")


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(
            "intervention", f": the factor or strength must be a number, not {shown(value)}"
        )
    with np.errstate(over="ignore"):
        number = float(np.float32(value))
    if not math.isfinite(number):
        raise InputError(
            "intervention", f": the factor or strength must be finite, not {shown(value)}"
        )
    return float(value)


def as_bytes(vector: Any) -> bytes:
    """Return numbers as little-endian float32 bytes; InputError if they are no list of numbers."""
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(vector, "<f4")
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            "intervention", f": a vector is a list of numbers, not {shown(vector)}"
        ) from None
    if numbers.ndim != 1:
        raise InputError(
            "intervention", f": a vector is a list of numbers, not {numbers.ndim} deep"
        )
    return numbers.tobytes()


@contextmanager
def number_errors(index: int) -> Iterator[None]:
    """Name the intervention, by its index in the request, in an InputError raised within."""
    try:
        yield
    except InputError as error:
        name = Name("interventions", index)
        if error.field == "intervention":
            raise error.with_name(*name.path) from None
        raise InputError(name, ": ", *error.args) from None


# -- in text, and in a request ---------------------------------------------------------------------

MAX_INTERVENTIONS = 1024
"""The most interventions of one request."""
MAX_VECTOR_BYTES = 8 << 20
"""The most bytes of the vectors of one request, since one line of its trace has them all."""


_SCALE = re.compile(
    r"\s*(?P<where>\S+)\s+x\s+(?P<number>\S+)(?:\s+at\s+(?P<at>[^a-z]+?))?", re.ASCII
)
_KNOCK_OUT = re.compile(r"\s*knock_out\s+(?P<at>[^a-z]+?)", re.ASCII)
_FROM = re.compile(r"(.*?)(?:\s+from\s+([0-9]{1,10}))?\s*", re.ASCII | re.DOTALL)


@plainly
def parse_intervention(text: Any) -> Intervention:
    """Return the intervention that a text describes, without a vector; InputError otherwise."""
    match = _FROM.fullmatch(current_name(text)) if isinstance(text, str) else None
    if match is None:
        raise _syntax_error(text)
    step = None if match[2] is None else int(match[2])
    if hidden := _KNOCK_OUT.fullmatch(match[1]):
        return knock_out(hidden["at"], from_step=step)
    if not (scaled := _SCALE.fullmatch(match[1])):
        raise _syntax_error(text)
    try:
        factor = float(scaled["number"])
    except ValueError:
        raise _syntax_error(text) from None
    return scale(scaled["where"], factor, positions=scaled["at"], from_step=step)


def check_interventions(value: Any) -> tuple[Intervention, ...]:
    """Return a list's interventions; InputError if there is a mistake.

    Each entry is an Intervention, a text that describes one, or an object of a trace.
    """
    if isinstance(value, (str, Intervention)) or not isinstance(value, Iterable):
        raise InputError(
            "interventions", f' must be a list, such as ["L25.H2 x 0"], not {shown(value)}'
        )
    interventions: list[Intervention] = []
    for i, entry in enumerate(value):
        with number_errors(i):
            if isinstance(entry, Intervention):
                interventions.append(entry)
            else:
                interventions.append(
                    parse_intervention(entry)
                    if isinstance(entry, str)
                    else Intervention.from_json(entry)
                )
    if len(interventions) > MAX_INTERVENTIONS:
        raise InputError(
            "interventions", f": {len(interventions)} are more than {MAX_INTERVENTIONS}"
        )
    if (nbytes := sum(len(entry.vector) for entry in interventions)) > MAX_VECTOR_BYTES:
        raise InputError(
            "interventions", f": vectors of {nbytes} bytes are more than {MAX_VECTOR_BYTES}"
        )
    return tuple(interventions)


def _syntax_error(text: Any) -> InputError:
    return InputError(
        "intervention",
        f': write "L25.H2 x 0", "L9.mlp x 0.5 at 3-7 from 2" or "knock_out 3-7", not {shown(text)}',
    )


# -- control vectors -------------------------------------------------------------------------------

_DIRECTION = re.compile(r"direction\.(0|[1-9][0-9]{0,4})", re.ASCII)


def control_vector(
    path: str | PathLike[str],
    strength: float = 1.0,
    *,
    positions: Any = None,
    from_step: int | None = None,
) -> tuple[Intervention, ...]:
    """Return interventions that add ``strength`` times each of a file's vectors, layer by layer.

    InputError where the file is no control vector, FormatError where it is damaged.
    """
    file = GGUFFile(path)
    try:
        kind = file.metadata.get("general.architecture")
        directions = {m[1]: name for name in file.tensors if (m := _DIRECTION.fullmatch(name))}
        if kind != "controlvector" or not directions or len(directions) < len(file.tensors):
            raise InputError(
                f"{file.path}: this is no control vector: its architecture is {kind!r:.40}, and "
                "its tensors are not named direction.1, direction.2 and so on"
            )
        vectors = {int(layer): file.dequantize(name) for layer, name in directions.items()}
    finally:
        file.close()
    return tuple(
        add(f"L{layer}", vectors[layer], strength, positions=positions, from_step=from_step)
        for layer in sorted(vectors)
    )
