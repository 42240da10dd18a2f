"""Many replicas of one model behind one door.

Knows which replica writes what, and who goes on where one is lost. Refuses to know how a token is
made. Only ``serving`` and ``bulk`` import Ray, so that all else is used and tested without it.
"""

from typing import Any

__all__ = ["generate"]


def __getattr__(name: str) -> Any:
    if name != "generate":
        raise AttributeError(f"module 'cutaway.cluster' has no attribute {name!r}")
    from cutaway.cluster.bulk import generate

    return generate
