"""Saves a prompt's keys and values to a file, and restores them.

A few blocks are moved between two steps, so that other texts continue.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.base.checks import check_bool, shown
from cutaway.base.progress import Bar, tokens_done
from cutaway.base.whole_files import check_place
from cutaway.compute.backends import Bytes
from cutaway.engine import Request, RunParams, StopParams
from cutaway.engine.loop.pinned import fill_blocks, read_blocks
from cutaway.engine.memory.block_manager import Salt
from cutaway.engine.request import new_salt
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.files.prefix import PrefixHeader, PrefixReader, write_prefix
from cutaway.requests.owner import EndListener
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import SamplingParams
from cutaway.text.characters import printable

if TYPE_CHECKING:
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.requests.base import Message, Prompt

_AT_ONCE = 1 << 24  # bytes of blocks that are moved between two steps


class Prefix(NamedTuple):
    """A prefix that was saved or restored.

    token_ids      the token ids of the prefix's whole KV blocks
    cached_tokens  how many of these the prefix cache has now
    text           the prompt, which may be longer than its whole blocks; None if token ids or
                   messages were saved
    special        whether special tokens were parsed in the text
    nbytes         size of the file
    """

    token_ids: tuple[int, ...]
    cached_tokens: int
    text: str | None
    special: bool
    nbytes: int


class PrefixToSave(NamedTuple):
    """A prompt to save.

    text     the prompt, if it was given as text
    request  computes the prompt; it draws one token, which is ignored
    """

    text: str | None
    special: bool
    request: Request


def save_prefix(
    llm: SyncLLM,
    path: str | os.PathLike[str],
    prompt: "Prompt | None" = None,
    *,
    messages: "Iterable[Message] | None" = None,
    special: bool = False,
    compute: bool = True,
    adapter: str = "",
    cache_salt: str | None = None,
) -> Prefix:
    """Save the keys and values of a prompt, for ``restore_prefix`` of the same model.

    prompt, messages: as for generate and chat; whole KV blocks of 32 tokens are saved
    special: parse special tokens in a prompt that is text
    compute: compute what the prefix cache lacks; otherwise save only what it has
    adapter: the name of a loaded adapter, as for generate
    cache_salt: as for generate; the file does not contain the salt
    An existing file is replaced once the new one is complete. Raises InputError for a bad
    prompt, CutawayError where the file cannot be written.
    """
    llm = llm.with_adapter(adapter)
    place = _file_name(path)
    check_place(place)
    _check_shares_beginnings(llm)
    to_save = _read_prompt(llm, prompt, messages, special, RunParams(cache_salt=cache_salt))
    if compute := check_bool("compute", compute):
        _check_worth(llm, to_save)
        _compute(llm, to_save.request)
    return _save(llm, place, to_save, whole=compute)


def _read_prompt(
    llm: SyncLLM, prompt: Any, messages: "Iterable[Message] | None", special: bool, run: RunParams
) -> PrefixToSave:
    """Read a prompt or a conversation; InputError unless exactly one is given."""
    if (prompt is None) == (messages is None):
        raise InputError("give a prompt or messages to save, one of them")
    if messages is not None:
        if special:
            raise InputError("special", " says how to read a text, and these are messages")
        ids = llm.chat_ids(messages)
    else:
        ids = llm.read_prompt(prompt, llm.parse_options({"special": special}))
    return PrefixToSave(
        prompt if isinstance(prompt, str) else None, special, _request(llm, ids, run)
    )


def _request(llm: SyncLLM, ids: Sequence[int], run: RunParams) -> Request:
    sampling, stopping = SamplingParams(temperature=0), StopParams(max_tokens=1)
    return llm.request(ids, run=run, sampling=sampling, stopping=stopping)


def _file_name(path: Any) -> Path:
    try:
        place = Path(path)
        os.fsencode(place)
    except (TypeError, ValueError):  # not a name, or characters that no name can have
        place = Path("\0")
    if "\0" in str(place):
        raise InputError("path", f" must be a file's name, not {shown(path)}")
    return place


def _check_worth(llm: SyncLLM, to_save: PrefixToSave) -> None:
    """Raise InputError, before anything is computed, if nothing in the file could be restored."""
    _check_cached(llm)
    _ = llm.model.identity  # raises where the model's file has changed
    block = llm.owner.call(lambda: llm.engine.blocks.block)
    if (tokens := len(to_save.request.prompt_token_ids)) < block:
        raise InputError(
            "prompt",
            f" has {tokens} tokens, and whole KV blocks of {block} are saved: give a longer one",
        )


def _check_shares_beginnings(llm: SyncLLM) -> None:
    """Raise InputError where a prompt's beginning depends on its end."""
    if llm.config.attention == "prefix-lm":
        raise InputError(
            "prompt",
            ": this model reads it to both sides, so that no other prompt can use what is kept of "
            "its beginning: give the whole prompt to each request",
        )


def _check_cached(llm: SyncLLM) -> None:
    if not llm.owner.call(lambda: llm.engine.scheduler.policy.prefix_cache):
        raise InputError("prefix_cache", " is off, which saved prefixes belong to: leave it on")


def _compute(llm: SyncLLM, request: Request) -> None:
    """Compute a prompt while other texts run; raise its sequence's error."""
    listener, total = EndListener(), len(request.prompt_token_ids)
    with (
        llm.owner.running(request, listener) as sequence,
        Bar("computing", total, show=llm.progress, figures=tokens_done, after=1) as bar,
    ):
        while not listener.has_ended():
            llm.owner.turn()
            bar.update(sequence.num_computed_tokens)
    if listener.end and listener.end.error:
        raise listener.end.error


def _save(llm: SyncLLM, path: Path, to_save: PrefixToSave, *, whole: bool) -> Prefix:
    """Write the blocks of a text that are in the prefix cache.

    whole: raise CutawayError if some blocks are missing
    """
    model = llm.model
    block, salt = model.backend.kv.block_tokens, to_save.request.salt
    ids = to_save.request.prompt_token_ids
    ids = ids[: len(ids) // block * block]

    def read(ids: Sequence[int], first: int, max_blocks: int, add: Callable[..., object]) -> int:
        return llm.owner.call(
            lambda: read_blocks(llm.engine, ids, first, max_blocks, add, salt=salt)
        )

    cached = read(ids, 0, len(ids), lambda *_: None)
    if whole and cached * block < len(ids):
        raise _memory_error()
    head = PrefixHeader(
        model=model.name, computed_by=model.computed_by, block_tokens=block,
        token_ids=ids[: cached * block], text=to_save.text, special=to_save.special,
    )  # fmt: skip
    with write_prefix(path, head) as file, _bar("saving", head, show=llm.progress) as bar:
        done = 0
        while done < head.blocks:
            first, done = done, read(head.token_ids, done, _blocks_at_once(model), file.add)
            if done == first:
                raise _memory_error()
            bar.update(done * block)
    return _prefix(head, head.blocks, file.nbytes)


def restore_prefix(
    llm: SyncLLM,
    path: str | os.PathLike[str],
    *,
    adapter: str = "",
    cache_salt: str | None = None,
) -> Prefix:
    """Put a saved prefix into the prefix cache, for prompts that begin with its tokens.

    If ``kv_tokens`` has no room for the whole prefix, fewer tokens are cached (``cached_tokens``).
    The bits are the same as if the prefix were computed. Raises InputError for a file that cannot
    be read or is of another model, FormatError for a damaged one.
    adapter: the name of the adapter with which it was saved
    cache_salt: the salt of the texts that may use the prefix; it may differ from the one at saving
    """
    llm = llm.with_adapter(adapter)
    _check_shares_beginnings(llm)
    _check_cached(llm)
    salt = llm.request((), run=RunParams(cache_salt=cache_salt)).salt
    with (
        PrefixReader(_file_name(path)) as file,
        _bar("restoring", file.head, show=llm.progress) as bar,
    ):
        _check_same(file.path, file.head, llm.model)
        done = _fill(llm, file, file.head.blocks, salt, bar)
        return _prefix(file.head, done, file.nbytes)


def _fill(llm: SyncLLM, file: PrefixReader, blocks: int, salt: Salt | None, bar: Bar) -> int:
    """Put the first blocks of a file into the prefix cache; return how many it then has."""
    head, max_blocks = file.head, _blocks_at_once(llm.model)
    ids = head.token_ids[: blocks * head.block_tokens]

    def fill() -> int:
        return fill_blocks(
            llm.engine, ids, head.block_bytes[:blocks], max_blocks, file.read, salt=salt
        )

    before, done = -1, 0
    while before < done < blocks:
        before, done = done, llm.owner.call(fill)
        bar.update(done * head.block_tokens)
    return done


def check_prefix(llm: SyncLLM, path: Any, *, whole: bool = False) -> int:
    """Compute a block again and compare it with the file's; return how many were compared.

    The block is chosen at random, so that it cannot be predicted. It is computed from the blocks
    before it in the file. FormatError if it differs, or if the file is damaged.
    whole: compute the text from its beginning, and compare all blocks. This is always done if a
           model has windows or states, of which the file has only a part
    """
    _check_shares_beginnings(llm)
    _check_cached(llm)
    if llm.model.backend.name == "reference":
        raise InputError("blocks of the reference backend are not compared: its bits are NumPy's")
    with (
        PrefixReader(_file_name(path)) as file,
        _bar("checking", file.head, show=llm.progress) as bar,
    ):
        head = file.head
        _check_same(file.path, head, llm.model)
        if not head.blocks:
            return 0
        whole = whole or len({*head.block_bytes}) > 1
        first = 0 if whole else SystemRandom().randrange(head.blocks)
        last = head.blocks if whole else first + 1
        run = RunParams(cache_salt=new_salt())
        request = _request(llm, head.token_ids[: last * head.block_tokens], run)
        if first and _fill(llm, file, first, request.salt, bar) < first:
            raise _memory_error()
        _compute(llm, request)
        _compare(llm, file, request, range(first, last))
        return last - first


def _compare(llm: SyncLLM, file: PrefixReader, request: Request, places: range) -> None:
    """Raise FormatError naming the first of these blocks that differs from the file's."""

    def compare(place: int, memory: Sequence[Bytes]) -> None:
        if not file.has(place, memory):
            first = place * file.head.block_tokens
            raise FormatError(
                f"{file.path}: block {place} (tokens {first} to {first + file.head.block_tokens}) "
                "has not the keys and values of its text: do not use it"
            )

    ids, done = request.prompt_token_ids, places.start

    def read() -> int:
        max_blocks = _blocks_at_once(llm.model)
        return read_blocks(llm.engine, ids, done, max_blocks, compare, salt=request.salt)

    while done < places.stop:
        before, done = done, llm.owner.call(read)
        if done == before:
            raise _memory_error()


_RENAMED = {"cutaway-0.1.0-cpu": "cutaway-1-cpu"}
"""The first release's name of its arithmetic, before the arithmetic had its own number."""


def _check_same(path: Path, head: PrefixHeader, model: "LoadedModel") -> None:
    """Raise InputError unless this model would have computed the same bits."""
    current = model.computed_by
    for part in dict.fromkeys((*current, *head.computed_by)):
        saved_value = head.computed_by.get(part)
        if _RENAMED.get(saved_value or "", saved_value) == current.get(part):
            continue
        if part in ("weights", "tokenizer"):
            raise InputError(
                f"{path} is of {_cut(head.model)}, and this is {model.name} with other {part}: "
                "save it again with this model"
            )
        raise InputError(
            f"{path} was saved with another {_cut(part)} ({_cut(saved_value or 'none')}) than this "
            f"model has now ({current.get(part, 'none')}): save it again"
        )


def _cut(text: str) -> str:
    """Return a text of a stranger's file, short and printable, for an error."""
    return printable(text[:300])


def _blocks_at_once(model: "LoadedModel") -> int:
    """Return how many blocks are moved between two steps."""
    kv = model.backend.kv
    return max(_AT_ONCE // max(kv.bytes_per_token * kv.block_tokens, 1), 1)


def _bar(label: str, head: PrefixHeader, *, show: bool) -> Bar:
    return Bar(label, len(head.token_ids), show=show, figures=tokens_done, after=1)


def _prefix(head: PrefixHeader, blocks: int, nbytes: int) -> Prefix:
    cached = blocks * head.block_tokens
    return Prefix(head.token_ids, cached, head.text, head.special, nbytes)


def _memory_error() -> CutawayError:
    return CutawayError(
        "other texts took the memory of the keys and values before they were saved: try again, or "
        "raise kv_tokens"
    )
