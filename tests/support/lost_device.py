"""A backend whose GPU is lost after some steps."""

from collections.abc import Callable
from typing import Any

import pytest

from cutaway.compute.backends import Backend
from cutaway.errors import DeviceLostError

SENTENCE = "the GPU llvmpipe was lost: load the model again"


def lose(backend: Backend, after: int, patch: pytest.MonkeyPatch) -> None:
    """Let a backend run so many more steps, until the patch is undone."""
    run: Callable[..., Any] = backend.run
    left = iter(range(after))

    def run_or_fail(batch: Any) -> Any:
        if next(left, None) is None:
            raise DeviceLostError(SENTENCE)
        return run(batch)

    patch.setattr(backend, "run", run_or_fail)
