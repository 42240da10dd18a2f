"""Keeps the prefix cache on a disk too: writes its blocks beside the engine, and reads them back.

A thread writes when the engine is idle; it asks the engine's owner for a few blocks between two
steps. What the cache loses before waits in memory, up to a limit, until the thread writes it.
Blocks are read when a text that needs them is at the head of the queue, a few between two steps.
Whatever goes wrong with the disk costs time and no text: a line in the log, and the text is
computed.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from logging import getLogger
from math import inf
from threading import Lock, Thread
from time import monotonic, time_ns
from typing import Any, NamedTuple, TypeVar
from weakref import WeakMethod, ref

import numpy as np

from cutaway.base.progress import megabytes
from cutaway.compute.backends import Bytes
from cutaway.engine import Engine
from cutaway.engine.loop.pinned import copy_parts, fill_blocks, part_bytes
from cutaway.engine.memory.block_manager import Salt
from cutaway.engine.memory.store import BlockPart, StoreCounts
from cutaway.errors import CutawayError, FormatError
from cutaway.files.block_folder import BlockFolder, PartReadError
from cutaway.requests.prefix_search import longest_stored

_AT_ONCE = 1 << 24  # bytes that are read or copied between two steps
_MOST_WAITING = 1 << 26  # bytes that wait in memory to be written
_FLUSH_S = 10  # a flush takes no longer
_MANY_NAMES = 100_000
_MOST_USES = 1 << 16  # parts whose use is to be noted on the disk
_COUNTS = ("hit_tokens", "read_bytes", "written_bytes", "missed_bytes", "damaged", "unreadable")
_LOG = getLogger("cutaway.cache")
T = TypeVar("T")


class _Unwritten(NamedTuple):
    """A block to write.

    place  its index in the text
    parts  copies of the parts that the folder lacks
    """

    name: bytes
    place: int
    parts: Mapping[BlockPart, Bytes]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


@dataclass
class _Reading:
    """The blocks of a text that are being read.

    names  of the text's blocks, up to the last one to read
    sizes  bytes of each block, with its window or without
    done   how many blocks the prefix cache has
    """

    token_ids: Sequence[int]
    salt: Salt | None
    names: Sequence[bytes]
    sizes: Sequence[int] = ()
    done: int = 0
    read: set[int] = field(default_factory=set)  # places


class PrefixStore:
    """The ``BlockStore`` of an engine, in a folder."""

    def __init__(self, engine: Engine, folder: BlockFolder) -> None:
        self._engine, self._folder, self._pid = ref(engine), folder, os.getpid()
        self._sizes = part_bytes(engine)
        self._file_names = folder.trim() or set()  # that this process has found or written
        self._waiting: deque[_Unwritten] = deque()
        self._waiting_bytes = 0
        self._reading: _Reading | None = None
        self._used: dict[tuple[bytes, BlockPart], int] = {}  # when: the oldest first
        self._totals = dict.fromkeys(_COUNTS, 0)  # each is counted by one thread alone
        self._ask: Callable[[], Callable[[Callable[[], Any]], Any] | None] = lambda: None
        self._lock, self._has_work = Lock(), False
        self._thread: Thread | None = None
        self._owner: Any = None  # while the thread writes, so that a dropped model is written too
        self._is_full = False
        self._deadline, self._most_written = inf, inf  # of a flush

    def name_of(self, parent: bytes, salt: str, token_ids: Sequence[int]) -> bytes:
        """See ``BlockStore``."""
        salt_bytes = salt.encode("utf-8", "surrogatepass")
        digest = sha256(parent + len(salt_bytes).to_bytes(8, "little") + salt_bytes)
        digest.update(np.asarray(token_ids, "<i8").tobytes())
        return digest.digest()

    # -- reading: on the engine's thread, between two steps --------------------------------------

    def fetch(self, token_ids: Sequence[int], salt: Salt | None) -> bool:
        """See ``BlockStore``."""
        now = self._reading
        if now is None or (now.token_ids, now.salt) != (token_ids, salt):
            now = self._reading = self._find(token_ids, salt)
        has_more = now is not None and self._read_some(now)
        if not has_more:
            self._end_reading()
        return has_more

    def _find(self, token_ids: Sequence[int], salt: Salt | None) -> _Reading | None:
        """Find the longest beginning of a text that the folder can add to the cache's."""
        engine = self._engine()
        assert engine is not None
        blocks = engine.blocks
        block_ids = blocks.match(token_ids, salt)
        usable = len(block_ids)
        outside = blocks.num_out_of_window(usable * blocks.block)
        blocks.release(block_ids, outside)
        names = blocks.names(token_ids, salt)
        self._note_use(names[:usable], outside)
        published_ids = blocks.published_ids(token_ids, salt)
        whole = longest_stored(blocks, self._folder.has, names, published_ids, usable)
        if whole == usable:
            return None
        outside = blocks.num_out_of_window(whole * blocks.block)
        kv, window = self._sizes[BlockPart.KV], self._sizes[BlockPart.WINDOW]
        sizes = [kv if place < outside else kv + window for place in range(whole)]
        return _Reading(token_ids, salt, names[:whole], sizes)

    def _read_some(self, now: _Reading) -> bool:
        """Read a few blocks; return whether there are more."""
        engine, before = self._engine(), now.done
        assert engine is not None
        ids = now.token_ids[: len(now.names) * engine.blocks.block]
        nbytes = self._sizes[BlockPart.KV] + self._sizes[BlockPart.WINDOW]
        max_blocks = max(_AT_ONCE // max(nbytes, 1), 1)

        def read(place: int, memory: Sequence[Bytes]) -> None:
            self._read_block(now.names[place], memory)
            now.read.add(place)

        try:
            now.done = fill_blocks(engine, ids, now.sizes, max_blocks, read, salt=now.salt)
        except _MissingError:  # another process removed it
            return False
        except (FormatError, PartReadError) as error:
            self._totals["damaged" if isinstance(error, FormatError) else "unreadable"] += 1
            _LOG.warning("%s: the text is computed instead", error)
            return False
        return before < now.done < len(now.names)

    def _read_block(self, name: bytes, memory: Sequence[Bytes]) -> None:
        """Read a block's parts: keys and values, then its window and state where memory is."""
        kv, block = self._sizes[BlockPart.KV], memory[0]
        parts = {BlockPart.KV: block[:kv]}
        if len(block) > kv:
            parts[BlockPart.WINDOW] = block[kv:]
        if len(memory) > 1:
            parts[BlockPart.STATE] = memory[1]
        for part, into in parts.items():
            file = self._folder.path(name, part).name
            was_there = file in self._file_names
            self._file_names.discard(file)  # if it is damaged or not there, it is written again
            if not self._folder.read(name, part, into):
                raise _MissingError
            self._file_names |= {file} if was_there else set()
            self._totals["read_bytes"] += into.nbytes

    def _end_reading(self) -> None:
        if (now := self._reading) and now.read:
            engine = self._engine()
            assert engine is not None
            block = engine.blocks.block
            self._totals["hit_tokens"] += len(now.read) * block
            outside = engine.blocks.num_out_of_window(len(now.names) * block)
            self._note_use(now.names, outside)
        self._reading = None

    def _note_use(self, names: Sequence[bytes], outside: int) -> None:
        """Note that a text uses blocks; memory's own uses count, so that what is hot stays.

        Later blocks count as used earlier, so that they are removed before a text is cut.

        outside: how many of the first blocks have windows that are not read
        """
        now, last = time_ns(), len(names) - 1
        with self._lock:
            for place, name in enumerate(names):
                first = {BlockPart.KV: 0, BlockPart.WINDOW: outside, BlockPart.STATE: last}
                for part in (part for part in BlockPart if self._sizes[part]):
                    if place >= first[part]:
                        self._used.pop((name, part), None)
                        self._used[name, part] = now - place * 1000
            for old in [*self._used][: max(len(self._used) - _MOST_USES, 0)]:
                del self._used[old]

    # -- what is to be written -------------------------------------------------------------------

    def save(self, block_id: int) -> None:
        """See ``BlockStore``."""
        engine = self._engine()
        if engine is None or self._in_child or not (parts := self._lacks(engine, block_id)):
            return
        nbytes = sum(self._sizes[part] for part in parts)
        if self._waiting_bytes + nbytes > _MOST_WAITING:
            self._totals["missed_bytes"] += nbytes
            return
        block = self._copy(engine, block_id, parts)
        with self._lock:
            self._waiting.append(block)
            self._waiting_bytes += nbytes
        self._begin_writing()

    def _copy(self, engine: Engine, block_id: int, parts: Collection[BlockPart]) -> _Unwritten:
        node = engine.blocks.node(block_id)
        assert node is not None
        return _Unwritten(node.name, node.place, copy_parts(engine, block_id, parts))

    def _lacks(self, engine: Engine, block_id: int) -> list[BlockPart]:
        """Return the parts of a published block that the folder is not known to have."""
        if (node := engine.blocks.node(block_id)) is None:
            return []
        name, parts = node.name.hex(), self._parts(engine, block_id)
        return [part for part in parts if f"{name}.{part}" not in self._file_names]

    def _parts(self, engine: Engine, block_id: int) -> Iterable[BlockPart]:
        """Yield the parts that a published block has in memory."""
        blocks = engine.blocks
        yield BlockPart.KV
        if blocks.windows and blocks.windows.are_stored((block_id,)):
            yield BlockPart.WINDOW
        if blocks.states and blocks.states.is_whole(block_id):
            yield BlockPart.STATE

    def _take_unwritten(self) -> list[_Unwritten]:
        """Copy a few blocks that are not written, the newest first, if the engine is idle."""
        engine, batch, nbytes = self._engine(), list[_Unwritten](), 0
        if engine is None or not engine.is_idle:
            return []
        for block_id, _ in engine.blocks.nodes():
            if parts := self._lacks(engine, block_id):
                batch.append(block := self._copy(engine, block_id, parts))
                nbytes += block.nbytes
            if nbytes >= _AT_ONCE:
                break
        return batch

    def _count_unwritten(self) -> int:
        """Return the bytes in memory that the folder is not known to have."""
        if (engine := self._engine()) is None:
            return 0
        parts = (self._lacks(engine, block_id) for block_id, _ in engine.blocks.nodes())
        return sum(self._sizes[part] for part in chain.from_iterable(parts))

    # -- writing: on a thread that ends when nothing is left to write ----------------------------

    def serve(self, call: Callable[[Callable[[], Any]], Any]) -> None:
        """See ``BlockStore``."""
        self._ask = WeakMethod(call)

    def rest(self) -> None:
        """See ``BlockStore``."""
        self._begin_writing()

    @property
    def _in_child(self) -> bool:
        """Whether this process was forked, and has no thread to write: it only reads."""
        return os.getpid() != self._pid

    def _begin_writing(self) -> None:
        if self._in_child:
            return
        with self._lock:
            self._has_work, self._owner = True, self._ask()
            if self._thread is None:
                thread = Thread(target=self._write_all, name="cutaway cache", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending, or there is no thread left
                    self._owner = None
                    return
                self._thread = thread

    def _write_all(self) -> None:
        """Write until there is nothing to write."""
        try:
            while self._take_work():
                self._write_rest(lambda: self._ask_owner(self._take_unwritten) or [])
        except BaseException:
            self._thread = self._owner = None  # the next work has another thread
            raise

    def _take_work(self) -> bool:
        """Return whether there is work; if not, the thread is about to end."""
        with self._lock:
            has_work, self._has_work = self._has_work, False
            if not has_work:
                self._thread = self._owner = None
        return has_work

    def _ask_owner(self, function: Callable[[], T]) -> T | None:
        call = self._ask()
        try:
            return call(function) if call else None
        except CutawayError:  # the owner is closed, or has given the engine to another
            return None

    def _write_rest(self, take: Callable[[], list[_Unwritten]]) -> None:
        """Write what waits, then what ``take`` returns, until it returns nothing.

        What was removed to make room is not written again, however full the folder is.
        """
        now = time_ns()
        while not self._must_end and (blocks := self._take_waiting() or take()):
            for block in blocks:
                if self._must_end or not self._write(block, now):
                    return
            present = self._folder.trim()
            if present is not None and len(self._file_names) > 2 * len(present) + _MANY_NAMES:
                self._file_names = present
        with self._lock:
            used, self._used = self._used, {}
        for (name, part), used_ns in used.items():
            self._folder.touch(name, part, used_ns)

    @property
    def _must_end(self) -> bool:
        """Whether a flush has taken its time, or has written as much as the folder holds."""
        is_late = monotonic() >= self._deadline
        return is_late or self._totals["written_bytes"] >= self._most_written

    def _take_waiting(self) -> list[_Unwritten]:
        """Take the first block that waits, if any."""
        with self._lock:
            if not self._waiting:
                return []
            block = self._waiting.popleft()
            self._waiting_bytes -= block.nbytes
        return [block]

    def _write(self, block: _Unwritten, now: int) -> bool:
        """Write a block's parts; return False if the disk takes nothing more.

        Later blocks of a text count as used earlier, so that they are removed before it is cut.
        """
        used_ns = now - block.place * 1000
        for part, data in block.parts.items():
            try:
                if not self._folder.has(block.name, part):
                    self._folder.write(block.name, part, data, used_ns)
                    self._totals["written_bytes"] += data.nbytes
            except CutawayError as error:
                if not self._is_full:
                    _LOG.warning("the prompt cache writes nothing for now: %s", error)
                self._is_full = True
                with self._lock:
                    self._waiting_bytes = 0
                    self._waiting.clear()
                return False
            self._file_names.add(self._folder.path(block.name, part).name)
        self._is_full = False
        return True

    def flush(self) -> None:
        """See ``BlockStore``."""
        self._flush(lambda function: function())

    def flush_at_exit(self) -> None:
        """See ``BlockStore``."""
        self._flush(self._ask_owner)

    def _flush(self, ask: Callable[[Callable[[], Any]], Any]) -> None:
        """Write for a few seconds; ask: calls a function between two steps, or returns None."""
        if self._in_child:
            return
        self._deadline = monotonic() + _FLUSH_S
        self._most_written = self._totals["written_bytes"] + self._folder.size
        try:
            self._join()
            self._write_rest(lambda: ask(self._take_unwritten) or [])
            left = self._waiting_bytes + (ask(self._count_unwritten) or 0)
        finally:
            self._deadline, self._most_written = inf, inf
        if left and not self._is_full:
            _LOG.warning(
                "%s of the prompt cache were not written: at its end a model writes no more than "
                "the folder's size, and for at most %d s", megabytes(left), _FLUSH_S,
            )  # fmt: skip

    def _join(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    # -- counts ----------------------------------------------------------------------------------

    def counts(self) -> StoreCounts:
        """See ``BlockStore``."""
        folder = self._folder
        age = (time_ns() - folder.oldest_ns) / 1e9 if folder.oldest_ns else 0.0
        return StoreCounts(**self._totals, bytes=folder.nbytes, oldest_s=age)


class _MissingError(Exception):
    """The folder does not have a block that it had."""
