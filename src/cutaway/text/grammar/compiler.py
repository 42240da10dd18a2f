"""Compile a grammar's text to a matcher, which tells the allowed tokens after each token.

Knows llguidance: its tables, limits and traps.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING, Protocol, cast

from cutaway._version import __version__
from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.llguidance_source import (
    idle_attributes,
    judge_for,
    limits,
    reason,
    source_of,
)
from cutaway.text.grammar.matcher import (
    Ends,
    GrammarState,
    Matcher,
    QuotedTokens,
    UniqueKeys,
    has_open_objects,
    marks_calls,
    without_marks,
)
from cutaway.text.grammar.schema_checks import SchemaCheck, relax
from cutaway.text.grammar.schemas import custom_formats, without_custom_formats

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


Read = Callable[[Grammar], str]
"""Returns a grammar's source for llguidance; InputError if it cannot be converted."""

_MAX_KEPT, _MAX_KEPT_BYTES = 64, 1 << 20
"""The most compiled grammars that are kept, and the most characters of their sources. A character
costs 200 bytes."""
_AHEAD = 512
"""Characters of forced text that the model's tokenizer cuts into tokens. The rest gets byte tokens:
a forced text may be long, and each step cuts it anew."""


def engine() -> str:
    """Return the programs that compute masks, with versions: other versions may allow other tokens.

    llguidance compiles grammars, and cutaway narrows its masks.
    """
    import llguidance

    return f"llguidance {llguidance.__version__}, cutaway {__version__}"


class UncompiledError(Exception):
    """A grammar would have to be compiled, which may take seconds."""


class TokenizerLike(Protocol):
    """The part of ``text.Tokenizer`` that a compiler needs."""

    vocab_size: int
    bos_id: int | None

    @property
    def end_ids(self) -> Iterable[int]:
        """Tokens that end a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text; b"" for tokens that are not text."""
        ...

    def token_name(self, token_id: int) -> str:
        """Return the name of a token that is not text."""
        ...

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        """Return the token ids of a text. goes_on: the text continues another."""
        ...


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

    is_tokenizer_wrapper = True

    def __init__(self, words: TokenizerLike) -> None:
        texts = [words.token_bytes(i) for i in range(words.vocab_size)]
        self.tokens = [data or words.token_name(i).encode() for i, data in enumerate(texts)]
        self.special_token_ids = [i for i, data in enumerate(texts) if not data]
        self._encode = words.encode
        self._of_byte = {data[0]: i for i, data in enumerate(texts) if len(data) == 1}
        self.eos_token_id = next(iter(words.end_ids), 0)
        self.bos_token_id = words.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the ids of forced text, cut as the model's own tokenizer cuts text."""
        if isinstance(text, bytes):
            text = text.decode()
        rest = text[_AHEAD:].encode()
        return self._cut(text[:_AHEAD]) + [self._of_byte.get(byte, 0) for byte in rest]

    def _cut(self, text: str) -> list[int]:
        ids, data = self._encode(text, goes_on=True), text.encode()
        if b"".join(map(self.tokens.__getitem__, ids)) == data:
            return ids
        if len(text) > 1:  # a tokenizer may replace a character by another
            half = len(text) // 2
            return self._cut(text[:half]) + self._cut(text[half:])
        return [self._of_byte.get(byte, 0) for byte in data]


@dataclass(frozen=True)
class Compiled:
    """A grammar compiled for one vocabulary, or the error why it cannot be.

    size    number of characters of its source
    ways    a state for each grammar that a text may match: two if calls may replace the text
    check   checks each token by rules that masks cannot express
    failed  arguments of the InputError, if the grammar cannot be compiled
    """

    size: int
    ways: tuple[GrammarState, ...] = ()
    check: SchemaCheck | None = None
    failed: tuple[str, ...] = ()

    def ensure_compiled(self) -> "Compiled":
        """Return the same object; InputError if the grammar cannot be compiled."""
        if not self.ways:
            raise InputError(*self.failed)
        return self

    def matcher(self) -> Matcher:
        """Return a new matcher, before the first token."""
        return Matcher([way.fork() for way in self.ways])


class GrammarCompiler:
    """Compiles the grammars of one model and keeps the last few. Any thread may use it.

    read  returns a grammar's source; another process may make the source of a stranger's grammar
    """

    def __init__(self, words: TokenizerLike) -> None:
        self.read: Read = source_of
        self._words = words
        self._lock = Lock()
        self._last: OrderedDict[Grammar, Compiled] = OrderedDict()

    @cached_property
    def tokenizer(self) -> "LLTokenizer":
        """The vocabulary as a trie. Building takes a quarter of a second for 50,000 tokens."""
        import llguidance

        ends = [*self._words.end_ids]
        return llguidance.LLTokenizer(
            cast("TokenizerWrapper", _Vocabulary(self._words)),
            eos_token=ends or None,
            slices=llguidance.LLTokenizer.json_slices(),
        )

    def prepare(self) -> None:
        """Build the vocabulary's tables now. The interpreter lock is held all the while."""
        with self._lock:
            _ = self.tokenizer, self._quoted

    def compile(self, grammar: Grammar) -> Compiled:
        """Compile a grammar; InputError with the field's name if it is invalid or unsupported."""
        with self._lock:
            compiled = self._last.get(grammar)
            tokenizer = self.tokenizer
        if compiled is None:
            compiled = (
                self._compile_either(*grammar.ways)
                if grammar.calls
                else self._compile_one(grammar, tokenizer)
            )
        with self._lock:
            self._keep(grammar, compiled)
        return compiled.ensure_compiled()

    def _compile_either(self, text: Grammar, calls: Grammar) -> Compiled:
        """Compile the grammars of a text and of calls; InputError if the text needs a check."""
        compiled_text, compiled_calls = self.compile(text), self.compile(calls)
        if compiled_text.check is not None:
            names = ", ".join(compiled_text.check.keywords)
            raise InputError(
                "json_schema",
                f": {names} would have to be checked token by token, which cannot be "
                "beside tools: leave out tools, or these keywords",
            )
        return Compiled(
            compiled_text.size + compiled_calls.size, (*compiled_text.ways, *compiled_calls.ways)
        )

    def _compile_one(self, grammar: Grammar, tokenizer: "LLTokenizer") -> Compiled:
        size, ends = len(grammar.text), self._ends(tokenizer)
        try:
            matcher = _matcher(grammar, tokenizer, self.read)
            judge, keys = judge_for(grammar), self._keys(grammar)
            calls = matcher.deep_copy() if marks_calls(grammar.text) else None
            state = GrammarState(matcher, judge, ends, keys, calls)
            return Compiled(size, (state,))
        except InputError as refusal:
            try:
                matcher, check = _compile_with_check(grammar, tokenizer, self.read, refusal)
                return Compiled(size, (GrammarState(matcher, None, ends),), check)
            except InputError as error:
                return Compiled(size, failed=error.args)

    @cached_property
    def _quoted(self) -> QuotedTokens:
        return QuotedTokens(map(self._words.token_bytes, range(self._words.vocab_size)))

    def _keys(self, grammar: Grammar) -> UniqueKeys | None:
        """Return a guard against repeated keys; None unless a schema leaves keys open."""
        alone = grammar.kind == "json_schema" and not grammar.thought
        if not alone or not has_open_objects(json.loads(grammar.text)):
            return None
        return UniqueKeys(self._quoted)

    def _ends(self, tokenizer: "LLTokenizer") -> Ends:
        words = -(-self._words.vocab_size // 32)
        return Ends(words, tuple(self._words.end_ids), tokenizer.decode_bytes)

    def find(self, grammar: Grammar) -> Compiled | None:
        """Return a grammar that is already compiled, else None; raise as ``compile`` does."""
        with self._lock:
            compiled = self._last.get(grammar)
        return compiled and compiled.ensure_compiled()

    def ready(self, grammar: Grammar) -> Compiled:
        """Return a grammar that is already compiled; UncompiledError if it is not."""
        if (compiled := self.find(grammar)) is None:
            raise UncompiledError
        return compiled

    def matcher(self, grammar: Grammar) -> "Matcher":
        """Compile a grammar and return a new matcher, before the first token."""
        return self.compile(grammar).matcher()

    def _keep(self, grammar: Grammar, compiled: Compiled) -> None:
        self._last[grammar] = compiled
        self._last.move_to_end(grammar)
        while (
            len(self._last) > _MAX_KEPT
            or sum(c.size for c in self._last.values()) > _MAX_KEPT_BYTES
        ):
            self._last.popitem(last=False)


def notes_on(grammar: Grammar, compiled: Compiled) -> list[str]:
    """Return notes for the user about how a grammar is enforced."""
    check, notes = compiled.check, []
    if check is not None:
        names = ", ".join(check.keywords)
        notes.append(f"json_schema: checked token by token, since no grammar can say it: {names}")
    if grammar.kind == "json_schema" and (formats := custom_formats(json.loads(grammar.text))):
        notes.append(
            "json_schema: any text is allowed for these formats, which JSON Schema does not "
            f"define: {', '.join(sorted(formats))}"
        )
    if grammar.kind == "grammar" and (idle := idle_attributes(without_marks(grammar.text))):
        notes.append(f"grammar: these attributes of rules do nothing here: {', '.join(idle)}")
    return notes


def _matcher(grammar: Grammar, tokenizer: "LLTokenizer", read: Read) -> "LLMatcher":
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, read(grammar), log_level=0, limits=limits())
    if not matcher.is_error():  # the slow first mask is computed now, not in an engine's step
        matcher.compute_bitmask()
        matcher.compute_ff_tokens()
    if matcher.is_error():
        error = matcher.get_error()
        message = (": it allows no text",) if error.startswith("NoExtension") else reason(error)
        raise InputError(grammar.kind, *message)
    return matcher


def _compile_with_check(
    grammar: Grammar, tokenizer: "LLTokenizer", read: Read, refusal: InputError
) -> "tuple[LLMatcher, SchemaCheck]":
    """Compile a schema that needs a check; raise ``refusal`` if a check cannot help."""
    if grammar.kind != "json_schema" or grammar.thought:  # a check would read the thought, too
        raise refusal
    check = SchemaCheck(without_custom_formats(json.loads(grammar.text)))
    if not check.keywords:
        raise refusal
    try:
        guided = json.dumps(relax(check.schema, guided=True))
        return _matcher(replace(grammar, text=guided), tokenizer, read), check
    except InputError:
        plain = json.dumps(relax(check.schema, guided=False))
        return _matcher(replace(grammar, text=plain), tokenizer, read), check


# -- an existing text --------------------------------------------------------------------------
# Tells whether a grammar allows a text, byte by byte, for any vocabulary.

_END = 256


@dataclass(frozen=True)
class Accepted:
    """Whether a grammar accepts a text; its truth value is ``whole``.

    whole  whether the grammar allows the text as a whole
    at     index of the first character that cannot follow the text before it; None if all can
    """

    whole: bool
    at: int | None

    def __bool__(self) -> bool:
        return self.whole


class _Bytes:
    """A vocabulary of the 256 bytes and an end token."""

    vocab_size, end_ids = _END + 1, (_END,)
    bos_id: int | None = None

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < _END else b""

    def token_name(self, token_id: int) -> str:
        return f"<{token_id}>"

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:  # noqa: ARG002
        return [*text.encode()]


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(_Bytes())


def byte_matcher(grammar: Grammar, *, ready: bool = False) -> Matcher:
    """Return a new matcher whose tokens are bytes; InputError for a bad grammar.

    ready: compile nothing; UncompiledError if the grammar is not compiled yet
    """
    compiler = _compiler()
    return (compiler.ready if ready else compiler.compile)(grammar).matcher()


def check_compiles(grammar: Grammar, read: Read) -> None:
    """Raise InputError for a grammar that cannot be compiled. read: see ``GrammarCompiler``"""
    _matcher(grammar, _compiler().tokenizer, read)


def accepts(text: str, grammar: Grammar) -> Accepted:
    """Return whether a grammar allows a text, or where it fails; InputError for a bad grammar."""
    if not isinstance(text, str):
        raise InputError("text", f" must be a string, not {shown(text)}")
    compiled = _compiler().compile(grammar)
    matcher, checks = compiled.matcher(), [compiled.check] if compiled.check else []
    data = text.encode("utf-8", "surrogatepass")
    good = matcher.valid([*data])
    for i in range(good):
        if not all(check.allows(data[:i], data[i : i + 1]) for check in checks):
            good = i
            break
    if good < len(data):
        return Accepted(False, len(data[:good].decode(errors="ignore")))
    for i, byte in enumerate(data):
        matcher.accept(byte)
        if matcher.repeats:
            return Accepted(False, len(data[:i].decode(errors="ignore")))
    return Accepted(matcher.may_end and all(check.allows(data, b"") for check in checks), None)
