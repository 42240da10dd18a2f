"""The keywords of a request: their types, and one table from which all interfaces take them.

``KEYWORDS`` has a row for each: how its value is written, its default, its effect, its flag at a
terminal and its field over HTTP, or why it has none there. From the table come the flags and help
(``cli/options/arguments.py``), the fields with their types and refusals
(``server/shared/fields.py``), and the tables in the docs.

A new keyword is written in two files: in the class that checks it (``SamplingParams``,
``StopParams``, ``ConstraintParams``, ``RunParams``; or ``Options`` if the engine never reads it),
and here: its type for type checkers, and its row. tests/requests/test_prepared.py reports what is
missing. A number of the sampler needs no row: it has one in ``sampling/params.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from cutaway.sampling import PARAMS, PRESETS, STAGES

if TYPE_CHECKING:
    from cutaway.engine.canvas import Rule
    from cutaway.engine.constraint.tokens import ThinkingBudget
    from cutaway.engine.interventions import Intervention
    from cutaway.sampling import Processor
    from cutaway.text.grammar.checks import OwnCheck


Kind = Literal[
    "number", "int", "bool", "off", "text", "texts", "stops", "ids", "names", "breakers", "biases",
    "schema", "grammar", "tokens", "interventions", "rule", "file", "own",
]  # fmt: skip
"""How a value is written. number: one of ``PARAMS``; off: a bool whose default is true."""


class Flag(NamedTuple):
    """How a keyword is written at a terminal.

    group    the heading of the help under which it is listed
    metavar  the placeholder of its value in the help; "": the flag has no value
    more     text to add to the keyword's help
    name     the flag, if it is not --KEYWORD
    """

    group: str
    metavar: str = ""
    more: str = ""
    name: str = ""


class Fields(NamedTuple):
    """The HTTP endpoints ("faces") whose requests have a keyword as a field.

    faces   those where the field has the keyword's name and form: "chat", "completions" and
            "responses" are OpenAI's, "messages" is Anthropic's, "ollama" is in Ollama's options
    others  face -> name of the field, if its name or form differs
    openai  whether OpenAI's API has the field
    more    text to add to the keyword's help in the schema
    """

    faces: tuple[str, ...]
    renamed: Mapping[str, str] = MappingProxyType({})
    openai: bool = False
    more: str = ""


class Absent(NamedTuple):
    """Why the command line or HTTP lacks a keyword."""

    reason: str


class Keyword(NamedTuple):
    """A row of the table.

    page     whether the page has a control for it
    choices  the values that a text may have
    """

    kind: Kind
    default: Any
    help: str
    flag: Flag | Absent
    fields: Fields | Absent
    page: bool = False
    choices: tuple[str, ...] = ()

    def flag_name(self, name: str) -> str:
        """The flag of the keyword ``name``."""
        no = "no-" if self.kind == "off" else ""
        flag = self.flag.name if isinstance(self.flag, Flag) else ""
        return flag or f"--{no}{name.replace('_', '-')}"

    def field(self, name: str, face: str) -> str | None:
        """The field of the keyword ``name`` on a face; None where it has none."""
        if isinstance(self.fields, Absent):
            return None
        return name if face in self.fields.faces else self.fields.renamed.get(face)


# -- their types, and the table ----------------------------------------------------------------


class SamplingOptions(TypedDict, total=False):
    """The keywords of ``SamplingParams``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_breakers: Sequence[int | str]
    logit_bias: Mapping[int, float]
    seed: int | None
    preset: str
    chain: Sequence[str] | None
    processors: Sequence[Processor]


class GrammarOptions(TypedDict, total=False):
    """The keywords that constrain a text to a grammar."""

    json_schema: Any
    json_compact: bool
    thought: str
    thinking_budget: ThinkingBudget | Mapping[str, Any] | None
    calls: str
    regex: str | None
    grammar: str | PathLike[str] | None
    choice: Sequence[str]


class RequestOptions(SamplingOptions, GrammarOptions, total=False):
    """The keywords of a request."""

    max_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str]
    min_tokens: int
    check: str | OwnCheck | None
    heal: bool | int
    kv_cache: bool
    cache_prompt: bool
    cache_salt: str | None
    priority: int
    speculate: str
    forced: Sequence[int]
    replay: Sequence[int]
    ledger: bool
    logprobs: int
    prompt_logprobs: int
    candidates: int
    track: Sequence[int]
    n: int
    align: bool
    special: bool
    suffix: str | None
    trace: str | PathLike[str] | None
    interventions: Sequence[Intervention | str]
    denoise: Rule | str | bool | Mapping[str, Any] | None
    adapter: str | None


class DenoiseOptions(RequestOptions, total=False):
    """The keywords of ``LLM.denoise``: a request's, the name of a rule, and the rule's settings."""

    rule: str
    block: int | None
    order: str
    steps: int | None
    schedule: str
    threshold: float | None
    factor: float | None
    entropy_bound: float | None
    draws_first: bool
    after_chain: bool
    order_temperature: float
    remask: str
    remask_rate: float
    edit_threshold: float
    cache: str
    noise: str
    start: str
    max_passes: int | None
    t_max: float | None
    t_min: float | None
    stability_threshold: int | None
    confidence_threshold: float | None
    forced_cells: Sequence[tuple[int, int, int]]


_ALL_FACES = ("chat", "completions", "responses", "messages")
EVERYWHERE = Fields(_ALL_FACES)
SAMPLED = Fields(("chat", "completions"))
_OPENAI = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_PYTHON = Absent("it is a Python function")
_TEMPLATE = Absent("the model's template sets it, in a chat")


def _number(name: str) -> Keyword:
    param = PARAMS[name]
    fields = Fields((*_ALL_FACES, "ollama"), openai=name in _OPENAI)
    about = f"{param.help}; {param.range}"
    return Keyword("number", param.default, about, Flag("sampling", param.metavar), fields, True)


_ROWS = {
    "dry_breakers": Keyword(
        "breakers", (), "DRY: texts at which a repeated passage ends",
        Flag("sampling", "TEXT", "default: newline, colon, quotation mark, asterisk"),
        Fields(_ALL_FACES, more="or token ids"),
    ),
    "preset": Keyword(
        "text", "cutaway",
        f"order of the sampling stages by name, that of an engine: {', '.join(PRESETS)}",
        Flag("sampling", "NAME"), EVERYWHERE, page=True,
    ),
    "chain": Keyword(
        "names", None,
        f"order of the sampling stages, written out, not a preset: some of {', '.join(STAGES)}; "
        "those that are not named are not applied",
        Flag("sampling", "A,B,…"), EVERYWHERE, page=True,
    ),
    "seed": Keyword(
        "int", None, "same seed, same text; 0 to 2^64-1; without it one is chosen and reported",
        Flag("sampling", "S"), page=True,
        fields=Fields((*_ALL_FACES, "ollama"), openai=True, more="-1: as if left out"),
    ),
    "logit_bias": Keyword(
        "biases", {}, "add a number, -100 to 100, to the logits of these token ids",
        Flag("sampling", "ID=X"), SAMPLED._replace(openai=True),
    ),
    "processors": Keyword(
        "own", (), "functions (token ids, logits) -> logits, a stage of their own",
        _PYTHON, _PYTHON,
    ),
    "max_tokens": Keyword(
        "int", 256, "generate at most N tokens, 1 or more", Flag("stopping", "N"),
        Fields((), {
            "chat": "max_completion_tokens", "completions": "max_tokens",
            "responses": "max_output_tokens", "messages": "max_tokens", "ollama": "num_predict",
        }, openai=True), page=True,
    ),
    "stop": Keyword(
        "stops", (), "stop before the first of these strings", Flag("stopping", "STR"),
        Fields(("chat", "completions", "ollama"), {"messages": "stop_sequences"}, openai=True),
        page=True,
    ),
    "stop_token_ids": Keyword(
        "ids", (), "stop before any of these tokens", Flag("stopping", "ID,ID"), SAMPLED
    ),
    "ignore_eos": Keyword(
        "bool", False, "do not stop at the model's end tokens", Flag("stopping"), SAMPLED
    ),
    "min_tokens": Keyword(
        "int", 0, "no end token, stop token or stop string before N tokens", Flag("stopping", "N"),
        Fields(("chat", "completions", "responses")),
    ),
    "allowed_token_ids": Keyword(
        "ids", None, "draw no other tokens than these", Flag("constraints", "ID,ID"), SAMPLED
    ),
    "bad_words": Keyword(
        "texts", (), "never write these strings, however they are cut into tokens",
        Flag("constraints", "STR"), SAMPLED,
    ),
    "json_schema": Keyword(
        "schema", None, "write JSON that is valid under this schema; true: any JSON",
        Flag("constraints", "FILE|JSON"), Fields(SAMPLED.faces, {
            "responses": "text", "messages": "output_config", "ollama": "format",
        }), page=True,
    ),
    "json_compact": Keyword(
        "bool", False, "with a JSON schema: no white space between the parts of the JSON",
        Flag("constraints"), SAMPLED,
    ),
    "regex": Keyword(
        "text", None, "write a text that this regular expression matches as a whole",
        Flag("constraints", "R"), SAMPLED, page=True,
    ),
    "grammar": Keyword(
        "grammar", None, "write a text of this grammar, in Lark's notation or llama.cpp's (GBNF)",
        Flag("constraints", "FILE"), SAMPLED,
    ),
    "choice": Keyword(
        "texts", (), "write one of these texts", Flag("constraints", "TEXT"), SAMPLED, page=True,
    ),
    "thought": Keyword(
        "own", "", "Lark of what may precede the answer under a grammar", _TEMPLATE, _TEMPLATE
    ),
    "thinking_budget": Keyword(
        "own", None, "the marks of a thought, and how many tokens may be between them",
        _TEMPLATE, _TEMPLATE,
    ),
    "calls": Keyword(
        "own", "", "Lark of tool calls that may replace the JSON of the schema",
        _TEMPLATE, _TEMPLATE,
    ),
    "check": Keyword(
        "text", None, "arithmetic, the only check yet: write the correct result after a sum such "
        "as 12*13=",
        Flag("constraints", "NAME"), SAMPLED, choices=("arithmetic",),
    ),
    "heal": Keyword(
        "bool", False, "complete a word that the prompt cuts off (token healing): its last token "
        "is drawn again",
        Flag("constraints"), SAMPLED,
    ),
    "kv_cache": Keyword(
        "off", True, "recompute the whole sequence at every step: same tokens, quadratic cost",
        Flag("model"), EVERYWHERE, page=True,
    ),
    "cache_prompt": Keyword(
        "off", True, "take nothing from the prefix cache and leave nothing there, as for measuring",
        Absent("a command is one process, and --no-prefix-cache is for all of its texts"),
        EVERYWHERE,
    ),
    "cache_salt": Keyword(
        "text", None, "a secret of 1 to 256 characters: share the prefix cache only with texts of "
        "the same one; same text, and no trace has it",
        Absent("a command is one process, and nobody else's; a line of --input may have it"),
        EVERYWHERE,
    ),
    "priority": Keyword(
        "int", 0, "lower goes first, in the queue and when KV blocks run out",
        Absent("one text waits for no other; a line of --input may have it"), EVERYWHERE,
    ),
    "speculate": Keyword(
        "text", "off", "speculative decoding: ngram drafts from the text itself, jacobi from what "
        "the model drew ahead, draft:MODEL with a small model of the same vocabulary, mtp with the "
        "model's own draft head, eagle:PATH with an EAGLE-3 head's folder, dflash:PATH and "
        "dspark:PATH with a block drafter's, assistant:PATH with Gemma 4's assistant; same text",
        Flag("model", "HOW"),
        Fields(_ALL_FACES, more="draft, mtp and heads: as the server was started"), page=True,
        choices=(
            "off", "ngram", "jacobi", "draft", "mtp", "eagle", "dflash", "dspark", "assistant",
        ),
    ),
    "forced": Keyword(
        "ids", (), "token ids that the output begins with, whatever would be drawn",
        Flag("prompt", "ID,ID"), EVERYWHERE,
    ),
    "replay": Keyword(
        "ids", (), "token ids that the same request with the same seed wrote before it was cut: "
        "drawn again, many in a step; one that differs is an error",
        Absent("'cutaway resume' and 'cutaway trace replay' take them from a trace"), EVERYWHERE,
    ),
    "ledger": Keyword(
        "bool", False, "report what each sampling stage removed",
        Absent("--trace records it"), Absent("trace has it"),
    ),
    "logprobs": Keyword(
        "int", 0, "the N likeliest tokens of every step, before and after the sampling stages",
        Flag("output", "N", "with --json"), Fields((), {
            "chat": "top_logprobs", "completions": "logprobs", "responses": "top_logprobs",
            "ollama": "top_logprobs",
        }, openai=True),
    ),
    "prompt_logprobs": Keyword(
        "int", 0, "the log-probability of each prompt token, and the N likeliest in its place",
        Flag("output", "N", "with --json"), SAMPLED._replace(more="as in vLLM"),
    ),
    "candidates": Keyword(
        "int", 0, "how many of the likeliest tokens a trace records at each step, 1 to 1000",
        Flag("trace", "N", "default 20; needs --trace, as --logprobs needs --json"), EVERYWHERE,
    ),
    "track": Keyword(
        "tokens", (), "tokens that a trace also records at each step, however unlikely",
        Flag("trace", "TOKEN", "an id or a text; the end tokens are always recorded"), EVERYWHERE,
    ),
    "n": Keyword(
        "int", 1, "generate N samples, whose seeds derive from the first", Flag("output", "N"),
        SAMPLED._replace(openai=True),
    ),
    "align": Keyword(
        "bool", False, "of N samples under a constraint return one, drawn by importance weight: "
        "nearer to the model's own distribution than a single sample",
        Flag("output"), SAMPLED,
    ),
    "special": Keyword(
        "bool", False, "parse special tokens such as <|im_start|> in the prompt and suffix",
        Flag("prompt"), Fields(("completions",)),
    ),
    "suffix": Keyword(
        "text", "", "text that must follow the output: the model writes what is between "
        "(docs/fill.md)", Flag("prompt", "TEXT"),
        Fields(("completions",), {"ollama": "suffix"}, openai=True),
    ),
    "trace": Keyword(
        "file", None, "record the run in this file, one line of JSON per step (docs/trace.md)",
        Flag("trace", "FILE", "gzipped if its name ends in .gz; more samples go to run.2.jsonl, "
             "run.3.jsonl and so on; no file is overwritten"),
        Fields((), dict.fromkeys(_ALL_FACES, "trace")),
    ),
    "interventions": Keyword(
        "interventions", (), "change activations inside the model (docs/interventions.md)",
        Flag("interventions", "I", '"L25.H2 x 0" ablates head 2 of layer 25, "L9.mlp x 0.5 at 3-7 '
             'from 2" halves what an MLP adds at some positions from the third step on, '
             '"L9.S x 0 at 24" zeroes a recurrent state, "knock_out 3-7" hides positions from '
             "attention",
             "--intervention"),
        Fields(_ALL_FACES, more="texts or objects; needs serve --allow-interventions"),
    ),
    "denoise": Keyword(
        "rule", None, "for diffusion models: the rule that reveals the canvas (docs/denoise.md)",
        Flag("denoise", "RULE"), page=True,
        fields=Fields(_ALL_FACES, more="its name or its settings; true: one cell a pass"),
    ),
    "adapter": Keyword(
        "own", "", "name of the loaded adapter that computes the text",
        Absent("--lora applies one to all texts"), Absent("a request has its name as model"),
    ),
}  # fmt: skip
KEYWORDS: Mapping[str, Keyword] = MappingProxyType({n: _number(n) for n in PARAMS} | _ROWS)
"""Every keyword of a request, by name."""

NOT_THERE: Mapping[str, str] = {
    "chat": "the model's template writes the prompt, which is not echoed; /v1/completions has it",
    "responses": "OpenAI's newer form has one answer and few fields; /v1/chat/completions has it",
    "messages": "Anthropic's form has one answer and few fields; /v1/chat/completions has it",
    "ollama": "Ollama's clients know Ollama's options; /v1 has it",
    "page": "the page has controls for the draw, the length, the form, the cache and the canvas",
}
"""Why a face lacks a keyword that other faces have."""


def fields_at(face: str) -> dict[str, str]:
    """Return the name on a face of HTTP of each keyword that it has."""
    fields = {name: row.field(name, face) for name, row in KEYWORDS.items()}
    return {name: field for name, field in fields.items() if field}
