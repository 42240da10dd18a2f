"""A server on a loopback socket, in a thread of the test's process, so that tests see inside."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import uvicorn

from cutaway import LLM, AsyncLLM
from cutaway.api.async_model import AsyncModel
from cutaway.server.app import create_app
from cutaway.server.http.settings import ServerSettings
from cutaway.server.http.sockets import bind
from support.piped import Piped
from support.waiting import wait_until

BESIDE, ELSEWHERE = "beside its weights", "without weights"
"""The two kinds of server of ``tiny``."""
PIPED = bool(os.environ.get("CUTAWAY_TEST_PIPED"))
"""Whether servers of other models also have no weights."""

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


class Served:
    """A running server: its URL, and the model that it serves."""

    llm: LLM

    def __init__(self, url: str, app: Any) -> None:
        self.url, self.app = url, app
        self.models = app.state.models
        self.service = self.models.first

    @property
    def engine(self):
        return self.service.llm.engine.engine

    def free(self) -> bool:
        """Whether every block is free, and the engine has no sequence."""
        engine = self.engine
        nobody = not (engine.running or engine.waiting)
        return nobody and engine.blocks.free == engine.blocks.count

    def wait_until_free(self) -> None:
        """Return once no job is left and every block is free."""
        wait_until(lambda: not self.service.jobs and self.free())


@contextmanager
def serve(
    llm: LLM, settings: ServerSettings | None = None, *, piped: bool = PIPED, **options: Any
) -> Iterator[Served]:
    """Serve a model until the block ends; all requests must have ended by then.

    piped: serve from a model without weights, which passes requests on
    """

    def make() -> AsyncModel:
        model = AsyncLLM(llm, **options)
        return Piped(model) if piped else model

    with serve_all(make, settings) as served:
        served.llm = llm
        yield served


@contextmanager
def serve_all(
    make: Callable[[], AsyncModel | Mapping[str, AsyncModel]],
    settings: ServerSettings | None = None,
) -> Iterator[Served]:
    """Serve models that ``make`` returns in the server's event loop; see ``serve``."""
    [sock] = bind("127.0.0.1", 0)
    port, ready = sock.getsockname()[1], Event()
    server_and_app: list[Any] = []

    async def main() -> None:
        app = create_app(make(), settings)
        config = uvicorn.Config(
            app,
            http="h11",
            log_config=None,
            access_log=False,
            lifespan="on",  # as process.py has it
        )
        server = _Server(config, ready)
        server_and_app.extend([server, app])
        await server.serve([sock])

    thread = Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(300), "the server did not start"
    server, app = server_and_app
    try:
        yield Served(f"http://127.0.0.1:{port}", app)
    finally:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive(), "the server did not end"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self._ready.set()
