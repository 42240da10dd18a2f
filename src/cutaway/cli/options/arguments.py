"""Options that several commands share.

Knows argparse. An unused option is absent from the namespace, so that each default is written once,
in the code that uses it.
"""

import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Container, Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cutaway.errors import InputError
from cutaway.requests.keywords import KEYWORDS, Flag, Kind
from cutaway.sampling import PARAMS

if TYPE_CHECKING:
    from argparse import Action, _ActionsContainer, _ArgumentGroup


_JSON = "print one JSON document instead, or a list of them if --n is above 1"
_FAIL_IF_CUT = "exit code 3 if a text was cut by --max-tokens or the context, instead of 0"
_KV_TOKENS = (
    "size of the KV cache in tokens, for all texts that run at once; --context limits each; "
    "default: --context, or 8192 if that is more"
)
QUANTIZE = (
    "quantise F32, F16 or BF16 weights while loading: q8_0, q4_k_m, …; 'cutaway quantize' "
    "does it once, into a file"
)
KV = (
    "number format of the KV cache: f16 (default), q8_0 (about half the memory), q5_1 or q4_0; or "
    "KEYS,VALUES: q8_0,q4_0. Logits differ a little; 'cutaway doctor' measures it"
)
OFFLOAD = (
    "for a model larger than memory: keep its weights in a temporary file in DIR, deleted on exit; "
    "each token reads from it what does not fit into memory"
)
_LORA = (
    "an adapter for all texts, a GGUF file or a folder of PEFT; X (default 1) multiplies what it "
    "adds; FILE:X,FILE:X adds several"
)
_NO_PREFIX_CACHE = "compute every prompt in full, even if an earlier one began with the same tokens"
_CACHE_DIR = (
    "keep the prefix cache in this folder too, for later runs and other processes; whoever can "
    "read the folder can find out the prompts; 'cutaway cache show DIR' and 'clear DIR'"
)
_CACHE_SIZE = (
    "size of the folder of --cache-dir, such as 20GB: the least recently used goes first; "
    "default 10GB"
)
_CONTROL_VECTOR = (
    "add X (default 1) times the vectors of this GGUF file (repeng, llama.cpp), each after its "
    "layer; repeat for more"
)
REQUEST = ("sampling", "stopping", "constraints")
"""Titles of groups of flags: on choosing tokens, on ending a text, and on allowed tokens."""


def add_trace(parser: ArgumentParser) -> None:
    """Add the positional argument for the trace that a verb reads."""
    parser.add_argument("file", metavar="FILE", help="a trace")


def add_step(parser: ArgumentParser) -> None:
    """Add arguments for a trace, for a step to compute again, and for a token to compare with."""
    add_trace(parser)
    parser.add_argument(
        "--step", type=read_step, required=True, metavar="N", help="of the text, from 1"
    )
    parser.add_argument(
        "--rival", metavar="TOKEN",
        help="the token, as text or id, to compare the step's token with; default: the likeliest "
        "other",
    )  # fmt: skip


def add_model(
    group: "_ActionsContainer", default: str = "smollm2", *, several: bool = False, more: str = ""
) -> None:
    """Add -m with its default. several: -m may be repeated; more: the end of its help"""
    group.add_argument(
        "-m", "--model", metavar="NAME|PATH", action="append" if several else "store",
        help="an alias ('cutaway models' lists them), a .gguf file, a folder that transformers "
        f"saved, or hf:org/repo[:file]; default {default}{more}",
    )  # fmt: skip


def add_model_arguments(parser: ArgumentParser, **more: Any) -> None:
    """Add -m, and the options to load and run a model. more: for ``add_loading_arguments``"""
    group = add_loading_arguments(parser, **more)
    group.add_argument(
        "--no-prefix-cache", dest="prefix_cache", action="store_false", help=_NO_PREFIX_CACHE
    )
    group.add_argument("--cache-dir", metavar="DIR", help=_CACHE_DIR)
    group.add_argument("--cache-size", type=size, metavar="SIZE", help=_CACHE_SIZE)
    add_keywords(group, "model")


def add_loading_arguments(
    parser: ArgumentParser, default: str = "smollm2", *, several: bool = False, more: str = "",
    lora: "str | type[Action]" = "store",
) -> "_ArgumentGroup":  # fmt: skip
    """Add -m, as ``add_model`` does, and the options to load a model; return their group.

    lora: argparse's action for --lora
    """
    group = parser.add_argument_group("model", argument_default=SUPPRESS)
    add_model(group, default, several=several, more=more)
    group.add_argument(
        "--backend", metavar="NAME",
        help="what computes the model: cpu (default if it was built), gpu or reference",
    )  # fmt: skip
    group.add_argument("--quantize", metavar="FORMAT", help=QUANTIZE)
    group.add_argument("--kv", metavar="FORMAT", help=KV)
    group.add_argument("--lora", action=lora, metavar="FILE[:X]", help=_LORA)
    group.add_argument("--offload-folder", metavar="DIR", help=OFFLOAD)
    group.add_argument(
        "--threads", type=int, metavar="N", help="compute threads; 'cutaway bench' measures"
    )
    group.add_argument(
        "--context", type=int, metavar="N",
        help="maximum tokens of one text, prompt and output together, 2 or more; default: the "
        "model's",
    )  # fmt: skip
    group.add_argument("--kv-tokens", type=int, metavar="N", help=_KV_TOKENS)
    return group


def size(text: str) -> int:
    """Read a size such as "8GB" or "6GiB" as bytes."""
    match, nbytes = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper()), 0
    if match:
        base = 1024 if match[3] else 1000
        nbytes = int(float(match[1]) * base ** " KMGT".index(match[2] or " "))
    if not nbytes:
        raise ArgumentTypeError(f"write a size as 8GB or 6GiB, not {text}")
    return nbytes


def add_number(
    parser: "_ActionsContainer", flag: str, default: float, help: str, metavar: str = "N",
    **more: Any,
) -> None:  # fmt: skip
    """Add an option whose type is that of its default; its help ends with the default."""
    parser.add_argument(
        flag, type=type(default), default=default, metavar=metavar,
        help=f"{help}; default {default:g}", **more,
    )  # fmt: skip


def add_keywords(
    group: "_ActionsContainer", title: str, *, but: Container[str] = (),
    help: Mapping[str, str] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Add to a group the flags that the table of keywords lists under ``title``, except ``but``.

    help: keyword -> a help that replaces the help in the table
    """
    for name, row in KEYWORDS.items():
        if isinstance(row.flag, Flag) and row.flag.group == title and name not in but:
            add_keyword(group, name, help.get(name))


def add_keyword(
    group: "_ActionsContainer", name: str, help: str | None = None, **more: Any
) -> None:
    """Add the flag of a keyword as the keyword's row in the table describes it.

    help: replaces the help in the row; more: further arguments for argparse
    """
    row = KEYWORDS[name]
    assert isinstance(row.flag, Flag)
    kind_arguments = _KIND_ARGUMENTS[row.kind]
    parts = [help or row.help]
    if "action" in kind_arguments and row.flag.metavar:
        parts.append("repeat for more")
    if row.flag.more:
        parts.append(row.flag.more)
    elif row.kind in ("number", "int") and row.default is not None:
        parts[-1] += f", default {row.default:g}"
    more |= {"type": PARAMS[name].type} if row.kind == "number" else {}
    more |= {"metavar": row.flag.metavar} if row.flag.metavar else {}
    group.add_argument(
        row.flag_name(name), dest=name, default=SUPPRESS,
        help="; ".join(parts).replace("%", "%%"), **kind_arguments, **more,
    )  # fmt: skip


def add_groups(parser: ArgumentParser, *titles: str, **more: Any) -> None:
    """Add a group of flags for each title. more: keyword arguments for ``add_keywords``"""
    for title in titles:
        group = parser.add_argument_group(title, argument_default=SUPPRESS)
        add_keywords(group, title, **more)


def add_interventions(parser: ArgumentParser) -> None:
    """Add --control-vector and --intervention, which also has its earlier name, --change."""
    group = parser.add_argument_group("interventions", argument_default=SUPPRESS)
    add_keywords(group, "interventions")
    group.add_argument("--change", dest="interventions", action="append", help=SUPPRESS)
    group.add_argument(
        "--control-vector", type=_control_vector, action="append", metavar="FILE[:X]",
        help=_CONTROL_VECTOR,
    )  # fmt: skip


def add_experiment_arguments(parser: ArgumentParser) -> None:
    """Add the options of the model, of its sampling, and of the report on the curves."""
    add_model_arguments(parser)
    add_groups(parser, "sampling")
    parser.add_argument("--svg", metavar="FILE", help="also draw the curves into an SVG file")
    add_report_arguments(parser)


def add_report_arguments(parser: ArgumentParser, quiet: str = "no progress") -> None:
    """Add --json and --quiet. quiet: the help of --quiet"""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)


def add_output_arguments(
    parser: ArgumentParser, *, samples: bool = False, canvas: bool = False
) -> None:
    """Add --price and --quiet; with ``samples``, also --json and the options for samples.

    canvas: leave out the flags that only a text written from left to right can have
    """
    group = parser.add_argument_group("output")
    group.add_argument(
        "--price", type=_price, metavar="IN,OUT",
        help="price of a million input tokens, and of a million output tokens: show what the text "
        "costs",
    )  # fmt: skip
    group.add_argument("-q", "--quiet", action="store_true", help="no progress and no statistics")
    if samples:
        group.add_argument("--json", action="store_true", help=_JSON)
        if not canvas:
            group.add_argument("--fail-if-cut", action="store_true", help=_FAIL_IF_CUT)
        add_keywords(group, "output", but=("align", "prompt_logprobs") if canvas else ())


def _schema(text: str) -> str | Path:
    """Return a text that is a JSON schema unchanged, and any other text as a path."""
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


def _control_vector(text: str) -> tuple[str, float]:
    """Return (FILE, X) for FILE:X, and (FILE, 1) for FILE."""
    path, _, strength = text.rpartition(":")
    try:
        return (path, float(strength)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0


def read_step(text: str, plural: str = "steps") -> int:
    """Read the number of a step, counted from 1, as its index. plural: of other things"""
    from cutaway.base.counting import count_from_0

    try:
        return count_from_0(int(text), plural)
    except InputError as error:
        raise ArgumentTypeError(str(error)) from None
    except ValueError:
        raise ArgumentTypeError(f"{plural} are whole numbers, from 1 on, not {text!r}") from None


read_pass, read_cell = (partial(read_step, plural=plural) for plural in ("passes", "cells"))


def read_steps(text: str) -> tuple[int, ...]:
    """Read comma-separated numbers of steps, counted from 1, as indices."""
    return tuple(map(read_step, text.split(",")))


def numbers(text: str) -> tuple[int, ...]:
    """Read comma-separated whole numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"write numbers with commas, for example 2,7: {text!r}") from None


_KIND_ARGUMENTS: Mapping[Kind, dict[str, Any]] = {
    "number": {},
    "int": {"type": int},
    "bool": {"action": "store_true"},
    "off": {"action": "store_false"},
    "text": {},
    "file": {},
    "texts": {"action": "append"},
    "stops": {"action": "append"},
    "tokens": {"action": "append"},
    "breakers": {"action": "append"},
    "interventions": {"action": "append"},
    "ids": {"type": numbers, "action": "extend"},
    "biases": {"type": _bias, "action": "append"},
    "names": {"type": methodcaller("split", ",")},
    "schema": {"type": _schema},
    "grammar": {"type": Path},
    "rule": {},
}
"""Kind of a keyword -> keyword arguments of argparse's ``add_argument``."""


# -- the rule that reveals a canvas: its settings, its name alone, or whole rules ------------------


def add_rule_arguments(parser: ArgumentParser) -> None:
    """Add a flag for each setting of a rule; an unused flag is absent from the namespace."""
    from cutaway.engine.canvas import SETTING_WORDS

    group = parser.add_argument_group("rule", argument_default=SUPPRESS)
    for name, setting in SETTING_WORDS.items():
        flag, help = f"--{name.replace('_', '-')}", setting.help
        if setting.type is bool:
            group.add_argument(flag, action="store_true", help=help)
        elif setting.type is tuple:
            about = f"{help}, counted from 1; repeat for more"
            group.add_argument(
                flag, type=_forced_cell, action="append", metavar=setting.metavar, help=about
            )
        else:
            group.add_argument(flag, type=setting.type, metavar=setting.metavar, help=help)
    group.add_argument("--luck", dest="noise", help=SUPPRESS)  # its earlier name


def add_rule_name(parser: ArgumentParser) -> None:
    """Add --denoise RULE, with which each answer is a canvas."""
    from cutaway.engine.canvas import RULES

    help = f"{KEYWORDS['denoise'].help}; {', '.join(RULES)}"
    add_keyword(parser, "denoise", help, choices=tuple(RULES))


def add_rules(parser: ArgumentParser, help: str) -> None:
    """Add --rule, which may be repeated; each value is a rule with its settings, as a text."""
    parser.add_argument("--rule", action="append", dest="rules", metavar="RULE", help=help)


def rules(args: Namespace) -> list[str] | None:
    """Return the rules of --rule, if any; check them here, before a model is loaded."""
    from cutaway.engine.canvas import rule_of_text

    texts: list[str] | None = args.rules
    for rule in texts or ():
        rule_of_text(rule)
    return texts


def _forced_cell(text: str) -> tuple[int, ...]:
    try:
        pass_text, cell_text, id_text = text.split(":")
        return read_pass(pass_text), read_cell(cell_text), int(id_text)
    except ValueError:
        raise ArgumentTypeError(f"write PASS:CELL:ID, for example 3:9:77: {text!r}") from None
