"""From a grammar's text to a matcher that says, token by token, what may follow.

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
from cutaway.text.grammar.schema_checks import SchemaCheck, relaxed
from cutaway.text.grammar.schemas import own_formats, without_own_formats

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


Read = Callable[[Grammar], str]
"""How the source of a grammar is made, as llguidance reads it; InputError where it cannot be."""

_MOST, _MOST_BYTES = 64, 1 << 20
"""Compiled grammars that are kept, and the bytes of their sources, each of which takes 200."""
_AHEAD = 512
"""Characters of forced text that are cut into tokens as the tokenizer does; what is forced may be
long, and is cut anew at each step."""


def engine() -> str:
    """What computes masks here, with versions: others may allow other tokens.

    llguidance compiles grammars, and cutaway narrows its masks.
    """
    import llguidance

    return f"llguidance {llguidance.__version__}, cutaway {__version__}"


class UncompiledError(Exception):
    """A grammar would have to be compiled, which may take seconds."""


class TokenizerLike(Protocol):
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

    def __init__(self, words: TokenizerLike) -> None:
        texts = [words.token_bytes(i) for i in range(words.vocab_size)]
        self.tokens = [data or words.token_name(i).encode() for i, data in enumerate(texts)]
        self.special_token_ids = [i for i, data in enumerate(texts) if not data]
        self._encode = words.encode
        self._of_byte = {data[0]: i for i, data in enumerate(texts) if len(data) == 1}
        self.eos_token_id = next(iter(words.end_ids), 0)
        self.bos_token_id = words.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        """Token ids as the model's own tokenizer cuts them, so that forced tokens are those."""
        if isinstance(text, bytes):
            text = text.decode()
        rest = text[_AHEAD:].encode()
        return self._cut(text[:_AHEAD]) + [self._of_byte.get(byte, 0) for byte in rest]

    def _cut(self, text: str) -> list[int]:
        ids, data = self._encode(text, goes_on=True), text.encode()
        if b"".join(map(self.tokens.__getitem__, ids)) == data:
            return ids
        if len(text) > 1:  # a tokenizer may read a character as another
            half = len(text) // 2
            return self._cut(text[:half]) + self._cut(text[half:])
        return [self._of_byte.get(byte, 0) for byte in data]


@dataclass(frozen=True)
class Compiled:
    """A grammar for one vocabulary: matchers of an empty text, or why there is none.

    size    of its source
    ways    what a text may keep to: one, or two where calls may replace a text of a schema
    check   what its masks leave out, to be tried with each token
    failed  why it cannot be compiled, in the words of an InputError
    """

    size: int
    ways: tuple[GrammarState, ...] = ()
    check: SchemaCheck | None = None
    failed: tuple[str, ...] = ()

    def checked(self) -> "Compiled":
        """Itself; InputError where it cannot be compiled."""
        if not self.ways:
            raise InputError(*self.failed)
        return self

    def matcher(self) -> Matcher:
        """Of an empty text."""
        return Matcher([way.fork() for way in self.ways])


class GrammarCompiler:
    """The grammars of one model. Any thread may use it; the last few are kept.

    read  how sources are made; another process may do it, where grammars are strangers'
    """

    def __init__(self, words: TokenizerLike) -> None:
        self.read: Read = source_of
        self._words = words
        self._lock = Lock()
        self._last: OrderedDict[Grammar, Compiled] = OrderedDict()

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

    def prepare(self) -> None:
        """Make the tables, which holds the interpreter for as long."""
        with self._lock:
            _ = self.tokenizer, self._quoted

    def compile(self, grammar: Grammar) -> Compiled:
        """InputError that names the field where it is no grammar, or not supported."""
        with self._lock:
            found = self._last.get(grammar)
            tokenizer = self.tokenizer
        if found is None:
            found = self._either(*grammar.ways) if grammar.calls else self._one(grammar, tokenizer)
        with self._lock:
            self._keep(grammar, found)
        return found.checked()

    def _either(self, text: Grammar, calls: Grammar) -> Compiled:
        """A text, or calls. A check would read the calls, too."""
        said, called = self.compile(text), self.compile(calls)
        if said.check is not None:
            names = ", ".join(said.check.keywords)
            raise InputError(
                "json_schema",
                f": {names} would have to be checked token by token, which cannot be "
                "beside tools: leave out tools, or these keywords",
            )
        return Compiled(said.size + called.size, (*said.ways, *called.ways))

    def _one(self, grammar: Grammar, tokenizer: "LLTokenizer") -> Compiled:
        size, ends = len(grammar.text), self._ends(tokenizer)
        try:
            made = _matcher(grammar, tokenizer, self.read)
            judge, keys = judge_for(grammar), self._keys(grammar)
            calls = made.deep_copy() if marks_calls(grammar.text) else None
            state = GrammarState(made, judge, ends, keys, calls)
            return Compiled(size, (state,))
        except InputError as refused:
            try:
                made, check = _checked(grammar, tokenizer, self.read, refused)
                return Compiled(size, (GrammarState(made, None, ends),), check)
            except InputError as error:
                return Compiled(size, failed=error.args)

    @cached_property
    def _quoted(self) -> QuotedTokens:
        return QuotedTokens(map(self._words.token_bytes, range(self._words.vocab_size)))

    def _keys(self, grammar: Grammar) -> UniqueKeys | None:
        """What keeps a key from being written twice, where a schema lets it."""
        alone = grammar.kind == "json_schema" and not grammar.thought
        if not alone or not has_open_objects(json.loads(grammar.text)):
            return None
        return UniqueKeys(self._quoted)

    def _ends(self, tokenizer: "LLTokenizer") -> Ends:
        words = -(-self._words.vocab_size // 32)
        return Ends(words, tuple(self._words.end_ids), tokenizer.decode_bytes)

    def known(self, grammar: Grammar) -> Compiled | None:
        """As ``compile``; None where it is not ready."""
        with self._lock:
            found = self._last.get(grammar)
        return found and found.checked()

    def ready(self, grammar: Grammar) -> Compiled:
        """As ``compile``; UncompiledError where it is not ready."""
        if (found := self.known(grammar)) is None:
            raise UncompiledError
        return found

    def matcher(self, grammar: Grammar) -> "Matcher":
        """Of an empty text."""
        return self.compile(grammar).matcher()

    def _keep(self, grammar: Grammar, found: Compiled) -> None:
        self._last[grammar] = found
        self._last.move_to_end(grammar)
        while len(self._last) > _MOST or sum(c.size for c in self._last.values()) > _MOST_BYTES:
            self._last.popitem(last=False)


def notes_on(grammar: Grammar, compiled: Compiled) -> list[str]:
    """What a reader should know of how a text keeps to it."""
    check, notes = compiled.check, []
    if check is not None:
        names = ", ".join(check.keywords)
        notes.append(f"json_schema: checked token by token, since no grammar can say it: {names}")
    if grammar.kind == "json_schema" and (own := own_formats(json.loads(grammar.text))):
        notes.append(
            "json_schema: any text is allowed for these formats, which JSON Schema does not "
            f"define: {', '.join(sorted(own))}"
        )
    if grammar.kind == "grammar" and (idle := idle_attributes(without_marks(grammar.text))):
        notes.append(f"grammar: these attributes of rules do nothing here: {', '.join(idle)}")
    return notes


def _matcher(grammar: Grammar, tokenizer: "LLTokenizer", read: Read) -> "LLMatcher":
    from llguidance import LLMatcher

    made = LLMatcher(tokenizer, read(grammar), log_level=0, limits=limits())
    if not made.is_error():  # its first work is done here, and not where the engine steps
        made.compute_bitmask()
        made.compute_ff_tokens()
    if made.is_error():
        why = made.get_error()
        said = (": it allows no text",) if why.startswith("NoExtension") else reason(why)
        raise InputError(grammar.kind, *said)
    return made


def _checked(
    grammar: Grammar, tokenizer: "LLTokenizer", read: Read, refused: InputError
) -> "tuple[LLMatcher, SchemaCheck]":
    """A schema that masks alone cannot hold a text to; ``refused`` where checks do not help."""
    if grammar.kind != "json_schema" or grammar.thought:  # a check would read the thought, too
        raise refused
    check = SchemaCheck(without_own_formats(json.loads(grammar.text)))
    if not check.keywords:
        raise refused
    try:
        guided = json.dumps(relaxed(check.schema, guided=True))
        return _matcher(replace(grammar, text=guided), tokenizer, read), check
    except InputError:
        plain = json.dumps(relaxed(check.schema, guided=False))
        return _matcher(replace(grammar, text=plain), tokenizer, read), check


# -- a text that is there already --------------------------------------------------------------
# Whether it could have been written under a grammar, byte by byte: no vocabulary has a say.

_END = 256


@dataclass(frozen=True)
class Accepted:
    """True where `whole` is.

    whole  whether the grammar allows the text, ended here
    at     index of the first character that cannot follow those before it; None where all can
    """

    whole: bool
    at: int | None

    def __bool__(self) -> bool:
        return self.whole


class _Bytes:
    """A vocabulary of the 256 bytes and an end."""

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
    """A matcher of an empty text whose tokens are bytes; InputError for a bad grammar.

    ready: compile nothing; UncompiledError where that is needed
    """
    compiler = _compiler()
    return (compiler.ready if ready else compiler.compile)(grammar).matcher()


def accepts(text: str, grammar: Grammar) -> Accepted:
    """Whether the grammar allows the text, and where not; InputError for a bad grammar."""
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
