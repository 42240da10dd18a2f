"""The Jinja2 environment that chat templates are written for, in a sandbox with an allowance.

Knows the filters, functions and tags that ``transformers``' ``apply_chat_template`` offers. A
template is a program from a stranger; in the sandbox it can neither reach Python nor change its
arguments. Does not know messages. Imports Jinja2, so import this module only to render a template.
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
# By loops, doubled texts and widths, three lines of a template can run for days or fill the memory.
# Jinja2's sandbox sets no such limit. So each loop, call, filter and operator pays from an
# allowance before it makes a value.

_STEP, _CALL = 16, 64  # the cost of a loop's turn, and of a call; each new character costs 1
_READ = 8  # the cost of each character that a method or a filter reads
_BASE_COST, _COST_PER_CHARACTER = 2**25, 1024  # the allowance: fixed, and per character of input
_LARGEST, _LARGER = 2**22, 16  # a value's size with its parts: fixed, and per input character
_SECONDS, _SLOWEST = 10.0, 10_000  # processor time; characters of input that add a second
_OFTEN = 256  # payments after which the time is checked
_WIDEST = 10_000  # the largest width, count or indentation
_MOST_BITS = 2**14  # of an integer
_INDENT = 16

_UNSAFE_METHODS = frozenset(("translate", "maketrans", "expandtabs"))
_REMOVED = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters that no chat template needs; the size of their input does not bound their cost."""
_ANY_NUMBER = frozenset(("d", "default", "float", "int", "map", "max", "min", "reject", "select"))
_AT_ONCE = frozenset(("count", "first", "last", "length"))
_FORMAT = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%(]*(?:\*|\d{5})|\{[^{}]*:[^{}]*(?:\{|\d{5})")
_LOOP_FILTER, _VALUE_FILTER, _JOIN_FILTER = (
    " loop",
    " made",
    " joined",
)  # filters of the compiler: templates cannot write these names


class TooMuchError(Exception):
    """A template exceeds its allowance."""


class Allowance:
    """The cost and the time that one rendering may still spend.

    input_size: number of characters in the template's variables
    """

    def __init__(self, input_size: int) -> None:
        self._left, self._largest = (
            _BASE_COST + _COST_PER_CHARACTER * input_size,
            _LARGEST + _LARGER * input_size,
        )
        self._seconds, self._payments = _SECONDS + input_size / _SLOWEST, 0
        self._until = thread_time() + self._seconds
        self._sizes: dict[int, tuple[Any, int]] = {}  # id() -> (value, size); keeps the value alive

    def pay(self, cost: int) -> None:
        """Spend a cost; TooMuchError if the allowance or the time is used up."""
        self._left -= cost
        self._payments += 1
        if self._left < 0:
            raise TooMuchError("it does more than any conversation of this length needs")
        if self._payments % _OFTEN == 0 and thread_time() > self._until:
            raise TooMuchError(f"it takes more than {self._seconds:.0f} s")

    def size(self, value: Any) -> int:
        """Count the characters and items of a value and its parts; repeated parts count again."""
        if isinstance(value, (str, bytes)):
            return len(value)
        if not isinstance(value, (list, tuple, dict)):
            return 1
        if entry := self._sizes.get(id(value)):
            return entry[1]
        self.pay(_STEP * len(value))
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        total = len(value) + sum(map(self.size, parts))
        if total > self._largest:
            raise TooMuchError("it makes a list that is too large")
        self._sizes[id(value)] = value, total
        return total

    def pay_for(self, value: Any) -> Any:
        """Pay for a new value and return it."""
        if isinstance(value, (str, bytes)):
            self.pay(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.size(value)
        elif isinstance(value, int):
            check_bits(value.bit_length())
        return value


_CURRENT: ContextVar[Allowance] = ContextVar("allowance")
# No allowance exists outside of a rendering. So Jinja2's compiler fails to compute constants in
# advance, and leaves them to the rendering.


def render_pieces(pieces: Callable[[], Iterable[str]], input_size: int) -> str:
    """Join the pieces that a template writes, within one allowance."""
    token = _CURRENT.set(Allowance(input_size))
    try:
        return _join(pieces())
    finally:
        _CURRENT.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates pay for each operation."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in _REMOVED:
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        self.filters = {name: _with_payment(name, work) for name, work in self.filters.items()}
        self.filters |= {_LOOP_FILTER: _Loop, _VALUE_FILTER: _pay_for, _JOIN_FILTER: _join}

    def add_filter(self, name: str, work: Callable[..., Any]) -> None:
        """Add a filter of cutaway's, which also pays before it works."""
        self.filters[name] = _with_payment(name, work)

    @staticmethod
    def concat(pieces: Iterable[Any]) -> str:
        """Join the pieces that a macro or a block wrote."""
        return _join(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Hooks().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuse methods whose output is large and not known in advance."""
        return attr not in _UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Pay for an operation on two values."""
        allowance = _CURRENT.get()
        allowance.pay(_STEP + _cost(allowance, operator, left, right))
        return allowance.pay_for(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Pay for a call of a function, a macro or a method."""
        allowance = _CURRENT.get()
        allowance.pay(_CALL)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, (str, bytes, int, float, list, tuple)):
            args = _prepaid(allowance, __obj.__name__, owner, args, kwargs)
        return allowance.pay_for(super().call(__context, __obj, *args, **kwargs))


class _Namespace(Namespace):
    """A namespace whose repr does not show its contents."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Hooks(NodeTransformer):
    """Adds filters that pay where Jinja2 has no hook; NodeTransformer calls methods by name."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _apply_filter(cast(nodes.Expr, node.iter), _LOOP_FILTER)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _apply_filter(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _JOIN_FILTER)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _apply_filter(node, _VALUE_FILTER) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _apply_filter(node, _VALUE_FILTER)

    visit_Dict = visit_List  # noqa: N815


def _apply_filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Loop:
    """The values of a loop, each of which costs a step."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values, self._allowance = values, _CURRENT.get()

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]  # TypeError is what Jinja2 expects

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._allowance.pay(_STEP)
            yield value


def _pay_for(value: Any) -> Any:
    return _CURRENT.get().pay_for(value)


def _join(pieces: Iterable[Any]) -> str:
    """Join the texts of some values."""
    allowance, texts = _CURRENT.get(), list[str]()
    for piece in pieces:
        allowance.pay(_STEP + allowance.size(piece))
        texts.append(str(piece))
    return "".join(texts)


def _with_payment(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that pays before it works."""
    first = int(hasattr(work, "jinja_pass_arg"))

    @wraps(work)
    def pay_and_work(*args: Any, **kwargs: Any) -> Any:
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
        return allowance.pay_for(work(*before, value, *rest, **kwargs))

    return pay_and_work


def _prepaid(
    allowance: Allowance, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Pay for the work of a method or a filter, and return its arguments."""
    arguments = [*args, *kwargs.values()]
    if isinstance(value, (str, bytes, list, tuple, dict)) and name not in _AT_ONCE:
        allowance.pay(_READ * len(value))
    if name not in _ANY_NUMBER and any(
        isinstance(argument, int) and abs(argument) > _WIDEST for argument in arguments
    ):
        raise TooMuchError(f"{name} of more than {_WIDEST}")
    if name in ("format", "format_map"):
        _pay_format(allowance, value, arguments)
    elif name == "replace" and len(arguments) > 1:
        allowance.pay(str(value).count(str(arguments[0])) * len(str(arguments[1])))
    elif name == "indent":
        width = arguments[0] if arguments else 4
        lines = value.count("\n") + 1
        allowance.pay(lines * (len(width) if isinstance(width, str) else width))
    elif name == "join" and args:
        args = ([*args[0]], *args[1:])
        allowance.pay(allowance.size(args[0]) * _STEP + len(args[0]) * len(str(value)))
    elif name == "sum" and any(isinstance(argument, (list, tuple)) for argument in arguments):
        raise TooMuchError("sum of lists")
    elif name == "tojson":
        _pay_json(allowance, value, arguments)
    return args


def _pay_json(allowance: Allowance, value: Any, arguments: Iterable[Any]) -> None:
    wide = 0
    for argument in arguments:
        wide += (
            allowance.size(argument)
            if isinstance(argument, (str, tuple, list))
            else abs(argument or 0)
        )
    if wide > _INDENT * 2:
        raise TooMuchError(f"tojson with an indent of more than {_INDENT}")
    allowance.pay(allowance.size(value) * (1 + wide) * _READ)


def _pay_format(allowance: Allowance, text: Any, arguments: Iterable[Any]) -> None:
    """Pay for values and widths that are about to be formatted into a text."""
    text = str(text)
    if _FORMAT.search(text):
        raise TooMuchError(f"a format of more than {_WIDEST}")
    places = text.count("%") + text.count("{")
    allowance.pay(places * max(map(allowance.size, arguments), default=1))
    allowance.pay(sum(int(number[:4]) for number in re.findall(r"[0-9]+", text)))


def _cost(allowance: Allowance, operator: str, left: Any, right: Any) -> int:
    """Return the cost of an operation beyond the cost of a step."""
    if isinstance(left, (str, bytes)) and operator == "%":
        _pay_format(allowance, left, [right])
    counts = [operand for operand in (left, right) if isinstance(operand, int)]
    parts = [operand for operand in (left, right) if isinstance(operand, (str, bytes, list, tuple))]
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
    """Raise TooMuchError for an integer of too many bits."""
    if bits > _MOST_BITS:
        raise TooMuchError("it counts too far")


# -- the environment ---------------------------------------------------------------------------

_SAFE = (3, 1, 6)
"""The first Jinja2 without a known way out of its sandbox (CVE-2025-27516)."""

_ASKS = ("defined", "undefined", "none", "default", "d")
"""Tests and filters that ask whether a variable is given."""


class _Generation(Extension):
    """The tag ``{% generation %}`` marks the assistant's text for training; its body is kept."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


@cache
def environment() -> BoundedEnvironment:
    """Return the environment that all templates share; it keeps no state of any template.

    CutawayError if a template could escape from the installed Jinja2: another package may have
    installed an older one.
    """
    _check(jinja2.__version__)
    sandbox = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    sandbox.add_filter("tojson", _to_json)
    sandbox.globals["raise_exception"] = _refuse
    sandbox.globals["strftime_now"] = _now
    return sandbox


def variables_of(source: str) -> frozenset[str]:
    """Return the names that a template reads and does not assign itself; raise as Jinja2 does.

    An assigned name is also returned if the template tests whether the variable is given, since the
    assignment is then only a default.
    """
    tree = environment().parse(source)
    assigned_names = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    tested_nodes = [test.node for test in tree.find_all(nodes.Test) if test.name in _ASKS]
    tested_nodes += [
        call.node for call in tree.find_all(nodes.Filter) if call.name in _ASKS and call.node
    ]
    optional_names = {node.name for node in tested_nodes if isinstance(node, nodes.Name)}
    return frozenset(meta.find_undeclared_variables(tree) - (assigned_names - optional_names))


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
    """Return JSON as models read it, with no characters escaped for HTML."""
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
