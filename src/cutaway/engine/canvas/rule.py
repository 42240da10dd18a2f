"""Rules as data: in which order cells are revealed, how many in a pass, and what may be undone.

Each setting comes from a published sampler: LLaDA (arXiv 2502.09992), Dream (2508.15487), Fast-dLLM
(2505.22618), EB (2505.24857), Mask-Predict (1904.09324), ReMDM (2503.00307), LLaDA 2.1
(2602.08676), DiffusionGemma (in transformers). Flags, fields and docs take their words from this
module.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from cutaway.base.checks import (
    RULE,
    check_bool,
    check_choice,
    check_int,
    check_number,
    current_names,
    shown,
)
from cutaway.errors import InputError, Name

ORDERS = ("confidence", "margin", "entropy", "random", "left")
SCHEDULES = ("even", "dream", "linear", "cosine")
REMASKS = ("none", "lowest", "sigma", "edit", "unchosen")
STARTS = ("mask", "noise")
CACHES = ("exact", "prefix", "dual")
NOISES = ("reuse", "fresh")
_MAX_COUNT = 2**20


class ForcedCell(NamedTuple):
    """A token that a cell gets in a pass, whatever is drawn. Passes and cells count from 0."""

    pass_index: int
    cell: int
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The settings by which a canvas is revealed. Raises InputError naming the field.

    block          how many cells are finished before later ones are begun; None: all of them, or
                   the model's blocks
    order          which cells go first: those with the highest "confidence" (probability), the
                   largest "margin" between the two likeliest tokens, the lowest "entropy",
                   cells at "random", or those further to the "left"
    steps          passes for the whole canvas, by ``schedule``; None: one cell in each pass, unless
                   another setting says how many
    schedule       how many cells each of the ``steps`` reveals: "even" (LLaDA), "dream", or a
                   masking schedule in the manner of MDLM, "linear" or "cosine"
    threshold      reveal all cells whose confidence is at least this, and at least one (Fast-dLLM)
    factor         reveal the n surest cells, for the largest n whose last cell has a confidence of
                   at least 1 - factor / (n + 1) (Fast-dLLM)
    entropy_bound  reveal the most cells whose entropies, except the largest, add up to at most
                   this many nats (EB)
    draws_first    true: a cell's confidence is the probability of its drawn token, so that lucky
                   draws go first. False: it is the probability of the cell's likeliest token
    after_chain    compute figures from the distribution after the sampling stages (Dream)
    order_temperature  the order of cells is drawn, in proportion to
                   exp(figure / order_temperature); 0: the best cells go first
    remask         "lowest": mask the least likely of all revealed cells again, fewer in each pass
                   (Mask-Predict). "sigma": mask each again at random, with a probability of at most
                   ``remask_rate`` (ReMDM). "edit": replace the token of a revealed cell by another
                   with a probability above ``edit_threshold`` (LLaDA 2.1). "unchosen": each pass
                   chooses among all cells of the block, and those that it does not choose go back;
                   after the last pass each cell gets its likeliest token (DiffusionGemma)
    cache          "exact": each pass computes all rows that can have changed. The other two
                   compute fewer rows, and change bits: with "prefix", keys and values before the
                   block are those of the block's first pass (Fast-dLLM); with "dual", keys and
                   values after the block are, too
    noise          "reuse": a cell has the same Gumbel noise in each pass; "fresh": it has new noise
                   in each pass
    start          what a cell holds until it is revealed: the "mask" token, or "noise": a random
                   token, another in each pass, which is a function of seed, position and pass
    max_passes     with remask "unchosen": the most passes over a block
    t_max, t_min   the temperature falls from t_max in a block's first pass in equal steps towards
                   t_min, which a pass after the last would have; the request's temperature
                   multiplies it. Both or neither
    stability_threshold, confidence_threshold  with remask "unchosen": a block ends early when the
                   likeliest tokens are those of that many passes before, and the mean entropy of
                   its cells is below that many nats. Both or neither
    forced_cells   (pass, cell, token id): the cell gets this token in that pass, whatever the draw
                   and the other settings say; all counted from 0
    """

    block: int | None = None
    order: str = "confidence"
    steps: int | None = None
    schedule: str = "even"
    threshold: float | None = None
    factor: float | None = None
    entropy_bound: float | None = None
    draws_first: bool = False
    after_chain: bool = False
    order_temperature: float = 0.0
    remask: str = "none"
    remask_rate: float = 0.1
    edit_threshold: float = 0.9
    cache: str = "exact"
    noise: str = "reuse"
    start: str = "mask"
    max_passes: int | None = None
    t_max: float | None = None
    t_min: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None
    forced_cells: tuple[ForcedCell, ...] = ()

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name, least in _COUNT_FROM.items():
            if getattr(self, name) is not None:
                count = check_int(name, getattr(self, name), least, _COUNT_TO.get(name, _MAX_COUNT))
                object.__setattr__(self, name, count)
        for name, (low, high) in _RANGES.items():
            if getattr(self, name) is not None:
                value = check_number(name, getattr(self, name), low, high)
                object.__setattr__(self, name, value)
        for name in ("draws_first", "after_chain"):
            check_bool(name, getattr(self, name))
        object.__setattr__(self, "forced_cells", _check_forced_cells(self.forced_cells))
        counts = [name for name in COUNTS if getattr(self, name) is not None]
        if len(counts) > 1:
            raise InputError(
                counts[0], f" and {counts[1]} both say how many cells a pass reveals: give one"
            )
        if self.remask in ("lowest", "sigma") and self.steps is None:
            raise InputError(
                "steps", f": with remask {self.remask!r} say how many passes there are"
            )
        if self.remask == "unchosen" and self.max_passes is None:
            raise InputError(
                "max_passes", ": with remask 'unchosen' say how many passes a block has at most"
            )

    def check_whole(self) -> None:
        """Raise InputError for a setting that does nothing without another."""
        for name, other in (*_PAIRS, *(pair[::-1] for pair in _PAIRS)):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise InputError(name, " needs ", Name(other), ": give both, or neither")
        for name in ("max_passes", "stability_threshold"):
            if getattr(self, name) is not None and self.remask != "unchosen":
                raise InputError(name, ": only with remask 'unchosen' is a block gone over again")
        if self.t_max is not None and self.t_min is not None and self.t_max < self.t_min:
            raise InputError("t_max", f" must be at least t_min, which is {self.t_min}")
        if self.remask == "unchosen" and not any(
            getattr(self, name) is not None for name in COUNTS if name != "steps"
        ):
            raise InputError(
                "remask", " 'unchosen' needs threshold, factor or entropy_bound: give one"
            )
        if self.start == "noise" and self.cache != "exact":
            raise InputError("cache", ": a canvas of noise is computed exactly: leave it out")

    def temperature(self, index: int, passes: int) -> float:
        """Return the temperature of a pass, by its index among the passes of a block."""
        if self.t_max is None or self.t_min is None:
            return 1.0
        return self.t_min + (self.t_max - self.t_min) * ((passes - index) / passes)

    def to_json(self) -> dict[str, Any]:
        """The settings that differ from the default rule."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["forced_cells"] = [list(cell) for cell in self.forced_cells]
        plain = {field.name: field.default for field in fields(self)} | {"forced_cells": []}
        return {name: value for name, value in values.items() if value != plain[name]}


def _check_forced_cells(value: Any) -> tuple[ForcedCell, ...]:
    name = Name("forced_cells", prose=": a number")
    try:
        return tuple(ForcedCell(*(check_int(name, n, 0) for n in cell)) for cell in value)
    except TypeError:
        raise InputError(
            "forced_cells", f" must be (pass, cell, token id) each, not {shown(value)}"
        ) from None


SETTINGS = ("rule", *(field.name for field in fields(Rule)))
"""The keys of a rule's settings: "rule", a name of ``RULES``, and the fields of ``Rule``."""
COUNTS = ("steps", "threshold", "factor", "entropy_bound")
_OF_UNCHOSEN = ("max_passes", "stability_threshold", "confidence_threshold")
_CHOICES = {
    "order": ORDERS, "schedule": SCHEDULES, "remask": REMASKS, "cache": CACHES, "noise": NOISES,
    "start": STARTS,
}  # fmt: skip
_COUNT_FROM = {"block": 1, "steps": 1, "max_passes": 1, "stability_threshold": 0}
_COUNT_TO = {"max_passes": 2**12}
_PAIRS = (("t_max", "t_min"), ("stability_threshold", "confidence_threshold"))
_RANGES = {
    "threshold": (0.0, 1.0), "factor": (0.0, 1e6), "entropy_bound": (0.0, 1e6),
    "order_temperature": (0.0, 1e6), "remask_rate": (0.0, 1.0), "edit_threshold": (0.0, 1.0),
    "t_max": (0.01, 100.0), "t_min": (0.0, 100.0), "confidence_threshold": (0.0, 1e6),
}  # fmt: skip

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "confidence": Rule(),
        "margin": Rule(order="margin"),
        "entropy": Rule(order="entropy"),
        "random": Rule(order="random"),
        "left": Rule(order="left"),
        "llada": Rule(draws_first=True),
        "dream": Rule(order="entropy", schedule="dream", draws_first=True, after_chain=True),
        "threshold": Rule(threshold=0.9),
        "factor": Rule(factor=1.0),
        "entropy-bound": Rule(order="entropy", entropy_bound=0.1),
        "mask-predict": Rule(draws_first=True, remask="lowest", steps=10),
        "remdm": Rule(order="random", schedule="linear", remask="sigma", steps=64),
        "edit": Rule(threshold=0.9, remask="edit"),
        "diffusion-gemma": Rule(
            order="entropy",
            entropy_bound=0.1,
            after_chain=True,
            noise="fresh",
            start="noise",
            remask="unchosen",
            max_passes=48,
            t_max=0.8,
            t_min=0.4,
            stability_threshold=1,
            confidence_threshold=0.005,
        ),
    }
)
"""Rules by name; settings beside a name override the rule's own."""


def with_usual(value: Any, usual: Mapping[str, Any]) -> Any:
    """Return a request's rule with a model's usual settings, where the rule is the model's own.

    usual: the model's settings, "rule" among them
    """
    settings = {"rule": value} if isinstance(value, str) else {} if value is True else value
    if not isinstance(settings, Mapping) or settings.get("rule", usual["rule"]) != usual["rule"]:
        return value
    left_out = _left_out(settings)
    defaults = {name: setting for name, setting in usual.items() if name not in left_out}
    return {**defaults, **settings}


def _left_out(settings: Mapping[str, Any]) -> set[str]:
    """Return the settings of a rule that these replace, or that do nothing beside them."""
    names = {*COUNTS} if any(settings.get(count) is not None for count in COUNTS) else set[str]()
    usual = "unchosen" if settings.get("steps") is None else "none"
    if settings.get("remask", usual) != "unchosen":
        names.update(_OF_UNCHOSEN)
    return names


def read_rule(value: Any) -> Rule:
    """Return the rule that a name, a mapping of ``SETTINGS`` or True (the default) gives.

    InputError for any other value.
    """
    if isinstance(value, Rule):
        return value
    if value is True:
        return Rule()
    settings: Any = {"rule": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping):
        raise InputError("denoise", f" must be a rule's name or its settings, not {shown(value)}")
    settings = current_names(settings, RULE)
    overrides: dict[str, Any] = {
        name: setting for name, setting in settings.items() if name != "rule"
    }
    for name in settings:
        if name not in SETTINGS:
            raise InputError("denoise", f": unknown setting {name!r}; known: {', '.join(SETTINGS)}")
    name = settings.get("rule", "confidence")
    check_choice("rule", name, tuple(RULES))
    if overrides.get("noise") == "held":  # its earlier name
        overrides["noise"] = "reuse"
    overrides = {**dict.fromkeys(_left_out(overrides)), **overrides}
    if RULES[name].remask == "unchosen" and overrides.get("steps") is not None:
        overrides.setdefault("remask", "none")
    return replace(RULES[name], **overrides)


# -- each setting in words -------------------------------------------------------------------------


class Setting(NamedTuple):
    """A setting's description for a user.

    type     type of its value: int, float, str, bool
    metavar  the value's name in help texts
    choices  the values that a str may have; () for other types
    """

    type: type
    metavar: str
    help: str
    choices: tuple[str, ...] = ()


def _choice_setting(metavar: str, choices: tuple[str, ...], help: str) -> Setting:
    return Setting(str, metavar, f"{help}: {', '.join(choices)}", choices)


SETTING_WORDS: Mapping[str, Setting] = MappingProxyType(
    {
        "rule": _choice_setting(
            "NAME", tuple(RULES), "a rule by name; other settings override its own"
        ),
        "block": Setting(int, "N", "cells that are finished before later ones are begun"),
        "order": _choice_setting("ORDER", ORDERS, "which cells go first"),
        "steps": Setting(int, "N", "passes for the whole canvas"),
        "schedule": _choice_setting("NAME", SCHEDULES, "how many cells each of the steps reveals"),
        "threshold": Setting(
            float, "P", "reveal all cells of at least this confidence, 0 to 1, and at least one"
        ),
        "factor": Setting(
            float,
            "F",
            "reveal the n surest cells, the most of which each is at least 1 - F / (n + 1) sure",
        ),
        "entropy_bound": Setting(
            float,
            "NATS",
            "reveal the surest cells whose entropies without the largest sum to at most this",
        ),
        "draws_first": Setting(
            bool, "", "confidence is that of the drawn token, not of the likeliest"
        ),
        "after_chain": Setting(
            bool,
            "",
            "figures are of the distribution after the sampling stages, not of the model's own",
        ),
        "order_temperature": Setting(
            float, "T", "draw the order, in proportion to exp(figure / T); 0: the best goes first"
        ),
        "remask": _choice_setting("HOW", REMASKS, "what is taken back of what was revealed"),
        "remask_rate": Setting(
            float, "P", "with remask sigma: the largest probability that a cell is masked again"
        ),
        "edit_threshold": Setting(
            float,
            "P",
            "with remask edit: the probability above which another token replaces a revealed one",
        ),
        "cache": _choice_setting(
            "HOW", CACHES, "what a pass computes again; all but exact change the bits"
        ),
        "noise": _choice_setting(
            "NOISE", NOISES, "whether a cell has the same Gumbel noise in each pass, or new noise"
        ),
        "start": _choice_setting(
            "HOW", STARTS, "what a cell holds until it is revealed: the mask token, or random ones"
        ),
        "max_passes": Setting(int, "N", "with remask unchosen: the most passes over a block"),
        "t_max": Setting(float, "T", "temperature of a block's first pass; it falls towards t_min"),
        "t_min": Setting(float, "T", "temperature towards which a block's passes fall from t_max"),
        "stability_threshold": Setting(
            int,
            "N",
            "end a block once its likeliest tokens are those of N passes before; needs the next",
        ),
        "confidence_threshold": Setting(
            float, "NATS", "end a block only once the mean entropy of its cells is below this"
        ),
        "forced_cells": Setting(tuple, "PASS:CELL:ID", "the cell gets this token in that pass"),
    }
)
"""The description of each of ``SETTINGS`` for a user, in their order."""


def rule_of_text(text: str, usual: Mapping[str, Any] | None = None) -> Rule:
    """Return the rule of a line such as "llada,steps=8,block=4": a name, then other settings.

    usual: see ``with_usual``; None: the model has none
    InputError where the line is no rule.
    """
    name, *assignments = text.split(",")
    values: dict[str, Any] = {"rule": name.strip()}
    for assignment in assignments:
        setting, _, value = (part.strip() for part in assignment.partition("="))
        setting = RULE.get(setting, setting.replace("-", "_"))
        if setting not in SETTING_WORDS or setting in ("rule", "forced_cells"):
            names = [names for names in SETTING_WORDS if names not in ("rule", "forced_cells")]
            raise InputError(
                "rule", f" {text!r}: unknown setting {setting!r}; known: {', '.join(names)}"
            )
        values[setting] = _value(text, setting, value)
    return read_rule(with_usual(values, usual) if usual else values)


def _value(text: str, setting: str, value: str) -> Any:
    kind = SETTING_WORDS[setting].type
    try:
        return {"true": True, "false": False}[value] if kind is bool else kind(value)
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise InputError(
            "rule", f" {text!r}: {setting} must be {expected}, not {value!r}"
        ) from None
