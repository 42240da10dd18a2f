"""Loads models when they are used, and unloads them when others need the memory.

A model in use stays loaded. If another does not fit, the least recently used are unloaded, idle
ones first; a model to be unloaded takes no new uses, so that the wait is only for uses that have
begun. Models are loaded in the order in which they were first requested.
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

from cutaway.base.progress import megabytes
from cutaway.errors import CutawayError, InputError, QueueFullError

State = Literal["absent", "loading", "loaded", "unloading"]


class Sized(Protocol):
    """What has a size."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def memory(self) -> int:
        """Bytes that it takes when it is loaded."""


class Loadable(Sized, Protocol):
    """What takes memory from the beginning of a load to the end of an unload."""

    async def load(self) -> None:
        """Take them; where it raises it has none."""

    def give_up(self) -> None:
        """Let a load that has begun raise soon."""

    async def unload(self) -> None:
        """Give them back."""


class Waiting(NamedTuple):
    """Someone who wants to use a model."""

    slot: "ModelSlot"
    admitted: "asyncio.Future[None]"  # or cancelled, by whoever does not wait any more

    def fail(self, error: Exception) -> None:
        """It cannot be used."""
        if not self.admitted.done():
            self.admitted.set_exception(error)


class ModelCache:
    """All models that share some memory. Used in one event loop.

    limit        bytes that they may take together; None: no limit
    idle_s       seconds that a model stays which nobody uses; None: until its room is needed
    max_waiting  uses that may wait; None: no limit
    tell         of each load and unload, with the model's name
    """

    def __init__(
        self, limit: int | None = None, *, idle_s: float | None = None,
        max_waiting: int | None = None, tell: Callable[..., object] = lambda _what, **_more: None,
    ) -> None:  # fmt: skip
        self.limit, self.idle_s, self.max_waiting, self.tell = limit, idle_s, max_waiting, tell
        self.slots: list[ModelSlot] = []
        self.queue: list[Waiting] = []
        self.clock, self.stopped = count(1), False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, model: Loadable, *, loaded: bool = False) -> "ModelSlot":
        """A place for a model. InputError where it can never fit."""
        self.check(model)
        slot = ModelSlot(self, model, "loaded" if loaded else "absent")
        self.slots.append(slot)
        return slot

    def check(self, model: "Sized") -> None:
        """InputError for a model that can never fit."""
        if self.limit is not None and model.memory > self.limit:
            raise InputError(
                f"memory: {model.name} takes {megabytes(model.memory)} with its keys and values, "
                f"and all models together may have {megabytes(self.limit)}: raise that, or lower "
                "context or kv_tokens"
            )

    @property
    def taken(self) -> int:
        """Bytes that are in use."""
        return sum(slot.model.memory for slot in self.slots if slot.state != "absent")

    def stop(self) -> None:
        """Load nothing more; whoever waits gets a CutawayError. What is loaded is used on."""
        self.stopped = True
        waiting, self.queue = self.queue, []
        for one in waiting:
            one.fail(closed())
        for slot in self.slots:
            if slot.state == "loading":
                slot.model.give_up()

    async def settled(self) -> None:
        """Once no model is being loaded or unloaded."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- who goes on ---------------------------------------------------------------------------

    def advance(self) -> None:
        """Let everybody go on who can."""
        while not self.stopped:
            going = self._going()
            for one in [*self.queue]:
                if one.slot.state == "loaded" and one.slot not in going:
                    self.admit(one)
            for slot in going:
                if not slot.users:
                    slot.begin_unload()
            wanted = self._wanted()
            if wanted is None or self._missing(wanted) > 0:
                return
            wanted.begin_load()

    def admit(self, one: Waiting) -> None:
        """Its use begins."""
        self.queue.remove(one)
        if not one.admitted.done():
            one.slot.begin_use()
            one.admitted.set_result(None)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Load or unload."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wanted(self) -> "ModelSlot | None":
        """The model that is to be loaded next."""
        return next((one.slot for one in self.queue if one.slot.state == "absent"), None)

    def _going(self) -> "list[ModelSlot]":
        """Loaded models whose room the next one needs."""
        wanted, going = self._wanted(), list[ModelSlot]()
        missing = 0 if wanted is None else self._missing(wanted)
        missing -= sum(slot.model.memory for slot in self.slots if slot.state == "unloading")
        loaded = [slot for slot in self.slots if slot.state == "loaded"]
        for slot in sorted(loaded, key=lambda slot: (slot.users > 0, slot.asked)):
            if missing > 0:
                going.append(slot)
                missing -= slot.model.memory
        return going

    def _missing(self, wanted: "ModelSlot") -> int:
        """Bytes that there are too few of for it."""
        return 0 if self.limit is None else self.taken + wanted.model.memory - self.limit


class ModelSlot:
    """A model's place in the cache.

    users    uses that have begun and not ended
    asked    when the last one began, by the cache's clock
    expires  when it goes if nobody uses it until then, by the event loop's clock; None: it stays
    """

    def __init__(self, cache: ModelCache, model: Loadable, state: State) -> None:
        self.model, self.state, self.users, self.asked = model, state, 0, 0
        self._cache, self._idle_s = cache, cache.idle_s
        self._timer: asyncio.TimerHandle | None = None

    async def use(self) -> float:
        """Begin to use it, once it is loaded and may be used; seconds that this took.

        Raises what its load raised, QueueFullError where too many wait, CutawayError once the cache
        has stopped. May be cancelled, which stops no load.
        """
        cache, started = self._cache, perf_counter()
        if cache.stopped:
            if self.state != "loaded":
                raise closed()
            self.begin_use()
            return 0.0
        one = Waiting(self, asyncio.get_running_loop().create_future())
        cache.queue.append(one)
        cache.advance()
        most = cache.max_waiting
        if most is not None and len(cache.queue) > most and not one.admitted.done():
            self._leave(one)
            raise QueueFullError(f"the queue is full with {most} waiting: try again later")
        try:
            await one.admitted
        except asyncio.CancelledError:
            self._leave(one)
            raise
        return perf_counter() - started

    def stop(self) -> None:
        """See ``ModelCache``: of all models that share it."""
        self._cache.stop()

    def done(self) -> None:
        """A use has ended."""
        self.users -= 1
        self._rest()
        self._cache.advance()

    def keep(self, idle_s: float | None) -> None:
        """It stays so long when nobody uses it, until it goes; None: until its room is needed."""
        if self.state in ("loading", "loaded"):
            self._idle_s = idle_s
            self._rest()

    def keep_as_usual(self) -> None:
        """It stays as long as any."""
        self.keep(self._cache.idle_s)

    @property
    def expires(self) -> float | None:
        """See the class."""
        return self._timer.when() if self._timer else None

    # -- its life ------------------------------------------------------------------------------

    def begin_use(self) -> None:
        """One more uses it."""
        self.users += 1
        self.asked = next(self._cache.clock)
        self._rest()

    def begin_load(self) -> None:
        """It takes its memory."""
        self.state = "loading"
        self._cache.run(self._load())

    def begin_unload(self) -> None:
        """It gives its memory back; when it comes again, it stays as long as any."""
        self.state, self._idle_s = "unloading", self._cache.idle_s
        self._rest()
        self._cache.run(self._unload())

    async def _load(self) -> None:
        cache, started = self._cache, perf_counter()
        try:
            await self.model.load()
        except Exception as error:
            self.state = "absent"
            for one in self._waiting():
                cache.queue.remove(one)
                one.fail(error)
        else:
            self.state = "loaded"
            seconds, memory = round(perf_counter() - started, 3), self.model.memory
            cache.tell("loaded", model=self.model.name, seconds=seconds, memory=memory)
            for one in self._waiting():  # before it can be one that is to go
                cache.admit(one)
            self._rest()
        cache.advance()

    async def _unload(self) -> None:
        try:
            await self.model.unload()
        finally:
            self.state = "absent"
            self._cache.tell("unloaded", model=self.model.name)
            self._cache.advance()

    def _rest(self) -> None:
        """Its time begins when nobody uses it, and is over when somebody does."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self.state != "loaded" or self.users or self._idle_s is None:
            return
        if self._idle_s <= 0:
            self.begin_unload()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_s, self.begin_unload)

    def _waiting(self) -> list[Waiting]:
        return [one for one in self._cache.queue if one.slot is self]

    def _leave(self, one: Waiting) -> None:
        """It is wanted no more, and may have been admitted meanwhile."""
        if one in self._cache.queue:
            self._cache.queue.remove(one)
            self._cache.advance()
        elif not one.admitted.cancelled() and one.admitted.exception() is None:
            self.done()


def closed() -> CutawayError:
    """For who comes when nothing is loaded any more."""
    return CutawayError("the engine is closed and takes no more requests")
