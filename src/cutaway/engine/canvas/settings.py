"""The help text of each setting of a rule: for flags, fields and docs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cutaway.base.earlier_names import RULE
from cutaway.engine.canvas.rule import (
    CACHES,
    NOISES,
    ORDERS,
    REMASKS,
    RULES,
    SCHEDULES,
    Rule,
    read_rule,
)  # fmt: skip
from cutaway.errors import InputError


class Setting(NamedTuple):
    """What a user reads about a setting.

    type     of its value: int, float, str, bool
    metavar  the value's name in help texts
    choices  of a text; (): the value is no text
    """

    type: type
    metavar: str
    help: str
    choices: tuple[str, ...] = ()


def _named(metavar: str, choices: tuple[str, ...], help: str) -> Setting:
    return Setting(str, metavar, f"{help}: {', '.join(choices)}", choices)


SETTING_WORDS: Mapping[str, Setting] = MappingProxyType(
    {
        "rule": _named("NAME", tuple(RULES), "a rule by name; other settings override its own"),
        "block": Setting(int, "N", "cells that are finished before later ones are begun"),
        "order": _named("ORDER", ORDERS, "which cells go first"),
        "steps": Setting(int, "N", "passes for the whole canvas"),
        "schedule": _named("NAME", SCHEDULES, "how many cells each of the steps reveals"),
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
        "remask": _named("HOW", REMASKS, "what is taken back of what was revealed"),
        "remask_rate": Setting(
            float, "P", "with remask sigma: the largest probability that a cell is masked again"
        ),
        "edit_threshold": Setting(
            float,
            "P",
            "with remask edit: the probability above which another token replaces a revealed one",
        ),
        "cache": _named("HOW", CACHES, "what a pass computes again; all but exact change the bits"),
        "noise": _named(
            "NOISE", NOISES, "whether a cell has the same Gumbel noise in each pass, or new noise"
        ),
        "forced_cells": Setting(
            tuple, "PASS:CELL:ID", "the cell gets this token in that pass, counted from 0"
        ),
    }
)
"""By name, "rule" first: one of ``canvas.SETTINGS`` each, in their order."""


def rule_of_text(text: str) -> Rule:
    """A rule on one line: its name, and settings that override it, as in "llada,steps=8,block=4".

    InputError where it is none.
    """
    name, *given = text.split(",")
    values: dict[str, Any] = {"rule": name.strip()}
    for one in given:
        setting, _, value = (part.strip() for part in one.partition("="))
        setting = RULE.get(setting, setting.replace("-", "_"))
        if setting not in SETTING_WORDS or setting in ("rule", "forced_cells"):
            known = [known for known in SETTING_WORDS if known not in ("rule", "forced_cells")]
            raise InputError(
                f"rule {text!r}: unknown setting {setting!r}; known: {', '.join(known)}"
            )
        values[setting] = _value(text, setting, value)
    return read_rule(values)


def _value(text: str, setting: str, value: str) -> Any:
    kind = SETTING_WORDS[setting].type
    try:
        return {"true": True, "false": False}[value] if kind is bool else kind(value)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise InputError(f"rule {text!r}: {setting} must be {wanted}, not {value!r}") from None
