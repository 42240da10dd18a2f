"""Constrained decoding: the settings that limit which tokens may come, and their Constraint.

All constraints of a request make one mask over the vocabulary, which is one stage of the chain.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cutaway.base.checks import check_bool, check_ids, check_int, shown
from cutaway.engine.constraint import Constraint, ConstraintVocabulary, Mask, allows
from cutaway.engine.constraint.tokens import (
    AllowedTokens,
    BadWords,
    BudgetedThought,
    MinTokens,
    ThinkingBudget,
)
from cutaway.errors import CutawayError, InputError, Name
from cutaway.text import grammar
from cutaway.text.grammar import KINDS, Grammar

if TYPE_CHECKING:
    from cutaway.text.grammar.checks import Check
    from cutaway.text.grammar.compiler import Compiled
    from cutaway.text.grammar.matcher import Matcher


_MOST_BYTES = 4096  # of all bad words: each byte is a state of 2 kB


@dataclass(frozen=True, kw_only=True)
class ConstraintParams:
    """The settings that limit which tokens may come.

    allowed_token_ids  only these tokens may come; an end token only if it is one of them
    bad_words          strings that must not appear in the output, however cut into tokens
    min_tokens         no end token and no stop token before this many new tokens; a stop string
                       that is completed earlier is text
    json_schema        the text is JSON that this schema describes: a dict, true for any JSON, JSON
                       text, a path, or a class with ``model_json_schema()``; kept as JSON text
    regex              the text matches this regular expression
    grammar            the text matches a grammar in Lark's notation or in GBNF
    choice             the text is one of these
    json_compact       whether JSON has no white space between its parts
    thought            a grammar in Lark's notation of a thought that may precede the text, which is
                       its rule ``answer``; set by chats with models that think first
    thinking_budget    ends a thought that begins the text, see ``ThinkingBudget``; set by chats
    calls              a grammar in Lark's notation of tool calls, which may be written in place of
                       the JSON of json_schema; set by chats with tools
    check              "arithmetic": after a sum such as 12*13= comes its value, in the text and
                       at the end of the prompt; or the user's own object, see ``OwnCheck``
    heal               true: the prompt's last token is taken back, and the text begins with its
                       bytes, however they are cut into tokens; the bytes are no part of what
                       is written. A token id: that token was taken back already

    At most one of json_schema, regex, grammar and choice. Raises InputError naming the field.
    """

    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    json_schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] = ()
    json_compact: bool = False
    thought: str = ""
    thinking_budget: ThinkingBudget | None = None
    calls: str = ""
    check: Any = None
    heal: bool | int = False

    def __getstate__(self) -> dict[str, Any]:
        if self.check is not None and not isinstance(self.check, str):
            raise InputError(
                "check",
                ": an object of one's own cannot be sent to another process; leave check out",
            )
        return self.__dict__

    def __post_init__(self) -> None:
        self._check_words()
        if self.check is not None:
            from cutaway.text.grammar.checks import check_named

            check_named(self.check)
        if not isinstance(self.heal, bool):
            object.__setattr__(
                self,
                "heal",
                check_int(Name("heal", prose=": true, false or a token id; it"), self.heal, 0),
            )
        if self.thinking_budget is not None:
            budget = ThinkingBudget.read(self.thinking_budget)
            object.__setattr__(self, "thinking_budget", budget)
            if self.heal is not False:
                raise InputError("heal", ": a thinking budget is of a chat: leave one of them out")
        if isinstance(self.choice, list) and not self.choice:  # as a trace has it
            object.__setattr__(self, "choice", ())
        kinds = [name for name in KINDS if getattr(self, name) not in (None, ())]
        if len(kinds) > 1:
            conflicts = [word for name in kinds[1:] for word in (" and ", Name(name))]
            raise InputError(kinds[0], *conflicts, " exclude each other: give one")
        for name in kinds:
            object.__setattr__(self, name, getattr(grammar, name)(getattr(self, name)))
        for name in ("thought", "calls"):
            if not isinstance(value := getattr(self, name), str):
                raise InputError(name, f" must be Lark, a text, not {shown(value)}")
        if self.calls and self.json_schema is None:
            raise InputError(
                "calls", " are written in place of JSON: give ", Name("json_schema"), ", too"
            )
        if check_bool("json_compact", self.json_compact) and self.json_schema is None:
            raise InputError(
                "json_compact", " says how JSON is written: give ", Name("json_schema"), ", too"
            )

    def _check_words(self) -> None:
        if self.allowed_token_ids is not None:
            ids = tuple(sorted({*check_ids("allowed_token_ids", self.allowed_token_ids)}))
            if not ids:
                raise InputError("allowed_token_ids", " must hold at least one id; or leave it out")
            object.__setattr__(self, "allowed_token_ids", ids)
        words: Any = (self.bad_words,) if isinstance(self.bad_words, str) else self.bad_words
        if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
            raise InputError(
                "bad_words", f" must be a list of strings, not {shown(self.bad_words)}"
            )
        if "" in words:
            raise InputError("bad_words", " must not hold an empty string; leave it out instead")
        if any("\ud800" <= character <= "\udfff" for word in words for character in word):
            raise InputError(
                "bad_words", " must be whole characters, not halves of surrogate pairs"
            )
        if (size := sum(len(word.encode()) for word in words)) > _MOST_BYTES:
            raise InputError("bad_words", f" have {size} bytes; at most {_MOST_BYTES} in all")
        object.__setattr__(self, "bad_words", tuple(words))
        object.__setattr__(self, "min_tokens", check_int("min_tokens", self.min_tokens, 0))

    @property
    def source(self) -> Grammar | None:
        """The grammar of the text; None without one."""
        for name in KINDS:
            if (text := getattr(self, name)) not in (None, ()):
                text = text if isinstance(text, str) else json.dumps(text)
                return Grammar(name, text, self.json_compact, self.thought, self.calls)
        return None

    @property
    def is_set(self) -> bool:
        """Whether any token may be forbidden at any step."""
        words = bool(self.bad_words or self.min_tokens or self.check or self.heal is not False)
        ids = self.allowed_token_ids is not None or self.thinking_budget is not None
        return ids or words or self.source is not None

    def make(
        self,
        vocabulary: "ConstraintVocabulary",
        ending: frozenset[int],
        prompt: Sequence[int] = (),
        banned_token_ids: Sequence[int] = (),
        grammar: "Compiled | None" = None,
    ) -> Constraint | None:
        """Make the constraint of one sequence; None where every token may come.

        ending: the tokens that end the sequence
        banned_token_ids: tokens that may not be drawn for any request
        grammar: ``source``, compiled
        """
        if not (self.is_set or banned_token_ids):
            return None
        parts = [*self._token_parts(vocabulary, ending, banned_token_ids)]
        text_parts: list[Constraint] = []
        if self.bad_words:
            text_parts.append(BadWords(vocabulary.words(self.bad_words)))
        checks: list[Check] = []
        if self.source is not None:
            assert grammar is not None
            text_parts.append(GrammarConstraint(grammar.matcher(), ending))
            checks += [grammar.check] if grammar.check else []
        if self.check is not None:
            from cutaway.text.grammar.checks import check_named

            checks.append(check_named(self.check))
        if healed := self.healed_bytes(vocabulary):
            from cutaway.engine.constraint.token_healing import TokenHealing

            text_parts = [TokenHealing(_combine(text_parts), healed, vocabulary)]
        parts += text_parts
        if not checks:
            return _combine(parts)
        from cutaway.engine.constraint.checks import CheckConstraint

        prompt_tail = vocabulary.tail(prompt)
        return CheckConstraint(
            _combine(parts), checks, vocabulary, ending, prompt=prompt_tail, healed=healed
        )

    def _token_parts(
        self,
        vocabulary: "ConstraintVocabulary",
        ending: frozenset[int],
        banned_token_ids: Sequence[int],
    ) -> Iterator[Constraint]:
        """Yield the constraints that read no text."""
        if banned_token_ids:
            yield AllowedTokens(vocabulary.mask_without(banned_token_ids))
        if self.allowed_token_ids is not None:
            yield AllowedTokens(vocabulary.mask_of(self.allowed_token_ids))
        if self.min_tokens:
            yield MinTokens(vocabulary.mask_without(ending), self.min_tokens)
        if self.thinking_budget is not None:
            yield BudgetedThought(self.thinking_budget, vocabulary)

    def healed_bytes(self, vocabulary: "ConstraintVocabulary") -> bytes:
        """Return the prompt's bytes that token healing takes back; the text begins with them."""
        return b"" if isinstance(self.heal, bool) else vocabulary.token_bytes(self.heal)


def _combine(parts: list[Constraint]) -> Constraint | None:
    return AllOf(parts) if len(parts) > 1 else parts[0] if parts else None


class GrammarConstraint(Constraint):
    """Only tokens after which the text can still match a grammar (grammar-constrained decoding).

    ending: the tokens that end the sequence; the grammar knows only the model's own end tokens
    """

    def __init__(self, matcher: "Matcher", ending: frozenset[int]) -> None:
        self._matcher, self._ending = matcher, ending

    def mask(self) -> Mask | None:
        """The tokens that the grammar allows."""
        return self._matcher.mask()

    def accept(self, token_id: int) -> None:
        """Append the token to the text, or finish it with a token that ends the sequence."""
        if token_id not in self._ending:
            self._matcher.accept(token_id)
        elif not allows(self._matcher.mask(), token_id):
            raise CutawayError("the grammar does not allow the text to end here")
        else:
            self._matcher.finish(token_id)

    def fork(self) -> Self:
        """An independent copy in the same state."""
        return type(self)(self._matcher.fork(), self._ending)

    def find_forced_tokens(self) -> Sequence[int]:
        """Return the tokens with which every text of the grammar continues here."""
        return self._matcher.find_forced_tokens()

    @property
    def is_over(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return self._matcher.is_over


class AllOf(Constraint):
    """Several constraints at once: a token may come if all of them allow it."""

    def __init__(self, parts: list[Constraint]) -> None:
        self._parts = parts

    def mask(self) -> Mask | None:
        """The tokens that all parts allow."""
        masks = [mask for part in self._parts if (mask := part.mask()) is not None]
        return np.bitwise_and.reduce(masks) if masks else None

    def accept(self, token_id: int) -> None:
        """Advance all parts."""
        for part in self._parts:
            part.accept(token_id)

    def fork(self) -> Self:
        """Fork all parts."""
        return type(self)([part.fork() for part in self._parts])

    def find_forced_tokens(self) -> Sequence[int]:
        """The forced tokens of the first part that has any."""
        return next((ids for part in self._parts if (ids := part.find_forced_tokens())), ())

    @property
    def is_over(self) -> bool:
        """Whether one of the parts is over."""
        return any(part.is_over for part in self._parts)

    @property
    def refused_by(self) -> tuple[str, ...]:
        """The names of all parts."""
        return tuple(name for part in self._parts for name in part.refused_by)
