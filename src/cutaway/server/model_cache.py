"""Loads models when they are used, and unloads them when other models need the memory.

A model in use stays loaded. If another model does not fit, the least recently used models are
unloaded, idle ones first. A model that is chosen to be unloaded takes no new uses, and is unloaded
when its running uses have ended. Models are loaded in the order of their first waiting uses.
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
    """A model whose size is known."""

    @property
    def name(self) -> str:
        """The model's name in messages."""

    @property
    def memory(self) -> int:
        """Bytes that the model takes while it is loaded."""


class Loadable(Sized, Protocol):
    """A model that can be loaded; it takes memory from a load's beginning to an unload's end."""

    async def load(self) -> None:
        """Load the model; after an exception, it takes no memory."""

    def give_up(self) -> None:
        """Cancel the running load."""

    async def unload(self) -> None:
        """Free the model's memory."""


class Waiting(NamedTuple):
    """A use that waits until its model is loaded."""

    slot: "ModelSlot"
    admitted: "asyncio.Future[None]"  # cancelled if the client stops waiting

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if not self.admitted.done():
            self.admitted.set_exception(error)


class ModelCache:
    """The models that share an amount of memory, for use in one event loop.

    limit        bytes that all models may take together; None: no limit
    idle_s       seconds after which an idle model is unloaded; None: only if memory is needed
    max_waiting  the most uses that may wait; None: no limit
    tell         called after each load and unload with "loaded" or "unloaded", and the model's name
    """

    def __init__(
        self, limit: int | None = None, *, idle_s: float | None = None,
        max_waiting: int | None = None, tell: Callable[..., object] = lambda _event, **_: None,
    ) -> None:  # fmt: skip
        self.limit, self.idle_s, self.max_waiting, self.tell = limit, idle_s, max_waiting, tell
        self.slots: list[ModelSlot] = []
        self.queue: list[Waiting] = []
        self.clock, self.stopped = count(1), False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, model: Loadable, *, loaded: bool = False) -> "ModelSlot":
        """Add a model. InputError for a model larger than ``limit``."""
        self.check(model)
        slot = ModelSlot(self, model, "loaded" if loaded else "absent")
        self.slots.append(slot)
        return slot

    def check(self, model: "Sized") -> None:
        """InputError for a model larger than ``limit``."""
        if self.limit is not None and model.memory > self.limit:
            raise InputError(
                "memory",
                f": {model.name} takes {megabytes(model.memory)} with its keys and values, "
                f"and all models together may have {megabytes(self.limit)}: raise that, or lower "
                "context or kv_tokens",
            )

    @property
    def memory_used(self) -> int:
        """Bytes of all models that take memory now."""
        return sum(slot.model.memory for slot in self.slots if slot.state != "absent")

    def stop(self) -> None:
        """Load no more models: waiting uses fail with ClosedError, loaded models stay usable."""
        self.stopped = True
        waiting, self.queue = self.queue, []
        for use in waiting:
            use.fail(closed_error())
        for slot in self.slots:
            if slot.state == "loading":
                slot.model.give_up()

    async def wait_until_idle(self) -> None:
        """Wait until no model is being loaded or unloaded."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- the next uses, loads and unloads ------------------------------------------------------

    def advance(self) -> None:
        """Begin all uses, unloads and loads that can begin."""
        while not self.stopped:
            outgoing = self._next_to_unload()
            for use in [*self.queue]:
                if use.slot.state == "loaded" and use.slot not in outgoing:
                    self.admit(use)
            for slot in outgoing:
                if not slot.users:
                    slot.begin_unload()
            next_slot = self._next_to_load()
            if next_slot is None or self._missing(next_slot) > 0:
                return
            next_slot.begin_load()

    def admit(self, use: Waiting) -> None:
        """Begin a use that waited."""
        self.queue.remove(use)
        if not use.admitted.done():
            use.slot.begin_use()
            use.admitted.set_result(None)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a load or an unload as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next_to_load(self) -> "ModelSlot | None":
        """Return the absent model for which a use waits longest; None if no use needs a load."""
        return next((use.slot for use in self.queue if use.slot.state == "absent"), None)

    def _next_to_unload(self) -> "list[ModelSlot]":
        """Return the loaded models to unload so that the next model to load has enough memory."""
        next_slot, outgoing = self._next_to_load(), list[ModelSlot]()
        missing = 0 if next_slot is None else self._missing(next_slot)
        missing -= sum(slot.model.memory for slot in self.slots if slot.state == "unloading")
        loaded = [slot for slot in self.slots if slot.state == "loaded"]
        for slot in sorted(loaded, key=lambda slot: (slot.users > 0, slot.last_used)):
            if missing > 0:
                outgoing.append(slot)
                missing -= slot.model.memory
        return outgoing

    def _missing(self, slot: "ModelSlot") -> int:
        """Return how many bytes of memory a model lacks to be loaded; 0 or less if it fits."""
        return 0 if self.limit is None else self.memory_used + slot.model.memory - self.limit


class ModelSlot:
    """A model in the cache, and its state.

    users      how many uses have begun and not ended
    last_used  the number of the last use, by the cache's count of all uses
    expires    when the model is unloaded if no use begins, by the event loop's clock; None: never
    """

    def __init__(self, cache: ModelCache, model: Loadable, state: State) -> None:
        self.model, self.state, self.users, self.last_used = model, state, 0, 0
        self._cache, self._idle_s = cache, cache.idle_s
        self._timer: asyncio.TimerHandle | None = None

    async def use(self) -> float:
        """Wait until the model is loaded, begin a use, and return how many seconds it waited.

        Raises the load's error, QueueFullError if too many uses wait, or ClosedError if the cache
        has stopped. A cancelled wait does not stop the load.
        """
        cache, started = self._cache, perf_counter()
        if cache.stopped:
            if self.state != "loaded":
                raise closed_error()
            self.begin_use()
            return 0.0
        use = Waiting(self, asyncio.get_running_loop().create_future())
        cache.queue.append(use)
        cache.advance()
        if use.admitted.done():
            return 0.0
        max_waiting = cache.max_waiting
        if max_waiting is not None and len(cache.queue) > max_waiting:
            self._leave(use)
            raise QueueFullError(f"the queue is full with {max_waiting} waiting: try again later")
        try:
            await use.admitted
        except asyncio.CancelledError:
            self._leave(use)
            raise
        return perf_counter() - started

    def stop(self) -> None:
        """Stop the cache, which then loads no more models: see ``ModelCache``."""
        self._cache.stop()

    def done(self) -> None:
        """End a use."""
        self.users -= 1
        self._rest()
        self._cache.advance()

    def keep(self, idle_s: float | None) -> None:
        """Unload the model after so many idle seconds; None: only if memory is needed."""
        if self.state in ("loading", "loaded"):
            self._idle_s = idle_s
            self._rest()

    def keep_as_usual(self) -> None:
        """Unload the model after as many idle seconds as the cache says."""
        self.keep(self._cache.idle_s)

    @property
    def expires(self) -> float | None:
        """The time at which the model is unloaded if no use begins; see the class."""
        return self._timer.when() if self._timer else None

    # -- from one state to the next ------------------------------------------------------------

    def begin_use(self) -> None:
        """Count a use that begins."""
        self.users += 1
        self.last_used = next(self._cache.clock)
        self._rest()

    def begin_load(self) -> None:
        """Begin to load the model."""
        self.state = "loading"
        self._cache.run(self._load())

    def begin_unload(self) -> None:
        """Begin to unload the model, and reset its idle time to the cache's."""
        self.state, self._idle_s = "unloading", self._cache.idle_s
        self._rest()
        self._cache.run(self._unload())

    async def _load(self) -> None:
        cache, started = self._cache, perf_counter()
        try:
            await self.model.load()
        except Exception as error:
            self.state = "absent"
            for use in self._waiting():
                cache.queue.remove(use)
                use.fail(error)
        else:
            self.state = "loaded"
            seconds, memory = round(perf_counter() - started, 3), self.model.memory
            cache.tell("loaded", model=self.model.name, seconds=seconds, memory=memory)
            for use in self._waiting():  # before the model can be chosen to be unloaded
                cache.admit(use)
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
        """Start the idle timer if the model is idle, else stop it."""
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
        return [use for use in self._cache.queue if use.slot is self]

    def _leave(self, use: Waiting) -> None:
        """End a use that nobody waits for any more, whether it waits or has been admitted."""
        if use in self._cache.queue:
            self._cache.queue.remove(use)
            self._cache.advance()
        elif not use.admitted.cancelled() and use.admitted.exception() is None:
            self.done()


def closed_error() -> ClosedError:
    """Return the error for a use that comes or waits when the cache stops."""
    return ClosedError("the engine is closed and takes no more requests")
