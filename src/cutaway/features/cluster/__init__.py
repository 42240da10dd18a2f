"""Many replicas of one model behind one server.

Assigns texts to replicas, and has another replica continue a text when its replica is lost. Only
``app`` and ``generate`` import Ray.
"""

from importlib import import_module
from typing import Any

__all__ = ["app", "generate"]
_MODULES = {"app": "served", "generate": "bulk"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cutaway.features.cluster' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.features.cluster.{_MODULES[name]}"), name)
