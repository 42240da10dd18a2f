"""Lessons of a minute, each a page of recorded runs whose sentences open places in them.

A recipe writes a lesson's runs and its sentences, and takes every figure from these runs; what it
asserts would fail with another model or other arithmetic. The package contains what the recipes
wrote (data/, rewritten by ``tools/lessons.py``), so that a lesson opens at once and needs no model.

Knows which lessons there are, and in which order they are best read.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from cutaway.base.checks import check_choice

if TYPE_CHECKING:
    from cutaway.features.lessons.desk import Desk
    from cutaway.features.lessons.lesson import Lesson

LESSONS: Mapping[str, str] = MappingProxyType(
    {
        "by-hand": "basics.five_steps",
        "softmax": "basics.softmax",
        "temperature": "choice.temperature",
        "stages": "choice.stages",
        "strategies": "texts.strategies",
        "snowball": "choice.snowball",
        "exposure": "texts.exposure_bias",
        "why-it-stopped": "form.why_it_stopped",
        "endings": "basics.endings",
        "streaming": "rows.streaming",
        "cost": "basics.cost",
        "cache": "rows.cache",
        "speculation": "model.speculation",
        "causal-mask": "rows.causal_mask",
        "induction": "model.induction",
        "intervention": "model.intervention",
        "tool-call": "form.tool_call",
        "structured-output": "ways.structured_output",
        "canvas": "model.canvas",
        "noise": "noise.noise",
        "three-other-ways": "ways.three_other_ways",
        "quantisations": "model.quantisations",
    }
)
"""The lessons by name, in the order of the index; each with its recipe's module and function."""


def recipe(name: str) -> "Callable[[Desk], Lesson]":
    """Return the function that writes a lesson's runs. InputError if there is no such lesson."""
    check_choice("lesson", name, LESSONS)
    module, _, function = LESSONS[name].partition(".")
    recipes = import_module(f"cutaway.features.lessons.recipes.{module}")
    return getattr(recipes, function)  # type: ignore[no-any-return]
