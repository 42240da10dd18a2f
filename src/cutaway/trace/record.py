"""The head, the tokens and the end of a trace, one record per line, and their JSON.

Knows the format (docs/trace.md, schema.json). Does not know how a run is made or where the lines
go. Steps and passes are events of the engine; ``steps`` writes and reads their lines.

Every ``from_json`` raises ValueError, with a sentence, if the line is not such a record.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from cutaway.engine.canvas import Rule, read_rule
from cutaway.engine.interventions import Intervention
from cutaway.errors import InputError
from cutaway.text.grammar import KINDS, Grammar
from cutaway.text.grammar.compiler import engine
from cutaway.trace import check
from cutaway.trace.check import READABLE, VERSION

# -- how a canvas was revealed -----------------------------------------------------------------

DENOISE = "denoise"


@dataclass(frozen=True, slots=True)
class DecoderRecord:
    """The decoder of a canvas; a text written from left to right has none.

    attention   "causal", "bidirectional", "canvas" (see ``Limits``), or a block size: a token then
                attends to all tokens up to the end of its block
    shift       whether a token's row predicts the next position
    mask_id     the input token at a masked cell; None if attention is causal, or there is none
    suffix_ids  tokens after the canvas
    """

    rule: Rule
    attention: str | int
    shift: bool
    mask_id: int | None
    suffix_ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the decoder as a field of the head."""
        fields = {name: getattr(self, name) for name in DECODER_CHECKS}
        return {"kind": DENOISE} | fields | {"rule": self.rule.to_json()}


def decoder(value: Any) -> DecoderRecord:
    """Read a decoder from the head's field; ValueError if the value is malformed."""
    fields = check.fields(value, {"kind": check.one_of(DENOISE), **DECODER_CHECKS})
    return DecoderRecord(**{name: fields[name] for name in DECODER_CHECKS})


def _rule(value: Any) -> Rule:
    settings = check.table(check.anything)(value)
    try:
        rule = read_rule(settings)
    except InputError as error:
        raise ValueError(f"is no rule: {error}") from None
    if rule.to_json() != settings:
        raise ValueError("must say what differs from a plain rule, and no more")
    return rule


def _attention(value: Any) -> str | int:
    words = check.one_of("causal", "bidirectional", "canvas")
    return check.integer(value) if type(value) is int else words(value)


DECODER_CHECKS = check.checks_of(DecoderRecord, rule=_rule, attention=_attention)


# -- records -----------------------------------------------------------------------------------

FORMAT = "cutaway-trace"

REASONS = (
    "end_token", "stop_string", "stop_token", "max_tokens", "context_full", "constraint",
    "scored", "aborted", "error",
)  # fmt: skip

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent of a fork: SHA-256 of its file, the step of the fork, and the forced token.

    token_id  None if no token was forced: the fork then differs by the head's interventions
    """

    trace: str
    step: int
    token_id: int | None


@dataclass(frozen=True, slots=True)
class GrammarRecord:
    """The grammar of a run: fields of ``cutaway.text.grammar.Grammar``, and the programs used.

    sha256  hash of kind, text and compact, in hex
    engine  the programs that compute the masks, with versions
    """

    kind: str
    text: str
    sha256: str
    engine: str
    compact: bool

    @classmethod
    def from_grammar(cls, grammar: Grammar | None) -> Self | None:
        """Return the record of a request's grammar; the settings record thought and calls."""
        if grammar is None:
            return None
        alone = Grammar(grammar.kind, grammar.text, grammar.compact)
        return cls(alone.kind, alone.text, alone.sha256, engine(), alone.compact)


@dataclass(frozen=True, slots=True)
class SizesRecord:
    """The sizes of the model, for drawings of it; ``Head.weights`` identifies the model.

    hidden, mlp    widths of the residual stream and of an MLP's inner layer
    experts        number of MLPs in a layer; 0 if every layer has one MLP
    experts_used   number of these that compute each token; 0 if every layer has one MLP
    """

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    mlp: int
    experts: int
    experts_used: int


@dataclass(frozen=True, slots=True)
class Head:
    """The setup of a run: all inputs of a replay, and the facts that a replay must agree with.

    weights, tokenizer  SHA-256 of the weights and of the tokenizer, in hex
    prompt              the prompt's text; None if token ids were given
    chain               the stages in order: {"stage": name, …its rule}
    params              every setting in force, by name
    candidates          number of likeliest tokens that each step keeps
    tracked_ids         tokens that every step reports, by default the end tokens
    kv_bytes_per_token  bytes of a token's keys and values
    grammar             None if no grammar constrained the text
    interventions       changes of activations
    decoder             the decoder of a canvas; None for a text written from left to right
    sizes               None in older files, which lack the field
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
    tracked_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    kv_bytes_per_token: int
    parent: Parent | None = None
    grammar: GrammarRecord | None = None
    interventions: tuple[Intervention, ...] = ()
    decoder: DecoderRecord | None = None
    sizes: SizesRecord | None = None

    @property
    def chooses_anew(self) -> bool:
        """Whether each pass over a canvas chooses among all cells of a block."""
        return self.decoder is not None and self.decoder.rule.remask == "unchosen"

    @property
    def cells(self) -> int:
        """The number of a canvas's cells; 0 for other texts."""
        cells: int = self.params.get("max_tokens", 0) if self.decoder else 0
        return cells

    @property
    def token_ids(self) -> set[int]:
        """All token ids in the head."""
        ids = {*self.prompt_token_ids, *self.tracked_ids, *self.end_ids}
        if self.decoder:
            ids.update(self.decoder.suffix_ids)
            ids.update(() if self.decoder.mask_id is None else (self.decoder.mask_id,))
            ids.update(cell.token_id for cell in self.decoder.rule.forced_cells)
        return ids

    def to_json(self) -> Json:
        """Return the first line of a trace."""
        line = {"kind": "head", "format": FORMAT, "version": VERSION, **asdict(self)}
        line["interventions"] = [intervention.to_json() for intervention in self.interventions]
        line["decoder"] = self.decoder and self.decoder.to_json()
        return drop_fields(line, *(name for name in _OPTIONAL if not line[name]))

    @classmethod
    def from_json(cls, line: Json) -> Self:
        """Read a line that ``to_json`` wrote."""
        version = line.get("version")
        if line.get("format") != FORMAT or type(version) is not int or version not in READABLE:
            raise ValueError(f"is not of format {FORMAT!r}, version 1 to {VERSION}")
        defaults: Json = dict.fromkeys(_OPTIONAL) | {"interventions": []}
        head = cls(**check.fields(defaults | drop_fields(line, "kind", "format", "version"), _HEAD))
        if type(head.cells) is not int or not 0 <= head.cells < _MOST_CELLS:
            raise ValueError("params: max_tokens must be how many cells the canvas has")
        if empty := [name for name in _OPTIONAL if name in line and not line[name]]:
            raise ValueError(f"{empty[0]} must be absent where there is none")
        return head


class Token(NamedTuple):
    """A token: its id and bytes.

    name  name of a special token, which adds no bytes to the text; None for other tokens
    """

    id: int
    bytes: bytes
    name: str | None = None

    def to_json(self) -> Json:
        """Return the token's line: with "text" if its bytes are whole characters, else "hex"."""
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
        """Read a line that ``to_json`` wrote."""
        form = "hex" if "hex" in line else "text"
        data = _from_hex if form == "hex" else _encode
        checks = {"id": check.integer, form: data, "name": check.optional(check.text)}
        fields = check.fields({"name": None} | drop_fields(line, "kind"), checks)
        return cls(fields["id"], fields[form], fields["name"])


@dataclass(frozen=True, slots=True)
class End:
    """The end of a text, and its cost. A trace without an end was cut short.

    reason       one of ``REASONS``
    matched      the stop string, or the id of the end or stop token, that ended the text
    usage        prompt_tokens, cached_tokens (a part of prompt_tokens), completion_tokens
    fingerprint  fingerprint of the last step
    text         text that was held back until the run was aborted; it follows the steps' text
    error        the error's text, if the reason is "error"
    speculation  numbers of draft tokens proposed and accepted, and what was chosen: see trace.md
    """

    reason: str
    matched: str | int | None
    usage: Mapping[str, int]
    fingerprint: str
    text: str = ""
    error: str | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return the last line of a trace."""
        return {"kind": "end", **asdict(self)}

    @classmethod
    def from_json(cls, line: Json) -> Self:
        """Read a line that ``to_json`` wrote."""
        return cls(**check.fields(drop_fields(line, "kind"), _END))


def drop_fields(line: Json, *names: str) -> Json:
    """Return the line without these fields."""
    return {name: value for name, value in line.items() if name not in names}


# -- what each field may hold --------------------------------------------------------------------


def _encode(value: Any) -> bytes:
    return bytes(check.text(value), "utf-8")


def _from_hex(value: Any) -> bytes:
    try:
        return bytes.fromhex(check.text(value))
    except ValueError:
        raise ValueError("must be bytes in hexadecimal digits") from None


def _parse_bias(value: Any) -> dict[int, float]:
    """Read a map of token id -> number; in JSON, its keys are strings."""
    return {int(token_id): by for token_id, by in check.table(check.number)(value).items()}


def settings_from_json(value: Any) -> Json:
    """Read settings, or the rule of a stage, by name; ValueError if the value is malformed."""
    settings: Json = check.table(check.anything)(value)
    return settings | {
        name: _parse_bias(settings[name]) for name in ("logit_bias", "bias") if name in settings
    }


def _stage(value: Any) -> Json:
    rule = settings_from_json(value)
    check.text(rule.get("stage"))
    return rule


def _intervention(value: Any) -> Intervention:
    try:
        return Intervention.from_json(value)
    except InputError as error:
        raise ValueError(str(error)) from None


def _grammar(value: Any) -> GrammarRecord:
    record = GrammarRecord(**check.fields(value, _GRAMMAR))
    if record.sha256 != Grammar(record.kind, record.text, record.compact).sha256:
        raise ValueError("sha256 is not that of its text")
    return record


_MOST_CELLS = 2**24
_OPTIONAL = "grammar", "interventions", "decoder", "sizes"
"""Fields of the head that are absent if they are empty."""
_HASH, _FINGERPRINT = check.hexadecimal(64), check.hexadecimal(16)
_PARENT = check.checks_of(Parent, trace=_HASH)
_GRAMMAR = check.checks_of(GrammarRecord, kind=check.one_of(*KINDS), sha256=_HASH)
_SIZES = check.checks_of(SizesRecord)
_HEAD = check.checks_of(
    Head,
    weights=_HASH,
    tokenizer=_HASH,
    chain=check.items(_stage),
    params=settings_from_json,
    parent=check.optional(lambda value: Parent(**check.fields(value, _PARENT))),
    grammar=check.optional(_grammar),
    interventions=check.items(_intervention),
    decoder=check.optional(decoder),
    sizes=check.optional(lambda value: SizesRecord(**check.fields(value, _SIZES))),
)


def _drafts(value: Any) -> dict[str, Any]:
    """Check the figures of draft tokens."""
    checks: dict[str, check.Check] = {
        "cost": check.number, "lengths": check.items(check.integer)
    }  # fmt: skip
    figures = check.table(check.anything)(value)
    return {name: (checks.get(name) or check.integer)(part) for name, part in figures.items()}


_END = check.checks_of(
    End, reason=check.one_of(*REASONS), fingerprint=_FINGERPRINT, speculation=_drafts
)
