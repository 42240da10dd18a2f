"""Options that several commands share.

Knows argparse. An option that was not given is absent from the namespace, so that each default
is written down once, where it is used. Refuses to know what becomes of them (parsed.py).
"""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.sampling import PARAMS, PRESETS, STAGES

if TYPE_CHECKING:
    from argparse import Action, _ArgumentGroup


def _names(text: str) -> list[str]:
    return text.split(",")


_ORDERED = (
    ("--preset", str, "NAME", f"order of the sampling stages, as in {', '.join(PRESETS)}"),
    ("--chain", _names, "A,B,…", "the order itself, instead of a preset: names of stages with "
     f"commas, of {', '.join(STAGES)}; those that are not named are not applied"),
    ("--seed", int, "S", "same seed, same text; without it one is chosen and shown"),
)  # fmt: skip
_BREAKER = (
    "text at which DRY stops comparing; may be repeated; default: newline, colon, quotation mark "
    "and asterisk"
)
_SAMPLES = (
    ("--n", "generate N samples; their seeds derive from the first; default 1"),
    ("--logprobs", "with --json: the N likeliest tokens of every step, before and after the "
     "sampling chain"),
    ("--prompt-logprobs", "with --json: the log-probability of each prompt token, and the N "
     "likeliest in its place"),
)  # fmt: skip
_TRACE = (
    "record the run in FILE, one line of JSON per step, gzipped if the name ends in .gz; more "
    "samples go to run.2.jsonl, run.3.jsonl and so on; no file is overwritten"
)
_CANDIDATES = "how many of the likeliest tokens to record at each step, 1 to 1000; default 20"
_TRACK = (
    "also record this token at each step, however unlikely it is: an id, or a text; repeat for "
    "more. The end tokens are always recorded"
)
_JSON = "print one JSON document instead, or a list of them if --n is above 1"
_ALIGN = (
    "with --n above 1 and a constraint: print one of the samples alone, chosen by its importance "
    "weight with the seed's luck"
)
_BIAS = "add X, -100 to 100, to the logit of token ID; repeat for other tokens"
_MAX_TOKENS = "generate at most N tokens, 1 or more; default 256"
_STOP = "stop before this string; repeat for more"
_STOP_IDS = "stop before any of these tokens; repeat for more"
_IGNORE_EOS = "do not stop at the model's end token"
_MIN_TOKENS = "do not stop before N tokens, except where the context is full; default 0"
_ALLOWED = "draw no other tokens than these; repeat for more"
_BAD_WORDS = "never write this string, however it is cut into tokens; repeat for more"
_JSON_SCHEMA = (
    "write JSON that the schema in this file describes; the schema itself may stand here, too, "
    "and true stands for any JSON"
)
_CHECK = "arithmetic: after a sum such as 12*13= stands its value"
_HEAL = "the prompt's last token may become another that begins like it"
_COMPACT = "with --json-schema: no white space between the parts of the JSON"
_REGEX = "write a text that this regular expression matches from its first to its last character"
_GRAMMAR = "write a text of the grammar in this file, in Lark's notation or in llama.cpp's (GBNF)"
_CHOICE = "write this text or another that is given so; repeat for more"
_NO_CACHE = "recompute the whole sequence at every step: same tokens, quadratic cost"
_SPECULATE = (
    "speculative decoding: ngram drafts from the text itself, jacobi from what the model drew "
    "ahead of it, draft:MODEL with a small model that has the same tokens; same text, fewer steps "
    "where draft tokens are accepted"
)
_KV_TOKENS = (
    "size of the KV cache in tokens, of all sequences together; default: --context, or 8192 if "
    "that is more"
)
QUANTIZE = (
    "quantise F32, F16 or BF16 weights while loading: q8_0, q6_k, q4_1 or q4_0; 'cutaway quantize' "
    "does it once, into a file"
)
KV = (
    "how keys and values are stored: f16 (default), or q8_0: about half the memory, and logits "
    "that differ a little"
)
OFFLOAD = (
    "for a model larger than memory: keep its weights in a file in DIR, on a disk, which is gone "
    "with the process; each token reads what memory cannot hold"
)
LORA = (
    "an adapter for all texts, a GGUF file or a folder of PEFT; X (default 1) multiplies what it "
    "adds; FILE:X,FILE:X adds several"
)
_NO_PREFIX_CACHE = "compute every prompt in full, even if an earlier one began with the same tokens"


def add_model_arguments(
    parser: ArgumentParser, *, several: str = "", lora: "str | type[Action]" = "store"
) -> None:
    """-m and how the model runs; several: -m may be repeated, and this is its help.

    lora: the action of --lora
    """
    group = add_loading_arguments(parser, several=bool(several), said=several, lora=lora)
    group.add_argument(
        "--no-prefix-cache", dest="prefix_cache", action="store_false", help=_NO_PREFIX_CACHE
    )
    group.add_argument("--no-kv-cache", dest="kv_cache", action="store_false", help=_NO_CACHE)
    group.add_argument("--speculate", metavar="HOW", help=_SPECULATE)


def add_loading_arguments(
    parser: ArgumentParser, default: str = "smollm2", *, several: bool = False, said: str = "",
    lora: "str | type[Action]" = "store",
) -> "_ArgumentGroup":  # fmt: skip
    """-m, which has a default, and how the model is loaded; their group.

    several: -m may be repeated; said: its help, where it is another; lora: the action of --lora
    """
    group = parser.add_argument_group("model", argument_default=SUPPRESS)
    group.add_argument(
        "-m", "--model", metavar="NAME|PATH", action="append" if several else "store",
        help=said or "an alias ('cutaway models' lists them), a .gguf file, a folder that "
        f"transformers saved, or hf:org/repo[:file]; default {default}",
    )  # fmt: skip
    group.add_argument(
        "--backend",
        metavar="NAME",
        help="what computes the model: cpu (default if it was built) or reference",
    )
    group.add_argument("--quantize", metavar="FORMAT", help=QUANTIZE)
    group.add_argument("--kv", metavar="FORMAT", help=KV)
    group.add_argument("--lora", action=lora, metavar="FILE[:X]", help=LORA)
    group.add_argument("--offload-folder", metavar="DIR", help=OFFLOAD)
    group.add_argument("--threads", type=int, metavar="N", help="compute threads; see `bench`")
    group.add_argument(
        "--context", type=int, metavar="N",
        help="maximum tokens of prompt and output together, 2 or more; default: the model's",
    )  # fmt: skip
    group.add_argument("--kv-tokens", type=int, metavar="N", help=_KV_TOKENS)
    return group


def add_sampling_arguments(parser: ArgumentParser) -> None:
    """How tokens are chosen."""
    group = parser.add_argument_group("sampling", argument_default=SUPPRESS)
    for name, param in PARAMS.items():
        group.add_argument(
            f"--{name.replace('_', '-')}", type=param.type, metavar=param.metavar,
            help=f"{param.help}; {param.range}, default {param.default:g}".replace("%", "%%"),
        )  # fmt: skip
    group.add_argument("--dry-breakers", action="append", metavar="TEXT", help=_BREAKER)
    for flag, kind, metavar, text in _ORDERED:
        group.add_argument(flag, type=kind, metavar=metavar, help=text)
    group.add_argument("--logit-bias", type=_bias, action="append", metavar="ID=X", help=_BIAS)


def add_experiment_arguments(parser: ArgumentParser) -> None:
    """The model, its settings, and how the curves are shown."""
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--svg", metavar="FILE", help="also draw the curves into an SVG file")
    add_report_arguments(parser)


def add_request_arguments(parser: ArgumentParser) -> None:
    """How tokens are chosen, and when to stop."""
    add_sampling_arguments(parser)
    group = add_stopping_arguments(parser)
    group.add_argument("--min-tokens", type=int, metavar="N", help=_MIN_TOKENS)
    _add_constraints(parser)


def add_stopping_arguments(parser: ArgumentParser, most: str = _MAX_TOKENS) -> "_ArgumentGroup":
    """When a text ends; their group. most: what --max-tokens says of itself."""
    group = parser.add_argument_group("stopping", argument_default=SUPPRESS)
    group.add_argument("--max-tokens", type=int, metavar="N", help=most)
    group.add_argument("--stop", action="append", metavar="STR", help=_STOP)
    group.add_argument(
        "--stop-token-ids", type=ids, action="extend", metavar="ID,ID", help=_STOP_IDS
    )
    group.add_argument("--ignore-eos", action="store_true", help=_IGNORE_EOS)
    return group


def _add_constraints(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("constraints", argument_default=SUPPRESS)
    group.add_argument(
        "--allowed-token-ids", type=ids, action="extend", metavar="ID,ID", help=_ALLOWED
    )
    group.add_argument("--bad-words", action="append", metavar="STR", help=_BAD_WORDS)
    group.add_argument("--json-schema", type=_schema, metavar="FILE", help=_JSON_SCHEMA)
    group.add_argument("--json-compact", action="store_true", help=_COMPACT)
    group.add_argument("--regex", metavar="R", help=_REGEX)
    group.add_argument("--grammar", type=Path, metavar="FILE", help=_GRAMMAR)
    group.add_argument("--choice", action="append", metavar="TEXT", help=_CHOICE)
    group.add_argument("--check", metavar="NAME", help=_CHECK)
    group.add_argument("--heal", action="store_true", help=_HEAL)


def add_report_arguments(parser: ArgumentParser, quiet: str = "no progress") -> None:
    """How a report is printed. quiet: what --quiet says of itself."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)


def add_output_arguments(
    parser: ArgumentParser, *, samples: bool = False, canvas: bool = False
) -> None:
    """Prices and quiet; with ``samples``, also JSON, several samples and log-probabilities.

    canvas: without what only a text has that is written from left to right
    """
    group = parser.add_argument_group("output")
    group.add_argument(
        "--price", type=_price, metavar="IN,OUT",
        help="price of a million input and output tokens; shows the cost",
    )  # fmt: skip
    group.add_argument("-q", "--quiet", action="store_true", help="no progress and no statistics")
    if samples:
        group.add_argument("--json", action="store_true", help=_JSON)
        if not canvas:
            group.add_argument("--align", action="store_true", default=SUPPRESS, help=_ALIGN)
        for flag, text in _SAMPLES[: 2 if canvas else None]:
            group.add_argument(flag, type=int, default=SUPPRESS, metavar="N", help=text)


def add_trace_arguments(parser: ArgumentParser) -> None:
    """Whether the run is recorded, and what of it."""
    group = parser.add_argument_group("trace", argument_default=SUPPRESS)
    group.add_argument("--trace", metavar="FILE", help=_TRACE)
    group.add_argument("--candidates", type=int, metavar="N", help=_CANDIDATES)
    group.add_argument("--track", action="append", metavar="TOKEN", help=_TRACK)


def _schema(text: str) -> str | Path:
    """JSON as it is, and anything else as a path."""
    return text if text.lstrip().startswith("{") or text.strip() == "true" else Path(text)


def _price(text: str) -> tuple[float, float]:
    try:
        price_in, price_out = (float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(
            f"write two numbers, IN,OUT, for example 0.15,0.60: {text!r}"
        ) from None
    if not (0 <= price_in < float("inf") and 0 <= price_out < float("inf")):
        raise ArgumentTypeError(f"prices must be finite and not negative: {text!r}")
    return price_in, price_out


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise ArgumentTypeError(f"write ID=X, for example 42=-100: {text!r}") from None


def ids(text: str) -> tuple[int, ...]:
    """Token ids or steps, with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"write numbers with commas, for example 2,7: {text!r}") from None
