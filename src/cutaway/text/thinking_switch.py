"""What a request says of thinking, and what a chat template can be told of it.

Finds by rendering what a template knows: a variable is a switch where on and off differ, a level
counts where its text is not that of a word which is none. Refuses to know requests and protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import FormatError, InputError

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.thinking import Thinking

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
            raise InputError(f"{name} must be one of {words}, not {shown(self.think)}")
        if self.tokens is not None:
            check_int(tokens, self.tokens, 0)
        if self.think is False and self.tokens:
            raise InputError(f"{tokens}: without thoughts there is no budget: give one of the two")
        if not (
            isinstance(self.variables, Mapping)
            and all(isinstance(one, str) for one in self.variables)
        ):
            raise InputError(f"{variables} must be an object, not {shown(self.variables)}")

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
            raise InputError(f"{wish.names[1]}: {self._no_words}")
        made = self._off(wish) if wish.think is False else self._on(wish)
        if twice := [name for name in made.variables if name in wish.variables]:
            raise InputError(
                f"{wish.names[2]}.{twice[0]}: {wish.names[0]} sets it, too: give one of the two"
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
                raise InputError(f"{name}: this model's template knows {words}, not {level!r}")
            elif self.flag:
                notes = (f"{name}: this model's template knows on and off only; {level!r} is on",)
            else:
                raise InputError(f"{name}: {self._no_levels}")
        if wish.think:
            if self.flag:
                variables[self.flag] = True
            elif self._thinking is None and not variables:
                raise InputError(f"{name}: {self._no_words}")
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
            raise InputError(f"{field}: this model's template does not read {shown(name)}; {reads}")

    def _reads(self, name: str) -> bool:
        return name in self._template.variables

    def _rendered(self, name: str = "", value: Any = None) -> str:
        """A question's prompt with one variable set, "" where the template refuses that."""
        try:
            return self._template.written(_QUESTION, None, {name: value} if name else {})
        except (InputError, FormatError):
            return ""
