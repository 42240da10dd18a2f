"""Compute in the default arithmetic of IEEE 754, whatever mode the program has set.

A library may have changed the calling thread's rounding (``fesetround``), or made it flush very
small numbers to 0 (-ffast-math). That must change no bit computed here, and the caller gets its
mode back. Kernels do the same for themselves (native/plain_arithmetic.h).
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from cutaway.base._native import PlainArithmetic
else:
    try:
        from cutaway.base._native import PlainArithmetic
    except ImportError:  # it was not built
        PlainArithmetic = nullcontext

__all__ = ["PlainArithmetic", "plainly"]

P = ParamSpec("P")
T = TypeVar("T")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function, but no generator or coroutine, compute in plain arithmetic."""

    @wraps(function)
    def compute_plainly(*args: P.args, **kwargs: P.kwargs) -> T:
        with PlainArithmetic():
            return function(*args, **kwargs)

    return compute_plainly
