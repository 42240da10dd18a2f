"""Stop strings and stop tokens: when a sequence ends, and how much of its text is certain."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

from cutaway.base.checks import check_bool, check_int, shown
from cutaway.errors import InputError, Name
from cutaway.text import TextStream


@dataclass(frozen=True, kw_only=True)
class StopParams:
    """The conditions that end a sequence, besides a full context.

    max_tokens      at most this many new tokens; 0 only scores the prompt
    stop            strings; the text ends before the first that is completed
    stop_token_ids  token ids; the text ends before such a token
    ignore_eos      continue past the model's own end tokens

    Raises InputError naming the field.
    """

    max_tokens: int = 256
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_tokens", check_int("max_tokens", self.max_tokens, 0))
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) for s in stop):
            raise InputError(
                "stop", f" must be a string or a list of strings, not {shown(self.stop)}"
            )
        if "" in stop:
            raise InputError("stop", " must not hold an empty string; leave it out instead")
        if any("\ud800" <= character <= "\udfff" for s in stop for character in s):
            raise InputError(
                "stop", f" must be whole characters, not halves of them: {self.stop!r}"
            )
        if not isinstance(self.stop_token_ids, (list, tuple)):
            raise InputError(
                "stop_token_ids", f" must be a list of token ids, not {shown(self.stop_token_ids)}"
            )
        check_bool("ignore_eos", self.ignore_eos)
        object.__setattr__(self, "stop", tuple(stop))
        name = Name("stop_token_ids", prose=": a token id")
        ids = tuple(check_int(name, i, 0) for i in self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)


class StopMatcher:
    """Finds the first completed stop string in a stream of bytes.

    It holds back as few bytes as possible: those with which a stop string may begin. Each stop
    string has a Knuth-Morris-Pratt automaton, whose state is the length of the longest prefix of
    that string that the stream ends with; the longest such prefix is held back. Cost:
    amortised O(1) per byte and string, whatever its length. Of strings completed by the same byte,
    the longest wins.

    match  the stop string that was completed
    """

    def __init__(self, stops: Items[str]) -> None:
        self.stops = sorted(dict.fromkeys(stops), key=lambda s: -len(s.encode()))
        self._needles = [s.encode() for s in self.stops]
        self._borders = [_borders(needle) for needle in self._needles]
        self._states = [0] * len(self.stops)
        self._held_back = bytearray()
        self.match: str | None = None

    def push(self, data: bytes, *, armed: bool = True) -> bytes:
        """Take the bytes of one token; return the bytes that are now certain to be text.

        armed: whether a stop string that these bytes complete ends the text; else it stays text
        """
        if not self.stops:
            return data
        for byte in data:
            self._held_back.append(byte)
            for i, needle in enumerate(self._needles):
                self._states[i] = _advance(needle, self._borders[i], self._states[i], byte)
                if self._states[i] == len(needle):
                    if not armed:
                        self._states[i] = self._borders[i][-1]
                        continue
                    self.match = self.stops[i]
                    text = bytes(self._held_back[: -len(needle)])
                    self._held_back.clear()
                    return text
        return self._release(max(self._states))

    def flush(self) -> bytes:
        """Return the bytes that were held back, because the stream ends."""
        return self._release(0)

    def _release(self, keep: int) -> bytes:
        cut = len(self._held_back) - keep
        text = bytes(self._held_back[:cut])
        del self._held_back[:cut]
        return text


class SequenceText:
    """The text of a sequence's tokens, as far as it is certain.

    Bytes are held back while a stop string may begin with them, and while their character is
    incomplete.

    token_bytes  the bytes of a token id
    ending       tokens that end the sequence, and add no text
    skip         how many of the first bytes belong to the prompt (token healing)
    min_tokens   a stop string that is completed before this many tokens stays text
    """

    def __init__(
        self, stops: Items[str], token_bytes: Callable[[int], bytes], ending: frozenset[int],
        *, skip: int, min_tokens: int,
    ) -> None:  # fmt: skip
        self._matcher, self._stream = StopMatcher(stops), TextStream()
        self._token_bytes, self._ending = token_bytes, ending
        self._skip, self._min_tokens, self._tokens = skip, min_tokens, 0

    @property
    def stop(self) -> str | None:
        """The stop string that was completed."""
        return self._matcher.match

    def push(self, token_id: int) -> tuple[bytes, str]:
        """Append a token; return the bytes that are now certain, and their whole characters."""
        self._tokens += 1
        data = b"" if token_id in self._ending else self._token_bytes(token_id)
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        certain = self._matcher.push(data[skipped:], armed=self._tokens >= self._min_tokens)
        return certain, self._stream.push(certain)

    def end(self) -> tuple[bytes, str]:
        """Return the bytes that were held back, and their text, because the sequence ends."""
        rest = self._matcher.flush()
        return rest, self._stream.push(rest) + self._stream.flush()


def _advance(needle: bytes, borders: list[int], state: int, byte: int) -> int:
    while state and needle[state] != byte:
        state = borders[state - 1]
    return state + 1 if needle[state] == byte else state


def _borders(needle: bytes) -> list[int]:
    """borders[i]: the longest proper prefix of needle[: i + 1] that is also its suffix."""
    borders = [0]
    for byte in needle[1:]:
        borders.append(_advance(needle, borders, borders[-1], byte))
    return borders
