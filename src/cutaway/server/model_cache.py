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
from cutaway.errors import ClosedError, InputError, QueueFullError

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
        """Load it; if this raises, it takes no memory."""

    def give_up(self) -> None:
        """Cancel a load that has begun."""

    async def unload(self) -> None:
        """Free its memory."""


class Waiting(NamedTuple):
    """A use that waits for its model."""

    slot: "ModelSlot"
    admitted: "asyncio.Future[None]"  # or cancelled, by who waits no longer

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if not self.admitted.done():
            self.admitted.set_exception(error)


class ModelCache:
    """All models that share some memory. Used in one event loop.

    limit        bytes that they may take together; None: no limit
    idle_s       seconds after which an idle model is unloaded; None: when its memory is needed
    max_waiting  uses that may wait; None: no limit
    tell         called at each load and unload, with the model's name
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
        """Add a model. InputError for one that can never fit."""
        self.check(model)
        slot = ModelSlot(self, model, "loaded" if loaded else "absent")
        self.slots.append(slot)
        return slot

    def check(self, model: "Sized") -> None:
        """InputError for a model that can never fit."""
        if self.limit is not None and model.memory > self.limit:
            raise InputError(
                "memory",
                f": {model.name} takes {megabytes(model.memory)} with its keys and values, "
                f"and all models together may have {megabytes(self.limit)}: raise that, or lower "
                "context or kv_tokens",
            )

    @property
    def taken(self) -> int:
        """Bytes that are in use."""
        return sum(slot.model.memory for slot in self.slots if slot.state != "absent")

    def stop(self) -> None:
        """Load no more models: waiting uses get a CutawayError, loaded models stay usable."""
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

    # -- what is next --------------------------------------------------------------------------

    def advance(self) -> None:
        """Begin all uses, unloads and loads that can begin."""
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
        """Begin a use that waited."""
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
        """The model to load next; None: none."""
        return next((one.slot for one in self.queue if one.slot.state == "absent"), None)

    def _going(self) -> "list[ModelSlot]":
        """Loaded models whose memory the next one needs."""
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
        """Bytes that are missing for it."""
        return 0 if self.limit is None else self.taken + wanted.model.memory - self.limit


class ModelSlot:
    """A model in the cache, and its state.

    users    uses that have begun and not ended
    asked    when the last one began, by the cache's clock
    expires  when it is unloaded if idle until then, by the event loop's clock; None: never
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
        """End a use."""
        self.users -= 1
        self._rest()
        self._cache.advance()

    def keep(self, idle_s: float | None) -> None:
        """Unload it after so many idle seconds; None: when its memory is needed."""
        if self.state in ("loading", "loaded"):
            self._idle_s = idle_s
            self._rest()

    def keep_as_usual(self) -> None:
        """Unload it after the cache's usual time."""
        self.keep(self._cache.idle_s)

    @property
    def expires(self) -> float | None:
        """See the class."""
        return self._timer.when() if self._timer else None

    # -- its life ------------------------------------------------------------------------------

    def begin_use(self) -> None:
        """Count one more use."""
        self.users += 1
        self.asked = next(self._cache.clock)
        self._rest()

    def begin_load(self) -> None:
        """Begin to load it."""
        self.state = "loading"
        self._cache.run(self._load())

    def begin_unload(self) -> None:
        """Free its memory; loaded again, it has the usual idle time."""
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
            for one in self._waiting():  # before it can be chosen to be unloaded
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
        """Start the idle timer if it is idle, else stop it."""
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
        """It waits no longer, and may have been admitted before."""
        if one in self._cache.queue:
            self._cache.queue.remove(one)
            self._cache.advance()
        elif not one.admitted.cancelled() and one.admitted.exception() is None:
            self.done()


def closed() -> ClosedError:
    """The error once the cache has stopped."""
    return ClosedError("the engine is closed and takes no more requests")
