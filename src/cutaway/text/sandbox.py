"""The Jinja2 environment that chat templates are written for, in a sandbox with an allowance.

Knows the filters, functions and tags that ``transformers``' ``apply_chat_template`` offers. A
template is a program of whoever made the model, which can neither reach Python nor change its
arguments here. Refuses to know messages. Imports Jinja2, so import this module only when a template
is due.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cache, wraps
from itertools import chain
from time import thread_time
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from cutaway.errors import CutawayError, InputError

# -- what a template may take ------------------------------------------------------------------
# By loops, doublings and widths three lines of a template run for days or fill the memory. What
# Jinja2's sandbox has no limit for has one here: each loop, call, filter and operator pays from an
# allowance before it makes anything.

_STEP, _CALL = 16, 64  # what a turn of a loop and a call cost; a character that is made costs 1
_READ = 8  # what a character costs that a method or a filter reads
_BASE, _EACH = 2**25, 1024  # what a rendering may cost, and what for each character it is given
_LARGEST, _LARGER = 2**22, 16  # a list with all that is in it, and for each character given
_SECONDS, _SLOWEST = 10.0, 10_000  # of a processor; characters given that make it a second more
_OFTEN = 256  # payments after which the time is looked at
_WIDEST = 10_000  # a width, a count or an indentation
_MOST_BITS = 2**14  # of a whole number
_INDENT = 16

_UNSAFE_METHODS = frozenset(("translate", "maketrans", "expandtabs"))
_REMOVED = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters that take time or memory beyond what they are given, and no chat template needs."""
_ANY_NUMBER = frozenset(("d", "default", "float", "int", "map", "max", "min", "reject", "select"))
_AT_ONCE = frozenset(("count", "first", "last", "length"))
_FORMAT = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%(]*(?:\*|\d{5})|\{[^{}]*:[^{}]*(?:\{|\d{5})")
_LOOP, _MADE, _JOINED = " loop", " made", " joined"  # filters whose names no template can write


class TooMuchError(Exception):
    """A template takes more than it may."""


class Allowance:
    """What is left of one rendering.

    given: characters of what the template is given
    """

    def __init__(self, given: int) -> None:
        self._left, self._largest = _BASE + _EACH * given, _LARGEST + _LARGER * given
        self._seconds, self._payments = _SECONDS + given / _SLOWEST, 0
        self._until = thread_time() + self._seconds
        self._sizes: dict[int, tuple[Any, int]] = {}  # by id, of what is kept here

    def pay(self, cost: int) -> None:
        """TooMuchError where there is not so much left, or no time."""
        self._left -= cost
        self._payments += 1
        if self._left < 0:
            raise TooMuchError("it does more than any conversation of this length needs")
        if self._payments % _OFTEN == 0 and thread_time() > self._until:
            raise TooMuchError(f"it takes more than {self._seconds:.0f} s")

    def size(self, value: Any) -> int:
        """Characters and items of a value with all that is in it, however often it is in it."""
        if isinstance(value, (str, bytes)):
            return len(value)
        if not isinstance(value, (list, tuple, dict)):
            return 1
        if known := self._sizes.get(id(value)):
            return known[1]
        self.pay(_STEP * len(value))
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        total = len(value) + sum(map(self.size, parts))
        if total > self._largest:
            raise TooMuchError("it makes a list that is too large")
        self._sizes[id(value)] = value, total
        return total

    def made(self, value: Any) -> Any:
        """The value, paid for."""
        if isinstance(value, (str, bytes)):
            self.pay(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.size(value)
        elif isinstance(value, int):
            check_bits(value.bit_length())
        return value


_CURRENT: ContextVar[Allowance] = ContextVar("allowance")
# Without a rendering there is none: what a compiler would work out beforehand fails, and waits.


def rendered(pieces: Callable[[], Iterable[str]], given: int) -> str:
    """All pieces of a text that a template writes, whatever they are made of paid for."""
    token = _CURRENT.set(Allowance(given))
    try:
        return _joined(pieces())
    finally:
        _CURRENT.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates pay for what they do."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in _REMOVED:
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        self.filters = {name: _paid(name, one) for name, one in self.filters.items()}
        self.filters |= {_LOOP: _Loop, _MADE: _made, _JOINED: _joined}

    def add_filter(self, name: str, work: Callable[..., Any]) -> None:
        """One of our own, paid for as all are."""
        self.filters[name] = _paid(name, work)

    @staticmethod
    def concat(pieces: Iterable[Any]) -> str:
        """What a macro or a block has written."""
        return _joined(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Hooks().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Not what makes much of little in a way that is not known beforehand."""
        return attr not in _UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation on two values."""
        allowance = _CURRENT.get()
        allowance.pay(_STEP + _cost(allowance, operator, left, right))
        return allowance.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call of a function, a macro or a method."""
        allowance = _CURRENT.get()
        allowance.pay(_CALL)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, (str, bytes, int, float, list, tuple)):
            args = _prepaid(allowance, __obj.__name__, owner, args, kwargs)
        return allowance.made(super().call(__context, __obj, *args, **kwargs))


class _Namespace(Namespace):
    """One that is not shown with all that is in it."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Hooks(NodeTransformer):
    """Lets what makes values pay, where Jinja2 calls nothing; which names the methods."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), _LOOP)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _JOINED)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE)

    visit_Dict = visit_List  # noqa: N815


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Loop:
    """What a loop goes through, each turn paid for."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values, self._allowance = values, _CURRENT.get()

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]  # TypeError is what Jinja2 expects

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._allowance.pay(_STEP)
            yield value


def _made(value: Any) -> Any:
    return _CURRENT.get().made(value)


def _joined(pieces: Iterable[Any]) -> str:
    """The texts of some values, one behind the other."""
    allowance, texts = _CURRENT.get(), list[str]()
    for piece in pieces:
        allowance.pay(_STEP + allowance.size(piece))
        texts.append(str(piece))
    return "".join(texts)


def _paid(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is paid for."""
    first = int(hasattr(work, "jinja_pass_arg"))

    @wraps(work)
    def paid(*args: Any, **kwargs: Any) -> Any:
        allowance = _CURRENT.get()
        allowance.pay(_STEP)
        before, value, rest = args[:first], args[first], args[first + 1 :]
        if name in ("replace", "indent") and not isinstance(value, str):
            value = str(value)
        if name == "join":
            value = [*value]
            rest = (
                _prepaid(allowance, name, (rest or [kwargs.get("d", "")])[0], (value,), {}) and rest
            )
        else:
            rest = _prepaid(allowance, name, value, rest, kwargs)
        return allowance.made(work(*before, value, *rest, **kwargs))

    return paid


def _prepaid(
    allowance: Allowance, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a method or a filter, whose work is paid for."""
    given = [*args, *kwargs.values()]
    if isinstance(value, (str, bytes, list, tuple, dict)) and name not in _AT_ONCE:
        allowance.pay(_READ * len(value))
    if name not in _ANY_NUMBER and any(
        isinstance(one, int) and abs(one) > _WIDEST for one in given
    ):
        raise TooMuchError(f"{name} of more than {_WIDEST}")
    if name in ("format", "format_map"):
        _pay_format(allowance, value, given)
    elif name == "replace" and len(given) > 1:
        allowance.pay(str(value).count(str(given[0])) * len(str(given[1])))
    elif name == "indent":
        width = given[0] if given else 4
        lines = value.count("\n") + 1
        allowance.pay(lines * (len(width) if isinstance(width, str) else width))
    elif name == "join" and args:
        args = ([*args[0]], *args[1:])
        allowance.pay(allowance.size(args[0]) * _STEP + len(args[0]) * len(str(value)))
    elif name == "sum" and any(isinstance(one, (list, tuple)) for one in given):
        raise TooMuchError("sum of lists")
    elif name == "tojson":
        _pay_json(allowance, value, given)
    return args


def _pay_json(allowance: Allowance, value: Any, given: Iterable[Any]) -> None:
    wide = 0
    for one in given:
        wide += allowance.size(one) if isinstance(one, (str, tuple, list)) else abs(one or 0)
    if wide > _INDENT * 2:
        raise TooMuchError(f"tojson with an indent of more than {_INDENT}")
    allowance.pay(allowance.size(value) * (1 + wide) * _READ)


def _pay_format(allowance: Allowance, text: Any, given: Iterable[Any]) -> None:
    """Before values are put into a text, with widths."""
    text = str(text)
    if _FORMAT.search(text):
        raise TooMuchError(f"a format of more than {_WIDEST}")
    places = text.count("%") + text.count("{")
    allowance.pay(places * max(map(allowance.size, given), default=1))
    allowance.pay(sum(int(number[:4]) for number in re.findall(r"[0-9]+", text)))


def _cost(allowance: Allowance, operator: str, left: Any, right: Any) -> int:
    """Of an operation, beside its step."""
    if isinstance(left, (str, bytes)) and operator == "%":
        _pay_format(allowance, left, [right])
    counts = [one for one in (left, right) if isinstance(one, int)]
    parts = [one for one in (left, right) if isinstance(one, (str, bytes, list, tuple))]
    if operator == "*" and parts and counts:
        return allowance.size(parts[0]) * max(counts[0], 0)
    if operator == "+" and parts:
        return sum(map(len, parts))
    if len(counts) == 2 and operator == "**":
        check_bits(left.bit_length() * max(right, 1))
    elif len(counts) == 2 and operator == "*":
        check_bits(left.bit_length() + right.bit_length())
    return 0


def check_bits(bits: int) -> None:
    """TooMuchError for a whole number of so many bits."""
    if bits > _MOST_BITS:
        raise TooMuchError("it counts too far")


# -- the environment ---------------------------------------------------------------------------

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
