"""Earlier names of keywords and fields, which still work: docs/interventions.md lists them."""

from collections.abc import Mapping
from typing import Any

from cutaway.errors import InputError

KEYWORDS = {"changes": "interventions", "allow_changes": "allow_interventions"}
RULE = {"luck": "noise"}
"""Of a canvas's rule: earlier name -> name."""


def current_names(
    given: Mapping[str, Any], earlier_names: Mapping[str, str] = KEYWORDS
) -> dict[str, Any]:
    """Keywords under their current names; InputError where one is given by both names."""
    for earlier, name in earlier_names.items():
        if earlier in given and name in given:
            raise InputError(f"{earlier} is the earlier name of {name}: give {name} alone")
    return {earlier_names.get(name, name): value for name, value in given.items()}
