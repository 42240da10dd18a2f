"""The table of the chain's stages: the one place where a stage is declared.

The chain, the presets' orders, the letters of the ledger, the command line's flags, the server's
fields, the page's controls and the table in docs/sampling.md come from this table. A stage is an
entry here, its parameters in params.py, its definition in definitions.py and its kernel in
native/sampler_stages.cpp.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.sampling import definitions
from cutaway.sampling.definitions import Candidates, Context
from cutaway.sampling.fixed_math import scalar_log

_MAX_TOP_K = 2**31  # beyond any vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage.

    letter    its letter in a ledger
    help      its effect, in one sentence
    source    the publication or program that defines it
    rule      a setting's name in the chain's rule -> its field of SamplingParams
    switches  the fields that turn it on: it is off if all of them are off
    filter    whether it only removes tokens
    apply     its definition
    native    the numbers that its kernel takes; None without a kernel
    history   whether it reads the text so far
    law       how its one number acts, for drawings that cannot ask the model: "divide" the logits,
              keep a "count", a "share", or those near the best by a "ratio"; "": none of these
    """

    letter: str
    label: str
    help: str
    source: str
    rule: Mapping[str, str] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    filter: bool = False
    apply: Callable[[Candidates, Mapping[str, Any], Context], Candidates]
    native: Callable[[Mapping[str, Any]], tuple[float, ...]] | None
    history: bool = False
    law: str = ""

    @property
    def params(self) -> tuple[str, ...]:
        """The fields of SamplingParams that belong to it."""
        return (*self.rule.values(),)

    @property
    def at_zero(self) -> bool:
        """Whether it is applied at temperature 0, too."""
        return not (self.filter or "temperature" in self.switches)


STAGES: Mapping[str, StageSpec] = {
    "logit_bias": StageSpec(
        letter="B",
        label="logit bias",
        help="Adds to the logits of chosen tokens.",
        source="OpenAI's `logit_bias`",
        rule={"bias": "logit_bias"},
        switches=("logit_bias",),
        apply=definitions.logit_bias,
        native=lambda _: (),
    ),
    "penalties": StageSpec(
        letter="R",
        label="penalties",
        help="Lowers the logits of tokens that were seen before.",
        source="repetition: Keskar et al. 2019, arXiv 1909.05858; the others: OpenAI",
        rule={
            "repetition": "repetition_penalty",
            "presence": "presence_penalty",
            "frequency": "frequency_penalty",
        },
        switches=("repetition_penalty", "presence_penalty", "frequency_penalty"),
        apply=definitions.penalties,
        native=lambda rule: (rule["repetition"], rule["presence"], rule["frequency"]),
        history=True,
    ),
    "dry": StageSpec(
        letter="D",
        label="DRY",
        help="Lowers the logits of tokens that would go on repeating an earlier passage.",
        source="p-e-w 2024, text-generation-webui #5677; llama.cpp's `dry`",
        rule={
            "multiplier": "dry_multiplier",
            "base": "dry_base",
            "allowed_length": "dry_allowed_length",
            "last_n": "dry_penalty_last_n",
            "breakers": "dry_breakers",
        },
        switches=("dry_multiplier",),
        apply=definitions.dry,
        native=lambda rule: tuple(
            rule[k] for k in ("multiplier", "base", "allowed_length", "last_n")
        ),
        history=True,
    ),
    "processors": StageSpec(
        letter="F",
        label="processors",
        help="Functions of the caller's own.",
        source="—",
        rule={"processors": "processors"},
        switches=("processors",),
        apply=definitions.processors,
        native=None,
    ),
    "constraint": StageSpec(
        letter="G",
        label="constraint",
        help="Keeps the tokens that the request's grammar and its other constraints allow.",
        source="—",
        # no setting turns it on: the request's constraint does
        apply=definitions.constraint,
        native=lambda _: (),
    ),
    "temperature": StageSpec(
        letter="T",
        label="temperature",
        help="Divides the logits.",
        source="Ackley, Hinton & Sejnowski 1985",
        rule={"temperature": "temperature"},
        switches=("temperature",),
        apply=definitions.temperature,
        native=lambda rule: (rule["temperature"],),
        law="divide",
    ),
    "top_k": StageSpec(
        letter="K",
        label="top-k",
        help="Keeps the likeliest.",
        source="Fan et al. 2018, arXiv 1805.04833",
        filter=True,
        rule={"k": "top_k"},
        switches=("top_k",),
        apply=definitions.top_k,
        native=lambda rule: (min(rule["k"], _MAX_TOP_K),),
        law="count",
    ),
    "typical": StageSpec(
        letter="Y",
        label="typical",
        help="Keeps the tokens whose surprise is nearest to the entropy.",
        source="Meister et al. 2022, arXiv 2202.00666",
        filter=True,
        rule={"p": "typical_p"},
        switches=("typical_p",),
        apply=definitions.typical,
        native=lambda rule: (rule["p"],),
    ),
    "top_p": StageSpec(
        letter="P",
        label="top-p",
        help="Keeps the likeliest that reach a share together.",
        source="Holtzman et al. 2019, arXiv 1904.09751",
        filter=True,
        rule={"p": "top_p"},
        switches=("top_p",),
        apply=definitions.top_p,
        native=lambda rule: (rule["p"],),
        law="share",
    ),
    "min_p": StageSpec(
        letter="M",
        label="min-p",
        help="Keeps those near the best in probability.",
        source="Nguyen et al. 2024, arXiv 2407.01082",
        filter=True,
        rule={"p": "min_p"},
        switches=("min_p",),
        apply=definitions.min_p,
        native=lambda rule: (scalar_log(rule["p"]),),
        law="ratio",
    ),
    "top_n_sigma": StageSpec(
        letter="S",
        label="top-n-sigma",
        help="Keeps the logits within some standard deviations of the highest.",
        source="Tang et al. 2024, arXiv 2411.07641",
        filter=True,
        rule={"n": "top_n_sigma"},
        switches=("top_n_sigma",),
        apply=definitions.top_n_sigma,
        native=lambda rule: (rule["n"],),
    ),
    "xtc": StageSpec(
        letter="X",
        label="XTC",
        help="At times removes the likeliest tokens, where another is likely, too.",
        source="p-e-w 2024, text-generation-webui #6335; llama.cpp's `xtc`",
        filter=True,
        rule={"probability": "xtc_probability", "threshold": "xtc_threshold"},
        switches=("xtc_probability",),
        apply=definitions.xtc,
        native=lambda rule: (rule["probability"], rule["threshold"]),
    ),
}

_FIRST = ("logit_bias", "penalties", "dry", "processors", "constraint")
# The order of the published definitions and of transformers: every filter judges the
# distribution after the temperature, from which the token is drawn.
_AS_PUBLISHED = (
    *_FIRST, "temperature", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc",
)  # fmt: skip

PRESETS: Mapping[str, tuple[str, ...]] = {
    "cutaway": _AS_PUBLISHED,
    "hf": (*_FIRST, "temperature", "top_k", "top_p", "min_p", "typical", "top_n_sigma", "xtc"),
    "vllm": (*_FIRST, "temperature", "min_p", "top_k", "top_p", "top_n_sigma", "typical", "xtc"),
    "llama.cpp": (
        *_FIRST, "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature",
    ),
    "mlx-lm": (*_FIRST, "top_p", "min_p", "xtc", "top_k", "top_n_sigma", "typical", "temperature"),
}  # fmt: skip
"""The order of the stages in each engine, by which the same settings mean different things.

Stages that an engine lacks come after its own, but before the temperature if that is its last.
"""
