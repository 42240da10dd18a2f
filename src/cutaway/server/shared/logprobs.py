"""Log-probabilities in OpenAI's two forms, token by token.

The logarithms are natural; tokens have their true bytes, also where these are part of a character.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from cutaway.engine import FinishReason, Step
from cutaway.requests.generation import Generation
from cutaway.sampling import ReadRow
from cutaway.server.job import end_at
from cutaway.server.shared.chat_schemas import ChatToken, LikelyToken
from cutaway.server.shared.request_models import When
from cutaway.server.shared.schemas import CompletionLogprobs, PromptToken
from cutaway.text import TextStream, Tokenizer
from cutaway.trace.exports import REMOVED, openai_token


@dataclass(frozen=True, slots=True)
class Entry:
    """One token, its log-probability and the likeliest; None for the first token of a prompt.

    offset  characters of the text before it
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


_NO_TEXT = (FinishReason.END_TOKEN, FinishReason.STOP_TOKEN)  # whose last token is no text


class Entries:
    """Those of one text, each shown when the text that it begins is shown.

    A token of which a byte may belong to a stop string is delayed like the text, and left out
    if the stop string is completed; so is the token that ends the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: Generation,
        top: int,
        when: When = "before",
        offset: int = 0,
    ) -> None:
        """offset: characters that are shown before the text."""
        self._tokenizer, self._text, self._top, self._when = tokenizer, text, top, when
        self._decoder, self._waiting = TextStream(), deque[tuple[int, Entry]]()
        self._decoded = self._shown = offset
        self._bytes = self._released = 0  # of the tokens, and of the text that is certain

    def after(self, step: Step) -> list[Entry]:
        """What can be shown after this step."""
        ended = end_at(self._text, step)
        self._released += step.released_bytes
        if ended is None or ended.reason not in _NO_TEXT:
            data = self._tokenizer.token_bytes(step.token_id)
            self._bytes += len(data)
            self._waiting.append((self._bytes, self._entry(step)))
            self._decoded += len(self._decoder.push(data))
        self._shown += len(step.text)
        ready: list[Entry] = []
        while self._waiting and self._is_ready(*self._waiting[0], ended=ended is not None):
            ready.append(self._waiting.popleft()[1])
        return ready

    def _is_ready(self, end: int, entry: Entry, *, ended: bool) -> bool:
        """end: how many bytes of the text there are with this token."""
        return end <= self._released and (ended or entry.offset < self._shown)

    def _entry(self, step: Step) -> Entry:
        own: float | None = step.logprob
        top: tuple[tuple[int, float], ...] = ()
        if step.observed:
            both, before = step.observed.logprobs(self._top), self._when == "before"
            top = both.model if before else both.chain
            own = both.chosen_model if before else both.chosen_chain
        return Entry(step.token_id, REMOVED if own is None else own, top, self._decoded)


def of_prompt(
    tokenizer: Tokenizer, ids: Iterable[int], read: Iterable[ReadRow], top: int, text: str
) -> list[Entry]:
    """Those of a prompt that is echoed as ``text``; nothing says how likely its first token was."""
    decoder, end, entries = TextStream(), 0, list[Entry]()
    for token_id, row in zip(ids, [None, *read], strict=False):
        own = row.logprob if row else None
        start, end = _place(text, end, decoder.push(tokenizer.token_bytes(token_id)))
        entries.append(Entry(token_id, own, row.top[:top] if row else (), start))
    return entries


def _place(text: str, after: int, piece: str) -> tuple[int, int]:
    """Where a token begins and ends in a prompt that was written as text.

    A space that the tokenizer put in front is not there; a special token is, by its name.
    """
    for written in (piece, piece.removeprefix(" ")):
        if text.startswith(written, after):
            return after, after + len(written)
    found = text.find(piece, after)
    return (after, after) if found < 0 else (found, found + len(piece))


def chat_form(tokenizer: Tokenizer, entries: Iterable[Entry]) -> list[ChatToken]:
    """The ``content`` of a chat completion's logprobs."""
    return [
        {
            **_chat_token(tokenizer, e.token_id, e.logprob),
            "top_logprobs": [_chat_token(tokenizer, i, p) for i, p in e.top],
        }
        for e in entries
    ]


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> LikelyToken:
    data, name = tokenizer.token_bytes(token_id), tokenizer.token_name(token_id)
    return cast(LikelyToken, openai_token(data, name, logprob))


def completion_form(tokenizer: Tokenizer, entries: list[Entry]) -> CompletionLogprobs:
    """The ``logprobs`` of a completion; of tokens with equal text the likelier is kept."""
    return {
        "tokens": [_name(tokenizer, e.token_id) for e in entries],
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": [
            None if e.logprob is None else _by_name(tokenizer, e.top) for e in entries
        ],
        "text_offset": [e.offset for e in entries],
    }


def prompt_form(
    tokenizer: Tokenizer, text: Generation, top: int
) -> list[dict[str, PromptToken] | None]:
    """The ``prompt_logprobs`` of vLLM: each token of the prompt, and the ``top`` likeliest."""

    def told(token_id: int, logprob: float, rank: int) -> PromptToken:
        return {"logprob": logprob, "rank": rank, "decoded_token": _name(tokenizer, token_id)}

    found: list[dict[str, PromptToken] | None] = [None]
    for own, row in zip(text.prompt_token_ids[1:], text.prompt_scores, strict=True):
        assert row.logprob is not None
        assert row.rank is not None
        likeliest = {i: told(i, p, rank) for rank, (i, p) in enumerate(row.top[:top], 1)}
        each = {own: told(own, row.logprob, row.rank)} | likeliest
        found.append({str(i): one for i, one in each.items()})
    return found


def _by_name(tokenizer: Tokenizer, top: Iterable[tuple[int, float]]) -> dict[str, float]:
    by_name: dict[str, float] = {}
    for token_id, logprob in top:
        by_name.setdefault(_name(tokenizer, token_id), logprob)
    return by_name


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; where it is part of a character, its bytes as OpenAI writes them."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.token_name(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
