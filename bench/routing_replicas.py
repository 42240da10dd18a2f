"""A replica as the router sees it: a queue, a prefix cache, and steps that take their time.

It simulates the engine's scheduler (``engine/loop/scheduler.py``): texts are admitted in order if
there is room, cached tokens are not read, a step reads a limited number of rows (fewer while texts
decode), and each decoding text has one row of a step. A step takes ``step_s``, and ``row_s`` for
each of its rows. Does not know who sends texts.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from cutaway.compute.backends import KV_BLOCK, STEP_ROWS
from cutaway.engine import Policy


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds of a step and of each of its rows; KV blocks; the most texts that decode at once.

    The figures are from Llama 3.2 1B in Q4_K_M on two cores (docs/models-measured.md): a prompt of
    512 tokens is read at 266 tokens a second, and one stream decodes at 34.6. They predict 220
    tokens a second for 32 streams; 194 were measured.
    """

    row_s: float = 1 / 266
    step_s: float = 1 / 34.6 - 1 / 266
    blocks: int = 2048
    texts: int = Policy().max_num_seqs


@dataclass(eq=False)
class Text:
    """A prompt that is read and an answer that is written; times in seconds.

    keys, all_keys  of the whole blocks of the prompt, and of prompt and answer
    known           cached tokens when the text arrived; ``matched``: when it was admitted
    """

    arrived: float
    keys: tuple[int, ...]
    all_keys: tuple[int, ...]
    tokens: int
    answer: int
    ended: Callable[[float], None]
    known: int = 0
    matched: int = 0
    read: int = 0
    began: float = -1.0
    first_token: float = -1.0
    held: int = 0
    published: int = 0


@dataclass(eq=False)
class Replica:
    """A simulated replica. wake: schedules a call of ``due``, in place of an earlier schedule."""

    machine: Machine
    wake: Callable[[float, "Replica"], None]
    waiting: deque[Text] = field(default_factory=deque)
    reading: deque[Text] = field(default_factory=deque)
    writing: list[tuple[int, int, Text]] = field(default_factory=list)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    came: list[tuple[int, ...]] = field(default_factory=list)  # keys of prompts, not reported yet
    rows_waiting: int = 0
    rows_done: int = 0
    steps: int = 0
    held: int = 0
    next_due: float = -1.0  # no step runs
    _began: float = 0.0
    _each_s: float = 0.0
    _count: int = 0
    _told: int = 0  # first tokens, so that ends at one step have an order
    _taken: list[tuple[Text, int]] = field(default_factory=list)

    @property
    def texts(self) -> int:
        """The number of texts, running or waiting."""
        return len(self.waiting) + len(self.reading) + len(self.writing)

    def add(self, text: Text, now: float) -> None:
        """Put a text into the queue."""
        text.known = self._known(text)
        self.rows_waiting += text.tokens - text.known
        self.waiting.append(text)
        self.came.append(text.keys)
        if self.next_due < 0:
            self._begin(now)
        elif self._count > 1:  # many steps at once, of which the current one is the last now
            self._count = int((now - self._began) / self._each_s) + 1
            self._sleep()

    def due(self, now: float) -> None:
        """End the current steps, and begin the next ones."""
        self.steps += self._count
        self.rows_done += self._count * len(self.writing)
        for text, rows in self._taken:
            self._read(text, rows, now)
        while self.writing and self.writing[0][0] <= self.steps:
            self._end(heappop(self.writing)[2], now)
        self._begin(now)

    # -- steps -----------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Begin one step, or many equal steps at once."""
        self._admit(now)
        written = len(self.writing)
        room = Policy().max_prefill_rows_while_decoding - written if written else STEP_ROWS
        self._taken = []
        for text in self.reading:
            if room <= 0:
                break
            self._take_more(text)
            rows = min(room, text.tokens - text.read)
            self._taken.append((text, rows))
            room -= rows
        if not self._taken and not written:
            self.next_due = -1.0
            return
        rows = written + sum(rows for _, rows in self._taken)
        self._count = 1 if self.reading else max(1, self.writing[0][0] - self.steps)
        self._began, self._each_s = now, self.machine.step_s + rows * self.machine.row_s
        self._sleep()

    def _sleep(self) -> None:
        self.next_due = self._began + self._count * self._each_s
        self.wake(self.next_due, self)

    def _admit(self, now: float) -> None:
        while self.waiting and len(self.reading) + len(self.writing) < self.machine.texts:
            text = self.waiting[0]
            matched = self._known(text)
            wanted = -(-(text.tokens + text.answer - matched) // KV_BLOCK)
            if self.held and self.held + wanted > self.machine.blocks:
                return
            self.waiting.popleft()
            self.rows_waiting += text.known - matched
            text.began, text.matched, text.read, text.held = now, matched, matched, wanted
            text.published = matched // KV_BLOCK
            self.held += wanted
            self._keep(text.keys[: text.published])
            self.reading.append(text)

    def _take_more(self, text: Text) -> None:
        """Skip tokens of the text that other texts have put into the cache since its admission."""
        more = self._known(text) - text.read
        if more > 0 and text.read % KV_BLOCK == 0:
            text.read += more
            text.matched += more
            self.rows_waiting -= more
            text.published = text.read // KV_BLOCK

    def _read(self, text: Text, rows: int, now: float) -> None:
        text.read += rows
        self.rows_waiting -= rows
        self.rows_done += rows
        whole = text.read // KV_BLOCK
        self._keep(text.keys[text.published : whole])
        text.published = whole
        if text.read == text.tokens:
            self.reading.remove(text)
            text.first_token = now
            self._told += 1
            heappush(self.writing, (self.steps + text.answer - 1, self._told, text))

    def _end(self, text: Text, now: float) -> None:
        self.held -= text.held
        self._keep(text.all_keys)
        text.ended(now)

    # -- the prefix cache ------------------------------------------------------------------------

    def _known(self, text: Text) -> int:
        """The number of the text's tokens in the cache, without its last, which is always read."""
        most = (text.tokens - 1) // KV_BLOCK
        blocks = 0
        while blocks < most and text.keys[blocks] in self.cache:
            blocks += 1
        return blocks * KV_BLOCK

    def _keep(self, keys: tuple[int, ...]) -> None:
        """Mark the keys as just used, the first key last."""
        for key in reversed(keys):
            self.cache[key] = None
            self.cache.move_to_end(key)
        while len(self.cache) > self.machine.blocks:
            self.cache.popitem(last=False)
