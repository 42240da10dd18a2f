"""A prompt's keys and values: computed, saved to a file, and restored from one.

A few blocks are moved between two steps, so that other texts continue.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from cutaway.base.checks import shown
from cutaway.base.progress import Bar, tokens_done
from cutaway.base.whole_files import check_place
from cutaway.engine import Engine, Request, StopParams
from cutaway.engine.prefix import fill_blocks, read_blocks
from cutaway.errors import CutawayError, InputError
from cutaway.files.prefix import PrefixHeader, PrefixReader, write_prefix
from cutaway.requests.owner import EndListener
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import SamplingParams

if TYPE_CHECKING:
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.requests.base import BaseLLM, Message

T = TypeVar("T")
_AT_ONCE = 1 << 24  # bytes of blocks between two steps of others


class Prefix(NamedTuple):
    """A saved prefix, as it was written or taken back.

    token_ids      of its whole KV blocks
    cached_tokens  how many of them the prefix cache has now
    text           what was saved, which may be longer than they are; None: token ids or messages
    special        whether special tokens were parsed in the text
    nbytes         of the file
    """

    token_ids: tuple[int, ...]
    cached_tokens: int
    text: str | None
    special: bool
    nbytes: int


class BetweenSteps(Protocol):
    """Calls a function of the engine between two steps, on any thread."""

    def __call__(self, function: Callable[[Engine], T]) -> T:
        """What it returns or raises."""


class AskedPrefix(NamedTuple):
    """What is to be saved, read: the token ids, and the text that they were."""

    ids: list[int]
    text: str | None
    special: bool

    def request(self, model: "LoadedModel") -> Request:
        """What computes it. One token is drawn, and forgotten."""
        return Request(
            prompt_token_ids=tuple(self.ids),
            adapter=model.request_adapter,
            sampling=SamplingParams(temperature=0),
            stopping=StopParams(max_tokens=1),
        )


def read_asked(
    user: "BaseLLM", prompt: Any, messages: "Iterable[Message] | None", special: bool
) -> AskedPrefix:
    """InputError where it is not one prompt or one conversation."""
    if (prompt is None) == (messages is None):
        raise InputError("give a prompt or messages to save, one of them")
    if messages is not None:
        if special:
            raise InputError("special says how to read a text, and these are messages")
        return AskedPrefix(user.chat_ids(messages), None, False)
    ids = user.read_prompt(prompt, user.parse_options({"special": special}))
    return AskedPrefix(ids, prompt if isinstance(prompt, str) else None, special)


def _named(path: Any) -> Path:
    try:
        place = Path(path)
        os.fsencode(place)
    except (TypeError, ValueError):  # no name at all; characters that no name has
        place = Path("\0")
    if "\0" in str(place):
        raise InputError(f"path must be a file's name, not {shown(path)}")
    return place


def place_of(path: Any) -> Path:
    """Where a file is to be; InputError where none can be, before anything is computed."""
    place = _named(path)
    check_place(place)
    return place


def check_worth(asked: AskedPrefix, model: "LoadedModel", between: BetweenSteps) -> None:
    """InputError where nothing of it could be kept or found again: before it is computed."""
    _check_cached(between)
    _ = model.identity  # which is not to be had where the model's file has changed
    block = between(lambda engine: engine.blocks.block)
    if len(asked.ids) < block:
        raise InputError(
            f"prompt has {len(asked.ids)} tokens, and whole KV blocks of {block} are saved: give "
            "a longer one"
        )


def _check_cached(between: BetweenSteps) -> None:
    if not between(lambda engine: engine.scheduler.policy.prefix_cache):
        raise InputError("prefix_cache is off, which saved prefixes belong to: leave it on")


def compute(llm: SyncLLM, asked: AskedPrefix) -> None:
    """Compute a prompt, beside whatever else is written; raises what it failed with."""
    listener, total = EndListener(), len(asked.ids)
    with (
        llm.owner.running(asked.request(llm.model), listener) as sequence,
        Bar("computing", total, show=llm.progress, figures=tokens_done, after=1) as bar,
    ):
        while listener.ended is None:
            llm.owner.turn()
            bar.update(sequence.num_computed_tokens)
    if listener.ended.error:
        raise listener.ended.error


def save(
    path: Path,
    asked: AskedPrefix,
    model: "LoadedModel",
    between: BetweenSteps,
    *,
    whole: bool,
    show: bool,
) -> Prefix:
    """Write what the prefix cache has of a text.

    whole: CutawayError where that is not all of it
    """
    block, salt = model.backend.kv.block_tokens, _salt(model)
    ids = asked.ids[: len(asked.ids) // block * block]
    cached = between(
        lambda engine: read_blocks(engine, ids, 0, len(ids), lambda *_: None, salt=salt)
    )
    if whole and cached * block < len(ids):
        raise _lost()
    head = PrefixHeader(
        model=model.name, computed_by=model.computed_by, block_tokens=block,
        token_ids=tuple(ids[: cached * block]), text=asked.text, special=asked.special,
    )  # fmt: skip
    most = _most(model)
    with write_prefix(path, head) as file, _bar("saving", head, show=show) as bar:
        done = 0
        while done < head.blocks:
            first = done
            done = between(
                lambda engine: read_blocks(engine, head.token_ids, first, most, file.add, salt=salt)  # noqa: B023
            )
            if done == first:
                raise _lost()
            bar.update(done * block)
    return _prefix(head, head.blocks, file.nbytes)


def restore(path: Any, model: "LoadedModel", between: BetweenSteps, *, show: bool) -> Prefix:
    """Put what a file holds into the prefix cache, as far as there is room."""
    _check_cached(between)
    with PrefixReader(_named(path)) as file, _bar("restoring", file.head, show=show) as bar:
        head, most = file.head, _most(model)
        _check_same(file.path, head, model)
        salt = _salt(model)

        def fill(engine: Engine) -> int:
            return fill_blocks(engine, head.token_ids, head.block_bytes, most, file.read, salt=salt)

        before, done = -1, 0
        while before < done < head.blocks:
            before, done = done, between(fill)
            bar.update(done * head.block_tokens)
        return _prefix(head, done, file.nbytes)


_RENAMED = {"cutaway-0.1.0-cpu": "cutaway-1-cpu"}
"""What the first release called its arithmetic, before that had a number of its own."""


def _check_same(path: Path, head: PrefixHeader, model: "LoadedModel") -> None:
    """InputError unless this model would have computed the same bits."""
    now = model.computed_by
    for what in dict.fromkeys((*now, *head.computed_by)):
        then = head.computed_by.get(what)
        if _RENAMED.get(then or "", then) == now.get(what):
            continue
        if what in ("weights", "tokenizer"):
            raise InputError(
                f"{path} is of {head.model}, and this is {model.name} with other {what}: save it "
                "again with this model"
            )
        raise InputError(
            f"{path} was saved with another {what} ({then or 'none'}) than this model has now "
            f"({now.get(what, 'none')}): save it again"
        )


def _salt(model: "LoadedModel") -> tuple[int, str] | None:
    """Of its texts in the prefix cache."""
    return Request(prompt_token_ids=(), adapter=model.request_adapter).salt


def _most(model: "LoadedModel") -> int:
    """Blocks between two steps of others."""
    kv = model.backend.kv
    return max(_AT_ONCE // (kv.bytes_per_token * kv.block_tokens), 1)


def _bar(label: str, head: PrefixHeader, *, show: bool) -> Bar:
    return Bar(label, len(head.token_ids), show=show, figures=tokens_done, after=1)


def _prefix(head: PrefixHeader, blocks: int, nbytes: int) -> Prefix:
    cached = blocks * head.block_tokens
    return Prefix(head.token_ids, cached, head.text, head.special, nbytes)


def _lost() -> CutawayError:
    return CutawayError(
        "other texts took the memory of the keys and values before they were saved: try again, or "
        "raise kv_tokens"
    )
