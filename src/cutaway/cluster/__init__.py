"""Many replicas of one model behind one server.

Knows which replica writes what, and who goes on where one is lost. Refuses to know how a token is
made. Ray is imported where ``app`` and ``generate`` are asked for; all else is tested without it.
"""

from importlib import import_module
from typing import Any

__all__ = ["app", "generate"]
_MODULES = {"app": "served", "generate": "bulk"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cutaway.cluster' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.cluster.{_MODULES[name]}"), name)
