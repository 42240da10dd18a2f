"""Arithmetic as IEEE 754 has it unless a program asks for another, whatever this program asked for.

A library may have set the calling thread's rounding (``fesetround``), or let it take very small
numbers for 0 (-ffast-math). That must change no bit of what is computed here, and stays as it was
for whoever calls. Kernels see to it themselves (native/plain_arithmetic.h).
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
    """Let a function compute in plain arithmetic; not a generator or a coroutine, which pause."""

    @wraps(function)
    def computed(*args: P.args, **kwargs: P.kwargs) -> T:
        with PlainArithmetic():
            return function(*args, **kwargs)

    return computed
