"""Whether a text that is there already could have been written under a grammar.

Goes byte by byte, so that no vocabulary has a say.
"""

from dataclasses import dataclass
from functools import cache

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.grammar.compiler import GrammarCompiler
from cutaway.text.grammar.matcher import Matcher
from cutaway.text.grammar.source import Grammar

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
        raise InputError(f"text must be a string, not {shown(text)}")
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
