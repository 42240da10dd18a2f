"""What a trace is made of: one record a line, and how each reads as JSON.

Knows the format (docs/trace.md, schema.json) and nothing else: not how a run is made, nor
where the lines go. Logits and normalisers are stored, not probabilities: at any stage
p = exp(z - log_sum_exp). A removed token has no logit of minus infinity; it names its stage.

Every ``from_json`` raises ValueError, with a sentence, where the line is no such record.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from cutaway.sampling import Candidate
from cutaway.trace import check

__all__ = ["Candidate", "End", "Head", "Json", "Parent", "StageRecord", "Step", "Token"]

VERSION = 1

FORMAT = "cutaway-trace"

PHASES = ("schedule", "draft", "run", "sample")
"""Of an engine's step; draft is absent where no draft model ran."""

SOURCES = ("sampled", "greedy", "forced", "draft")

REASONS = (
    "end_token", "stop_string", "stop_token", "max_tokens", "context_full", "constraint",
    "scored", "aborted", "error",
)  # fmt: skip

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parent:
    """The trace that a fork goes back to: its file's SHA-256, and what was forced where."""

    trace: str
    step: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Head:
    """How the run was set up: all that a replay needs, and all that it must agree with.

    weights, tokenizer  SHA-256 of what the run depends on, in hex
    prompt              the text that was given, None where token ids were
    chain               the stages in order: {"stage": name, …its rule}
    params              every setting in force, by name
    candidates          how many of the likeliest tokens each step keeps
    watch               token ids that every step reports, by default the end tokens
    kv_bytes            bytes of keys and values that one token takes
    """

    cutaway: str
    model: str
    weights: str
    tokenizer: str
    backend: str
    tier: str
    threads: int
    vocab_size: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    chain: tuple[Json, ...]
    params: Mapping[str, Any]
    seed: int
    candidates: int
    watch: tuple[int, ...]
    end_ids: tuple[int, ...]
    kv_bytes: int
    parent: Parent | None = None

    def to_json(self) -> Json:
        """The first line of a trace."""
        return {"kind": "head", "format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, line: Json) -> Self:
        """The inverse."""
        if line.get("format") != FORMAT or line.get("version") != VERSION:
            raise ValueError(f"is not of format {FORMAT!r}, version {VERSION}")
        known = check.fields(_without(line, "kind", "format", "version"), _HEAD)
        return cls(**known)


class Token(NamedTuple):
    """The bytes of a token id."""

    id: int
    bytes: bytes
    name: str | None = None  # how a special token is called, whose bytes are not text

    def to_json(self) -> Json:
        """{"text"} where the bytes are whole characters, else {"hex"}."""
        line: Json = {"kind": "tok", "id": self.id}
        try:
            line["text"] = self.bytes.decode()
        except UnicodeDecodeError:
            line["hex"] = self.bytes.hex()
        if self.name:
            line["name"] = self.name
        return line

    @classmethod
    def from_json(cls, line: Json) -> Self:
        """The inverse."""
        form = "hex" if "hex" in line else "text"
        data = _from_hex if form == "hex" else _encoded
        checks = {"id": check.integer, form: data, "name": check.optional(check.text)}
        known = check.fields({"name": None} | _without(line, "kind"), checks)
        return cls(known["id"], known[form], known["name"])


class StageRecord(NamedTuple):
    """What one stage of the chain left: see ``sampling.StageReport``."""

    survivors: int
    removed_mass: float
    log_sum_exp: float  # of the survivors' logits, as this stage left them
    cut: float | None  # the lowest logit that survived, where the stage removes tokens
    victims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop.

    source       "sampled", "greedy", "forced" or "draft" (drawn, and guessed before)
    own          what the sampler drew by itself, which differs where a token was forced
    candidates   the likeliest first, then the chosen and the watched if not among them
    maximum, log_sum_exp, entropy, rank, logprob   of the model's own logits; natural logarithms
    final_*      of the survivors of the chain; None where a forced token did not survive
    sketch       how many tokens lie 0–1, 1–2, … below the maximum logit
    kv_tokens    tokens whose keys and values were read
    ms           milliseconds of the step that computed it, by ``PHASES``
    row          hash of this step's logits; fingerprint: of those of all steps so far
    """

    index: int
    position: int
    token_id: int
    own: int
    source: str
    text: str
    candidates: tuple[Candidate, ...]
    maximum: float
    log_sum_exp: float
    entropy: float
    rank: int
    logprob: float
    final_rank: int | None
    final_logprob: float | None
    final_log_sum_exp: float
    stages: tuple[StageRecord, ...]
    sketch: tuple[int, ...]
    kv_tokens: int
    ms: Mapping[str, float]
    row: str
    fingerprint: str

    def to_json(self) -> Json:
        """A line of columns: the candidates' fields stand side by side, to be short."""
        line = {"kind": "step"} | {name: getattr(self, name) for name in _STEP}
        line["maximum"] = _short(self.maximum)
        columns = dict(zip(Candidate._fields, zip(*self.candidates, strict=True), strict=True))
        for name in ("logit", "delta"):
            columns[name] = tuple(map(_short, columns[name]))
        line["candidates"] = columns
        line["stages"] = [_stage_to_json(stage) for stage in self.stages]
        return line

    @classmethod
    def from_json(cls, line: Json) -> Self:
        """The inverse."""
        return cls(**check.fields(_without(line, "kind"), _STEP))


@dataclass(frozen=True, slots=True)
class End:
    """Why the text ended, and what it cost. A trace without it was cut short.

    reason       one of ``REASONS``
    matched      the stop string, or the id of the end or stop token, that ended it
    usage        prompt_tokens, cached_tokens (of those), completion_tokens
    fingerprint  that of the last step
    text         what was held back until the run was aborted, and follows the steps' text
    error        why, where the reason is "error"
    speculation  tokens proposed, and accepted
    """

    reason: str
    matched: str | int | None
    usage: Mapping[str, int]
    fingerprint: str
    text: str = ""
    error: str | None = None
    speculation: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        """The last line of a trace."""
        return {"kind": "end", **asdict(self)}

    @classmethod
    def from_json(cls, line: Json) -> Self:
        """The inverse."""
        return cls(**check.fields(_without(line, "kind"), _END))


def _without(line: Json, *names: str) -> Json:
    return {name: value for name, value in line.items() if name not in names}


def _short(value: float) -> float:
    """A float64 with fewer digits that rounds to the same float32: nine are always enough."""
    return value and float(f"{value:.9g}")


def _stage_to_json(stage: StageRecord) -> Json:
    cut = None if stage.cut is None else _short(stage.cut)
    return stage._replace(cut=cut)._asdict()


# -- what each field may hold --------------------------------------------------------------------


def _encoded(value: Any) -> bytes:
    return bytes(check.text(value), "utf-8")


def _from_hex(value: Any) -> bytes:
    try:
        return bytes.fromhex(check.text(value))
    except ValueError:
        raise ValueError("must be bytes in hexadecimal digits") from None


def _by_id(value: Any) -> dict[int, float]:
    """Token id -> number: JSON has no keys but texts."""
    return {int(token_id): by for token_id, by in check.table(check.number)(value).items()}


def _settings(value: Any) -> Json:
    """Settings or a stage's rule, by name."""
    found: Json = check.table(check.anything)(value)
    return found | {name: _by_id(found[name]) for name in ("logit_bias", "bias") if name in found}


def _stage(value: Any) -> Json:
    rule = _settings(value)
    check.text(rule.get("stage"))
    return rule


def _parent(value: Any) -> Parent:
    return Parent(**check.fields(value, _PARENT))


def _stage_record(value: Any) -> StageRecord:
    return StageRecord(**check.fields(value, _STAGE))


def _candidates(value: Any) -> tuple[Candidate, ...]:
    columns = check.fields(value, _CANDIDATE).values()
    if len({*map(len, columns)}) > 1:
        raise ValueError("must be columns of one length")
    return tuple(map(Candidate._make, zip(*columns, strict=True)))


_HASH, _FINGERPRINT = check.hexadecimal(64), check.hexadecimal(16)
_PARENT = check.of(Parent, trace=_HASH)
_HEAD = check.of(
    Head,
    weights=_HASH,
    tokenizer=_HASH,
    chain=check.items(_stage),
    params=_settings,
    parent=check.optional(_parent),
)
_CANDIDATE = {
    name: check.items(of_one)
    for name, of_one in check.of(Candidate, logit=check.single, delta=check.single).items()
}
_STAGE = check.of(StageRecord, cut=check.optional(check.single))
_STEP = check.of(
    Step,
    source=check.one_of(*SOURCES),
    candidates=_candidates,
    maximum=check.single,
    stages=check.items(_stage_record),
    row=_FINGERPRINT,
    fingerprint=_FINGERPRINT,
)
_END = check.of(End, reason=check.one_of(*REASONS), fingerprint=_FINGERPRINT)
