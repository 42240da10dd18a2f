"""What a model thinks before it answers, and what a request says of it.

Knows the marks around a thought: from one description come the grammar of a text that may begin
with a thought, and what takes the thought apart from the answer. Refuses to know requests and
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
_WHOLE = b"\xff"  # before what one token wrote, which UTF-8 has no use for


@dataclass(frozen=True)
class Thinking:
    """How a model's thoughts are written.

    before, after: around a thought, as the template writes them: marks and white space
    begun:         whether the prompt has opened the first of them
    closed:        whether the prompt has written a whole one, which may be empty
    control:       name -> id of the marks that are one token, mostly control tokens: a text that
                   spells such a mark by other tokens has none
    """

    before: str = "<think>"
    after: str = "</think>"
    begun: bool = False
    closed: bool = False
    control: Mapping[str, int] = field(default_factory=dict)

    def behind(self, prompt: str) -> Thinking:
        """The same behind a prompt, which may have opened the thought, or closed it."""
        end = prompt.rstrip()
        return replace(self, begun=end.endswith(self.opening), closed=end.endswith(self.closing))

    def within(self, said: str) -> Thinking | None:
        """The same in an answer that begins with a given text; None where that is past thoughts."""
        _, opened, inside = said.rpartition(self.opening)
        if not opened or self.closing in inside:
            return None
        return replace(self, begun=True, closed=False)

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
        """No thought, as the template writes it."""
        return self.before + self.after

    @property
    def grammar(self) -> str:
        """Lark of a text that is ``answer``, which is not defined here, perhaps after a thought."""
        opening = "" if self.begun else self._literal(self.opening)
        first = next((name for name in self.control if self.closing.startswith(name)), "")
        if first:
            inside = f"THOUGHT {self._literal(self.closing)}"
            rules = [f"SPELLED: ANY {quoted(first)} ANY", "THOUGHT: ANY & ~SPELLED"]
        else:
            inside, rules = "closed", [f"closed[lazy]: ANY {quoted(self.closing)}"]
        return "\n".join(
            [
                "start: thought answer" + ("" if self.begun else " | answer"),
                f"thought: {opening} {inside} BLANK?",
                *rules,
                "ANY: /(?s:.*)/",
                r"BLANK: /[ \n]{1,4}/",
            ]
        )

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """What ``ThinkingParser`` must be fed for marks that are one token."""
        return {token_id: _WHOLE + name.encode() for name, token_id in self.control.items()}

    def fed(self, mark: str) -> bytes:
        """A mark as ``ThinkingParser`` is fed it."""
        pieces = self._split(mark)
        return b"".join(_WHOLE * (piece in self.control) + piece.encode() for piece in pieces)

    def parser(self) -> ThinkingParser | None:
        """What takes one text apart; None where the parser of the answer does."""
        return ThinkingParser(self)

    def count(self, pieces: Sequence[bytes]) -> int:
        """How many tokens the thought has, without those of its marks.

        pieces: what each token of the text adds to what a parser is fed
        """
        data, opening = b"".join(pieces), b"" if self.begun else self.fed(self.opening)
        if not data.startswith(opening):
            return 0
        start, end = len(opening), data.find(self.fed(self.closing), len(opening))
        return spanned(pieces, start, len(data) if end < 0 else end)

    def token_ids(self, mark: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The tokens of a mark within a text, where no space is put behind a control token."""
        control, parts = self.control, self._split(mark)
        found = ([control[p]] if p in control else tokenizer.encode(p, goes_on=True) for p in parts)
        return tuple(chain.from_iterable(found))

    def _literal(self, text: str) -> str:
        """Texts as strings, control tokens by id."""
        return " ".join(
            f"<[{self.control[piece]}]>" if piece in self.control else quoted(piece)
            for piece in self._split(text)
        )

    def _split(self, text: str) -> list[str]:
        """The names of control tokens, and the texts between them."""
        names = "|".join(map(re.escape, sorted(self.control, key=len, reverse=True)))
        return [piece for piece in re.split(f"({names})", text) if piece] if names else [text]


def quoted(text: str) -> str:
    """A literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def spanned(pieces: Sequence[bytes], start: int, end: int) -> int:
    """How many of the pieces have bytes from ``start`` to ``end`` of them all."""
    places = [*accumulate(map(len, pieces), initial=0)]
    return sum(at < end and behind > start for at, behind in pairwise(places))


@dataclass(frozen=True)
class Thought:
    """Part of the thought that precedes the answer."""

    text: str


class ThinkingParser:
    """Takes the thought of one text apart from its answer, while it is written.

    Neither gets the white space that the template itself writes around a thought.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._opening, self._closing = map(thinking.fed, (thinking.opening, thinking.closing))
        before, after = thinking.before.lstrip(), thinking.after.rstrip()
        self._indent = thinking.fed(before)[len(self._opening) :]
        self._ending = thinking.fed(after)  # with the white space before the mark
        self._state = "indent" if thinking.begun else "beginning"
        self._held = b""

    def push(self, data: bytes) -> tuple[bytes, bytes]:
        """(thought, answer): what is certain after these bytes."""
        self._held += data
        thought = b""
        if self._state == "beginning":
            self._begin()
        if self._state == "indent":
            self._skip()
        if self._state == "thought":
            thought = self._think()
        if self._state == "blank":
            self._held = self._held.lstrip(_BLANK)
            self._state = "answer" if self._held else "blank"
        if self._state != "answer":
            return thought, b""
        answer, self._held = self._held, b""
        return thought, _shown(answer)

    def finish(self) -> tuple[bytes, bytes]:
        """What was held back."""
        held, self._held = _shown(self._held), b""
        return (held, b"") if self._state in ("indent", "thought") else (b"", held)

    def _begin(self) -> None:
        if self._held.startswith(self._opening):
            self._held, self._state = self._held[len(self._opening) :], "indent"
        elif not self._opening.startswith(self._held):
            self._state = "answer"

    def _skip(self) -> None:
        if self._held.startswith(self._indent):
            self._held, self._state = self._held[len(self._indent) :], "thought"
        elif not self._indent.startswith(self._held):
            self._state = "thought"

    def _think(self) -> bytes:
        """The thought up to its end, or to what may be the beginning of its end."""
        thought, closing, rest = self._held.partition(self._closing)
        if closing:
            self._held, self._state = rest, "blank"
            return _shown(thought.removesuffix(self._ending.removesuffix(self._closing)))
        sizes = range(min(len(self._ending) - 1, len(thought)), 0, -1)
        ends = (self._ending, self._closing)
        kept = next((n for n in sizes if any(e.startswith(thought[-n:]) for e in ends)), 0)
        self._held = thought[len(thought) - kept :]
        return _shown(thought[: len(thought) - kept])


def _shown(data: bytes) -> bytes:
    """What was fed, as it is read: a mark in a place where it is none, too."""
    return data.replace(_WHOLE, b"")


# -- the switch of a chat template -------------------------------------------------------------
# What a template can be told is found by rendering: a variable is a switch where on and off differ,
# a level counts where its text is not that of a word which is none.

LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
_ECHOED = ("low", "medium", "high")  # what models know whose templates write any word
_OFF = ("none", "no_think")
_FLAGS = ("enable_thinking", "thinking", "reasoning")
_EFFORT, _BUDGET = "reasoning_effort", "thinking_budget"
_NO_LEVEL = "cutaway probe level"
_QUESTION = [{"role": "user", "content": "cutaway probe question"}]


@dataclass(frozen=True)
class ThinkingWish:
    """What a request says of thinking.

    think      True or False, or one of ``LEVELS``; None: as the template has it
    tokens     of the thought at most; None: any number
    variables  of the chat template, by name
    names      what the client calls these three, for errors
    """

    think: bool | str | None = None
    tokens: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, str, str] = ("think", "think_budget", "chat_template_kwargs")

    def __post_init__(self) -> None:
        """InputError for values that no template knows; "none" is False."""
        name, tokens, variables = self.names
        if isinstance(self.think, str) and self.think in _OFF:
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
            and all(isinstance(one, str) for one in self.variables)
        ):
            raise InputError(variables, f" must be an object, not {shown(self.variables)}")

    def __bool__(self) -> bool:
        return self.think is not None or self.tokens is not None or bool(self.variables)


@dataclass(frozen=True)
class ThinkingSettings:
    """What a request's wish comes to with one template.

    variables  given to the template
    tokens     of the thought at most; None: any number
    opens      a thought is begun whatever is drawn: the empty one, with ``tokens`` 0
    is_off     the prompt says that there is no thought
    notes      what the answer should say of it
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    opens: bool = False
    is_off: bool = False
    notes: tuple[str, ...] = ()


NO_WISH, AS_IS = ThinkingWish(), ThinkingSettings()
"""Of requests that say nothing of thinking, and what that comes to."""


class ThinkingSwitch:
    """What one template can be told of thinking."""

    def __init__(self, template: ChatTemplate, thinking: Thinking | None) -> None:
        """thinking: how the model writes thoughts; None where it has none."""
        self._template, self._thinking = template, thinking

    @cached_property
    def flag(self) -> str | None:
        """The variable that switches thoughts on and off."""
        for name in _FLAGS:
            if self._reads(name) and self._rendered(name, True) != self._rendered(name, False):
                return name
        return None

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The words that ``reasoning_effort`` may be."""
        if not self._reads(_EFFORT):
            return ()
        other = self._rendered(_EFFORT, _NO_LEVEL)
        if _NO_LEVEL in other:
            return _ECHOED
        words = (*_OFF, *LEVELS)
        found = {word: self._rendered(_EFFORT, word) for word in words}
        if not other:  # it refuses words that are none
            return tuple(word for word in words if found[word])
        return tuple(w for w in words if found[w] not in ("", other) or self._template.has(w))

    def settings(self, wish: ThinkingWish) -> ThinkingSettings:
        """What the wish comes to; InputError for what the template cannot be told."""
        for name in wish.variables:
            self._check_variable(wish.names[2], name)
        if wish.tokens is not None and self._thinking is None:
            raise InputError(wish.names[1], f": {self._no_words}")
        made = self._off(wish) if wish.think is False else self._on(wish)
        if twice := [name for name in made.variables if name in wish.variables]:
            raise InputError(
                Name(wish.names[2], twice[0]),
                f": {wish.names[0]} sets it, too: give one of the two",
            )
        variables = {**wish.variables, **made.variables}
        return ThinkingSettings(variables, made.tokens, made.opens, made.is_off, made.notes)

    def _off(self, wish: ThinkingWish) -> ThinkingSettings:
        """No thought: by the template where it can be told so, else by the empty thought."""
        word = next((word for word in _OFF if word in self.levels), None)
        told: dict[str, Any] = {}
        if self.flag:
            told = {self.flag: False}
        elif word:
            told = {_EFFORT: word}
        elif self._reads(_BUDGET) and self._rendered(_BUDGET, 0) != self._rendered():
            told = {_BUDGET: 0}
        if told:  # a thought that begins nevertheless is closed at once
            return ThinkingSettings(told, None if self._thinking is None else 0, is_off=True)
        if self._thinking is None:
            return ThinkingSettings()
        note = f"{wish.names[0]}: the template has no switch, so the empty thought is forced"
        return ThinkingSettings(tokens=0, opens=True, notes=(note,))

    def _on(self, wish: ThinkingWish) -> ThinkingSettings:
        """A thought, of a level and a length."""
        variables: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        name, level = wish.names[0], wish.think
        if isinstance(level, str):
            if level in self.levels:
                variables[_EFFORT] = level
            elif known := [word for word in self.levels if word not in _OFF]:
                words = ", ".join(known)
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
        is_off = self.flag is not None and wish.variables.get(self.flag) is False
        return ThinkingSettings(variables, wish.tokens, is_off=is_off, notes=notes)

    @property
    def _no_words(self) -> str:
        return "this model's template has no words for thoughts; leave it out"

    @property
    def _no_levels(self) -> str:
        if self._thinking is None:
            return self._no_words
        return "this model's template has no levels of thinking; leave it out, or give a budget"

    def _check_variable(self, field: str, name: str) -> None:
        known = sorted(self._template.variables)
        if name not in known:
            reads = f"it reads {', '.join(known)}" if known else "it reads none"
            raise InputError(field, f": this model's template does not read {shown(name)}; {reads}")

    def _reads(self, name: str) -> bool:
        return name in self._template.variables

    def _rendered(self, name: str = "", value: Any = None) -> str:
        """A question's prompt with one variable set, "" where the template refuses that."""
        try:
            return self._template.written(_QUESTION, None, {name: value} if name else {})
        except (InputError, FormatError):
            return ""
