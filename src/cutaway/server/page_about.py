"""What the page asks first, of a server as of a model in the page itself.

Knows what both answer alike; who answers adds what it alone has.
"""

from collections.abc import Mapping
from typing import Any

from cutaway._version import __version__
from cutaway.requests.keywords import fields_at


def page_about(
    model: str, weights: str, context: int, attention: str | int, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """A model by its name and the hash of its weights, and what a request has by default.

    context: tokens of prompt and text together. attention: see ``ModelConfig``
    """
    return {
        "model": model,
        "weights": weights,
        "version": __version__,
        "context": context,
        "attention": attention,
        "defaults": {name: defaults[name] for name in fields_at("chat") if name in defaults},
    }
