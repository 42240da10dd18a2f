"""Hypothesis tests with few examples in the usual run, and many in the slow run."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def few_or_many(
    few: int, thorough: int, *strategies: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Any]:
    """Make two tests, as ``given`` makes one: with few examples, and a slow one with many."""

    def decorate(test: Callable[..., None]) -> Any:
        def run(examples: int, **fixtures: object) -> None:
            settings(max_examples=examples)(given(*strategies)(test))(**fixtures)

        parameters = signature(given(*strategies)(test)).parameters.values()
        count = Parameter("examples", Parameter.KEYWORD_ONLY)
        run.__signature__ = signature(run).replace(parameters=[*parameters, count])  # type: ignore[attr-defined]
        run.__doc__ = test.__doc__
        counts = [few, pytest.param(thorough, marks=pytest.mark.slow)]
        return pytest.mark.parametrize("examples", counts)(run)

    return decorate
