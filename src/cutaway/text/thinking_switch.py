"""What a request may ask of thinking, and how one chat template carries it out.

Rendering finds a template's switches: a variable is a switch if on and off give other prompts, and
a word is a level if its prompt differs from that of an unknown word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import FormatError, InputError, Name

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.thinking import Thinking


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
