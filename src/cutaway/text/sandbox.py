"""The Jinja2 environment that chat templates are written for.

Knows the filters, functions and tags that ``transformers``' ``apply_chat_template``
offers, in a sandbox that cannot reach Python or change its arguments. Refuses to
know messages. Imports Jinja2, so import this module only when a template is due.
"""

import json
import re
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from cutaway.errors import CutawayError, InputError
from cutaway.text.template_bounds import BoundedEnvironment

_SAFE = (3, 1, 6)
"""The first Jinja2 without a known way out of its sandbox (CVE-2025-27516)."""

_ASKS = ("defined", "undefined", "none", "default", "d")
"""Tests and filters of what may not be given."""


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


@cache
def environment() -> BoundedEnvironment:
    """One environment for all templates: it holds no state of theirs.

    CutawayError where the installed Jinja2 would let a template out: another package's install may
    have put an older one in the place of ours.
    """
    _check(jinja2.__version__)
    made = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    made.add_filter("tojson", _to_json)
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = _now
    return made


def variables_of(source: str) -> frozenset[str]:
    """The names that a template reads and does not make itself; raises as Jinja2 does.

    What it makes counts where it asks whether it was given: that is how a default is written.
    """
    tree = environment().parse(source)
    made = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = [test.node for test in tree.find_all(nodes.Test) if test.name in _ASKS]
    asked += [one.node for one in tree.find_all(nodes.Filter) if one.name in _ASKS and one.node]
    given = {node.name for node in asked if isinstance(node, nodes.Name)}
    return frozenset(meta.find_undeclared_variables(tree) - (made - given))


def _check(version: str) -> None:
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < _SAFE:
        raise CutawayError(
            f"Jinja2 {version} lets a model's chat template read what it should not "
            "(CVE-2025-27516): pip install 'jinja2>=3.1.6'"
        )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models read it: characters as they are, none escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise InputError(f"the model's chat template refuses these messages: {message}")


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)
