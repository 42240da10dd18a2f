"""A backend whose GPU is lost after some steps."""

from collections.abc import Callable
from typing import Any

from cutaway.compute.backends import Backend
from cutaway.errors import DeviceLostError

SENTENCE = "the GPU llvmpipe was lost: load the model again"


def lose(backend: Backend, after: int) -> None:
    """Let a backend run so many more steps."""
    run: Callable[..., Any] = backend.run
    left = iter(range(after))

    def run_or_fail(batch: Any) -> Any:
        if next(left, None) is None:
            raise DeviceLostError(SENTENCE)
        return run(batch)

    backend.run = run_or_fail  # type: ignore[method-assign]
