"""From a grammar's text to a matcher that says, token by token, what may follow.

Knows llguidance: its tables, limits and traps. Refuses to know sequences and samplers.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError, InputError
from cutaway.grammar.checks import Check
from cutaway.grammar.schema_checks import SchemaCheck, relaxed
from cutaway.grammar.source import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
    from llguidance._lib import JsonCompileOptions

Mask = NDArray[np.uint32]

_MOST = 64  # compiled grammars that are kept
_SPACE = r" |\n[ \t]{0,20}"
"""White space between the parts of JSON: bounded, so that no text goes on in it for ever."""
_FUEL, _ITEMS = 2_000_000, 200_000
"""Lazy work that one step may do, several times llguidance's own figures: what a step costs depends
on the steps before it, and a limit that is met ends the text with an error, never with another
mask."""


def engine() -> str:
    """What compiles grammars here, with its version: another may allow other tokens."""
    import llguidance

    return f"llguidance {llguidance.__version__}"


class Words(Protocol):
    """What a compiler wants of a tokenizer; see ``text.Tokenizer``."""

    vocab_size: int
    bos_id: int | None

    @property
    def end_ids(self) -> Iterable[int]:
        """Tokens that end a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text; nothing for those that are not text."""
        ...

    def token_name(self, token_id: int) -> str:
        """Its name, for those that are not text."""
        ...

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        """Token ids of a text; one that ``goes_on`` from another."""
        ...


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

    is_tokenizer_wrapper = True

    def __init__(self, words: Words) -> None:
        texts = [words.token_bytes(i) for i in range(words.vocab_size)]
        self.tokens = [data or words.token_name(i).encode() for i, data in enumerate(texts)]
        self.special_token_ids = [i for i, data in enumerate(texts) if not data]
        self._encode = words.encode
        self._of_byte = {data: i for i, data in enumerate(texts) if len(data) == 1}
        self.eos_token_id = next(iter(words.end_ids), 0)
        self.bos_token_id = words.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        """Token ids as the model's own tokenizer cuts them, so that forced tokens are those."""
        if isinstance(text, bytes):
            text = text.decode()
        ids = self._encode(text, goes_on=True)
        data = text.encode()
        if b"".join(map(self.tokens.__getitem__, ids)) == data:
            return ids
        if len(text) > 1:  # a tokenizer may read a character as another
            half = len(text) // 2
            return self(text[:half]) + self(text[half:])
        return [self._of_byte.get(data[i : i + 1], 0) for i in range(len(data))]


class Compiler:
    """The grammars of one model. Any thread may use it; the last few are kept compiled."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._lock = Lock()
        self._kept: OrderedDict[Grammar, _Compiled] = OrderedDict()

    @cached_property
    def tokenizer(self) -> "LLTokenizer":
        """The vocabulary as a trie; a quarter of a second for 50,000 tokens."""
        import llguidance

        ends = [*self._words.end_ids]
        return llguidance.LLTokenizer(
            cast("TokenizerWrapper", _Vocabulary(self._words)),
            eos_token=ends or None,
            slices=llguidance.LLTokenizer.json_slices(),
        )

    def compile(self, grammar: Grammar) -> None:
        """Have it ready; InputError that names the field where it is none, or not supported."""
        self._compiled(grammar)

    def matcher(self, grammar: Grammar) -> "Matcher":
        """Of a text that is not begun."""
        return Matcher(self._compiled(grammar).matcher.deep_copy(), self.words_of_a_mask)

    def checks(self, grammar: Grammar) -> list[Check]:
        """What the masks leave out of it, to be asked about each token."""
        check = self._compiled(grammar).check
        return [] if check is None else [check]

    def notes(self, grammar: Grammar) -> list[str]:
        """What a reader should know of how it is kept to."""
        check = self._compiled(grammar).check
        if check is None:
            return []
        names = ", ".join(check.keywords)
        return [f"json_schema: checked token by token, since no grammar can say it: {names}"]

    @property
    def words_of_a_mask(self) -> int:
        """Of 32 bits each."""
        return -(-self._words.vocab_size // 32)

    def _compiled(self, grammar: Grammar) -> "_Compiled":
        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
                return self._kept[grammar]
            tokenizer = self.tokenizer
        try:
            made = _Compiled(_matcher(grammar, tokenizer))
        except InputError as refused:
            made = _checked(grammar, tokenizer, refused)
        with self._lock:
            self._kept[grammar] = made
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return made


class _Compiled(NamedTuple):
    """A grammar that is ready; check: what its masks leave out."""

    matcher: "LLMatcher"
    check: SchemaCheck | None = None


def _matcher(grammar: Grammar, tokenizer: "LLTokenizer") -> "LLMatcher":
    import llguidance

    limits = llguidance.LLParserLimits(
        step_lexer_fuel=_FUEL, step_max_items=_ITEMS, verbose_errors=False
    )
    source = _source(grammar)
    failed = llguidance.LLMatcher.validate_grammar(source, tokenizer, limits=limits)
    made = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
    if failed or made.is_error():
        raise InputError(f"{grammar.kind}: {_sentence(failed or made.get_error())}")
    return made


def _checked(grammar: Grammar, tokenizer: "LLTokenizer", refused: InputError) -> _Compiled:
    """A schema that masks alone cannot hold a text to; ``refused`` where checks do not help."""
    if grammar.kind != "json_schema":
        raise refused
    check = SchemaCheck(json.loads(grammar.text))
    if not check.keywords:
        raise refused
    try:
        guided = json.dumps(relaxed(check.schema, guided=True))
        return _Compiled(_matcher(replace(grammar, text=guided), tokenizer), check)
    except InputError:
        plain = json.dumps(relaxed(check.schema, guided=False))
        return _Compiled(_matcher(replace(grammar, text=plain), tokenizer), check)


class Matcher:
    """How far one text has come under a grammar. Raises CutawayError where it cannot go on."""

    def __init__(self, matcher: "LLMatcher", words: int) -> None:
        self._matcher, self._words = matcher, words

    def mask(self) -> Mask:
        """Which tokens may come next, the end tokens among them where the text may end."""
        mask = np.empty(self._words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        return mask

    def accept(self, token_id: int) -> None:
        """A token came; not for end tokens."""
        self._matcher.consume_token(token_id)
        self._check()

    def valid(self, token_ids: Sequence[int]) -> int:
        """How many of these may come one after the other."""
        return self._matcher.validate_tokens(list(token_ids))

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model says."""
        return self._matcher.compute_ff_tokens()

    def fork(self) -> "Matcher":
        """Another in the same state."""
        return Matcher(self._matcher.deep_copy(), self._words)

    def captures(self) -> list[tuple[str, bytes]]:
        """The texts of the rules that the grammar captures."""
        return self._matcher.get_captures()

    @property
    def may_end(self) -> bool:
        """Whether the text is whole as it is."""
        return self._matcher.is_accepting()

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CutawayError(f"the grammar failed: {_sentence(self._matcher.get_error())}")


def _source(grammar: Grammar) -> str:
    """As llguidance reads it."""
    from llguidance import LLMatcher

    if grammar.kind == "json_schema":
        rules: JsonCompileOptions = {"whitespace_pattern": _SPACE, "lenient": False}
        if grammar.compact:
            rules = {"whitespace_flexible": False, "lenient": False}
        return LLMatcher.grammar_from_json_schema(grammar.text, overrides=rules)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        texts = json.loads(grammar.text)
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))
    if "::=" not in grammar.text:
        return LLMatcher.grammar_from_lark(grammar.text)
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
    except Exception as error:  # its errors are its own, a RecursionError among them
        raise InputError(f"grammar: {_sentence(str(error))}") from None


def _sentence(said: str) -> str:
    """llguidance's own words, on one line and without its notes to developers."""
    first = re.split(r"\n\s*\n|<state>|\nstack backtrace", said, maxsplit=1)[0]
    words = " ".join(first.split()) or "no reason given"
    return words if len(words) <= 300 else f"{words[:299]}…"
