"""Thinking: the thought that a model writes before it answers, and what a request may ask of it.

Knows the marks around a thought. They define both the grammar of a text that may begin with a
thought, and the parser that separates the thought from the answer. Does not know requests and
protocols.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import FormatError, InputError, Name

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.tokenizers import Tokenizer


_BLANK = b" \n"
_WHOLE = b"\xff"  # precedes a mark that is one token; UTF-8 never has this byte


@dataclass(frozen=True)
class Thinking:
    """How a model's thoughts are written.

    before, after: the marks and white space that the template writes around a thought
    opened:        whether the prompt has opened the first thought
    closed:        whether the prompt has a whole thought, which may be empty
    control:       name -> id of each mark that is one token, mostly a control token; the same mark
                   spelled by other tokens is ordinary text
    """

    before: str = "<think>"
    after: str = "</think>"
    opened: bool = False
    closed: bool = False
    control: Mapping[str, int] = field(default_factory=dict)

    def with_prompt(self, prompt: str) -> Thinking:
        """Return a copy for answers to this prompt, which may have opened or closed the thought."""
        end = prompt.rstrip()
        return replace(self, opened=end.endswith(self.opening), closed=end.endswith(self.closing))

    def with_start(self, text: str) -> Thinking | None:
        """Return a copy for an answer that begins with ``text``; None if its thought has ended."""
        _, opened, inside = text.rpartition(self.opening)
        if not opened or self.closing in inside:
            return None
        return replace(self, opened=True, closed=False)

    @property
    def opening(self) -> str:
        """The mark that a thought begins with."""
        return self.before.strip()

    @property
    def closing(self) -> str:
        """The mark that a thought ends with."""
        return self.after.strip()

    @property
    def empty(self) -> str:
        """An empty thought, as the template writes it."""
        return self.before + self.after

    @property
    def grammar(self) -> str:
        """The Lark rules of an optional thought before an answer; the caller adds ``answer``."""
        opening = "" if self.opened else self._literal(self.opening)
        first = next((name for name in self.control if self.closing.startswith(name)), "")
        if first:
            inside = f"THOUGHT {self._literal(self.closing)}"
            rules = [f"SPELLED: ANY {lark_string(first)} ANY", "THOUGHT: ANY & ~SPELLED"]
        else:
            inside, rules = "closed", [f"closed[lazy]: ANY {lark_string(self.closing)}"]
        return "\n".join(
            [
                "start: thought answer" + ("" if self.opened else " | answer"),
                f"thought: {opening} {inside} BLANK?",
                *rules,
                "ANY: /(?s:.*)/",
                r"BLANK: /[ \n]{1,4}/",
            ]
        )

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """The bytes that ``ThinkingParser`` reads for marks that are one token."""
        return {token_id: _WHOLE + name.encode() for name, token_id in self.control.items()}

    def to_parser_bytes(self, mark: str) -> bytes:
        """Return a mark as ``ThinkingParser`` reads it."""
        pieces = self._split(mark)
        return b"".join(_WHOLE * (piece in self.control) + piece.encode() for piece in pieces)

    def parser(self) -> ThinkingParser | None:
        """Return a parser of one text."""
        return ThinkingParser(self)

    def count(self, pieces: Sequence[bytes]) -> int:
        """Count the tokens of the thought, without the tokens of its marks.

        pieces: the bytes of each token of the text as a parser reads them
        """
        data, opening = b"".join(pieces), b"" if self.opened else self.to_parser_bytes(self.opening)
        if not data.startswith(opening):
            return 0
        start, end = len(opening), data.find(self.to_parser_bytes(self.closing), len(opening))
        return count_pieces(pieces, start, len(data) if end < 0 else end)

    def token_ids(self, mark: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the token ids of a mark within a text; no space is added after a control token."""
        control, parts = self.control, self._split(mark)
        ids = ([control[p]] if p in control else tokenizer.encode(p, goes_on=True) for p in parts)
        return tuple(chain.from_iterable(ids))

    def _literal(self, text: str) -> str:
        """Write a text in Lark: strings, and control tokens by id."""
        return " ".join(
            f"<[{self.control[piece]}]>" if piece in self.control else lark_string(piece)
            for piece in self._split(text)
        )

    def _split(self, text: str) -> list[str]:
        """Split a text into names of control tokens and the texts between them."""
        names = "|".join(map(re.escape, sorted(self.control, key=len, reverse=True)))
        return [piece for piece in re.split(f"({names})", text) if piece] if names else [text]


def lark_string(text: str) -> str:
    """Return a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def escape_piece(data: bytes) -> bytes:
    """Return the bytes of a token that is no mark; replace the byte that is put before marks."""
    return data.replace(_WHOLE, b"\xfe")


def count_pieces(pieces: Sequence[bytes], start: int, end: int) -> int:
    """Count the pieces that have bytes between the positions ``start`` and ``end``."""
    places = [*accumulate(map(len, pieces), initial=0)]
    return sum(at < end and behind > start for at, behind in pairwise(places))


@dataclass(frozen=True)
class Thought:
    """A part of the thought that precedes the answer."""

    text: str


class ThinkingParser:
    """Separates the thought of one text from its answer, while it is written.

    Both lack the white space that the template itself writes around a thought.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._opening, self._closing = map(
            thinking.to_parser_bytes, (thinking.opening, thinking.closing)
        )
        before, after = thinking.before.lstrip(), thinking.after.rstrip()
        self._indent = thinking.to_parser_bytes(before)[len(self._opening) :]
        self._ending = thinking.to_parser_bytes(after)  # with the white space before the mark
        self._state = "indent" if thinking.opened else "beginning"
        self._pending = b""

    def push(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (thought, answer): the bytes that are now certain to belong to each."""
        self._pending += data
        reasoning = b""
        if self._state == "beginning":
            self._begin()
        if self._state == "indent":
            self._skip()
        if self._state == "thought":
            reasoning = self._think()
        if self._state == "blank":
            self._pending = self._pending.lstrip(_BLANK)
            self._state = "answer" if self._pending else "blank"
        if self._state != "answer":
            return reasoning, b""
        answer, self._pending = self._pending, b""
        return reasoning, _without_marks(answer)

    def finish(self) -> tuple[bytes, bytes]:
        """Return the bytes that were held back, as (thought, answer)."""
        pending, self._pending = _without_marks(self._pending), b""
        return (pending, b"") if self._state in ("indent", "thought") else (b"", pending)

    def _begin(self) -> None:
        if self._pending.startswith(self._opening):
            self._pending, self._state = self._pending[len(self._opening) :], "indent"
        elif not self._opening.startswith(self._pending):
            self._state = "answer"

    def _skip(self) -> None:
        if self._pending.startswith(self._indent):
            self._pending, self._state = self._pending[len(self._indent) :], "thought"
        elif not self._indent.startswith(self._pending):
            self._state = "thought"

    def _think(self) -> bytes:
        """Return the thought up to its closing mark, or to what may be the start of that mark."""
        reasoning, closing, rest = self._pending.partition(self._closing)
        if closing:
            self._pending, self._state = rest, "blank"
            return _without_marks(reasoning.removesuffix(self._ending.removesuffix(self._closing)))
        sizes = range(min(len(self._ending) - 1, len(reasoning)), 0, -1)
        ends = (self._ending, self._closing)
        pending_size = next(
            (n for n in sizes if any(e.startswith(reasoning[-n:]) for e in ends)), 0
        )
        self._pending = reasoning[len(reasoning) - pending_size :]
        return _without_marks(reasoning[: len(reasoning) - pending_size])


def _without_marks(data: bytes) -> bytes:
    """Return the text of pushed bytes: a mark that neither opens nor closes is text."""
    return data.replace(_WHOLE, b"")


# -- the switch of a chat template -------------------------------------------------------------
# Rendering finds a template's switches: a variable is a switch if on and off give other prompts,
# and a word is a level if its prompt differs from that of an unknown word.

LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
OFF = ("none", "no_think")
"""The levels that mean no thought."""
FLAGS = ("enable_thinking", "thinking", "reasoning")
"""The names by which templates read whether the model thinks."""
_BUDGET = "thinking_budget"
_EFFORTS = {
    "reasoning_effort": ("low", "medium", "high"),
    "reasoning_strength": ("low", "medium", "high", "xhigh"),
}
"""A variable for a level -> the levels of a template that writes any word as it is."""
_NO_LEVEL = "cutaway probe level"
_QUESTION = [{"role": "user", "content": "cutaway probe question"}]


@dataclass(frozen=True)
class ThinkingWish:
    """What a request asks of thinking.

    think      True or False, or one of ``LEVELS``; None: the template's default
    tokens     the largest number of tokens of the thought; None: any number
    variables  variables of the chat template, by name
    names      the client's names of these three, for errors
    notes      notes for the answer on how the request was read
    """

    think: bool | str | None = None
    tokens: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, str, str] = ("think", "think_budget", "chat_template_kwargs")
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError for values that no template knows; "none" becomes False."""
        name, tokens, variables = self.names
        if isinstance(self.think, str) and self.think in OFF:
            object.__setattr__(self, "think", False)
        if not (self.think is None or isinstance(self.think, bool) or self.think in LEVELS):
            words = ", ".join(("none", *LEVELS))
            raise InputError(name, f" must be one of {words}, not {shown(self.think)}")
        if self.tokens is not None:
            check_int(tokens, self.tokens, 0)
        if self.think is False and self.tokens:
            raise InputError(tokens, ": without thoughts there is no budget: give one of the two")
        if not (
            isinstance(self.variables, Mapping)
            and all(isinstance(key, str) for key in self.variables)
        ):
            raise InputError(variables, f" must be an object, not {shown(self.variables)}")

    @property
    def is_off(self) -> bool:
        """Whether no thought is wanted, by ``think`` or by a variable that is a switch."""
        off = any(self.variables.get(name) is False for name in FLAGS)
        return self.think is False or (self.think is None and off)

    def __bool__(self) -> bool:
        return any((self.think is not None, self.tokens is not None, self.variables, self.notes))


@dataclass(frozen=True)
class ThinkingSettings:
    """How one template carries out a request's wish.

    variables  variables for the template
    tokens     the largest number of tokens of the thought; None: any number
    opens      whether a thought is forced, an empty one if ``tokens`` is 0
    is_off     whether the prompt switches thinking off
    notes      notes for the answer
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    opens: bool = False
    is_off: bool = False
    notes: tuple[str, ...] = ()


NO_WISH, AS_IS = ThinkingWish(), ThinkingSettings()
"""The wish of a request that does not mention thinking, and its settings."""


class ThinkingSwitch:
    """The ways in which one template can switch thinking."""

    def __init__(self, template: ChatTemplate, thinking: Thinking | None) -> None:
        """thinking: how the model writes thoughts; None if it writes none."""
        self._template, self._thinking = template, thinking

    @cached_property
    def flag(self) -> str | None:
        """The name of the variable that switches thinking on and off; None if no variable does."""
        for name in FLAGS:
            if self._reads(name) and self._render(name, True) != self._render(name, False):
                return name
        return None

    @cached_property
    def _effort(self) -> str | None:
        """The name of the variable that sets a level; None if no variable does."""
        return next(filter(self._reads, _EFFORTS), None)

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The levels of thinking that the template knows."""
        if (effort := self._effort) is None:
            return ()
        other = self._render(effort, _NO_LEVEL)
        if _NO_LEVEL in other:
            return _EFFORTS[effort]
        words = (*OFF, *LEVELS)
        prompts = {word: self._render(effort, word) for word in words}
        if not other:  # the template refuses unknown words
            return tuple(word for word in words if prompts[word])
        return tuple(w for w in words if prompts[w] not in ("", other) or self._template.has(w))

    def settings(self, wish: ThinkingWish) -> ThinkingSettings:
        """Return a wish's settings; InputError if the template does not support the wish."""
        for name in wish.variables:
            self._check_variable(wish.names[2], name)
        if wish.tokens is not None and self._thinking is None:
            raise InputError(wish.names[1], f": {self._no_words}")
        settings = self._switch_off(wish) if wish.is_off else self._switch_on(wish)
        for name, value in settings.variables.items():
            if wish.variables.get(name, value) != value:
                raise InputError(
                    Name(wish.names[2], name),
                    f" contradicts {wish.names[0]}: give one of the two",
                )
        variables = {**wish.variables, **settings.variables}
        return ThinkingSettings(
            variables,
            settings.tokens,
            settings.opens,
            settings.is_off,
            (*wish.notes, *settings.notes),
        )

    def _switch_off(self, wish: ThinkingWish) -> ThinkingSettings:
        """Switch thinking off, by a variable if the template has one, else by an empty thought."""
        effort, word = self._effort, next((w for w in OFF if w in self.levels), None)
        variables: dict[str, Any] = {}
        if self.flag:
            variables = {self.flag: False}
        elif effort and word:
            variables = {effort: word}
        elif self._reads(_BUDGET) and self._render(_BUDGET, 0) != self._render():
            variables = {_BUDGET: 0}
        if variables:  # if a thought begins nevertheless, it is closed at once
            return ThinkingSettings(variables, None if self._thinking is None else 0, is_off=True)
        if self._thinking is None:
            return ThinkingSettings()
        note = f"{wish.names[0]}: the template has no switch, so the empty thought is forced"
        return ThinkingSettings(tokens=0, opens=True, notes=(note,))

    def _switch_on(self, wish: ThinkingWish) -> ThinkingSettings:
        """Switch thinking on, with a level and a largest length."""
        variables: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        name, level = wish.names[0], wish.think
        if isinstance(level, str):
            if self._effort and level in self.levels:
                variables[self._effort] = level
            elif levels := [word for word in self.levels if word not in OFF]:
                words = ", ".join(levels)
                raise InputError(name, f": this model's template knows {words}, not {level!r}")
            elif self.flag:
                notes = (f"{name}: this model's template knows on and off only; {level!r} is on",)
            else:
                raise InputError(name, f": {self._no_levels}")
        if wish.think:
            if self.flag:
                variables[self.flag] = True
            elif self._thinking is None and not variables:
                raise InputError(name, f": {self._no_words}")
        if wish.tokens is not None and self._reads(_BUDGET) and _BUDGET not in wish.variables:
            variables[_BUDGET] = wish.tokens
        return ThinkingSettings(variables, wish.tokens, notes=notes)

    @property
    def _no_words(self) -> str:
        return "this model's template has no words for thoughts; leave it out"

    @property
    def _no_levels(self) -> str:
        if self._thinking is None:
            return self._no_words
        return "this model's template has no levels of thinking; leave it out, or give a budget"

    def _check_variable(self, field: str, name: str) -> None:
        names = sorted(self._template.variables)
        if name not in names:
            reads = f"it reads {', '.join(names)}" if names else "it reads none"
            raise InputError(field, f": this model's template does not read {shown(name)}; {reads}")

    def _reads(self, name: str) -> bool:
        return name in self._template.variables

    def _render(self, name: str = "", value: Any = None) -> str:
        """Return a question's prompt with one variable set; "" if the template refuses that."""
        try:
            return self._template.render_prepared(_QUESTION, None, {name: value} if name else {})
        except (InputError, FormatError):
            return ""
