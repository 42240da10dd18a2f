"""Many replicas of one model behind one server.

Which replica generates what, and which continues where one is lost. Ray is imported only for
``app`` and ``generate``; everything else is tested without it.
"""

from importlib import import_module
from typing import Any

__all__ = ["app", "generate"]
_MODULES = {"app": "served", "generate": "bulk"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cutaway.cluster' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.cluster.{_MODULES[name]}"), name)
