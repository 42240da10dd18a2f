"""A model with the adapter that a request names, as whoever reports it sees it.

Knows what is the adapter's; all else is the model's, whenever its weights come and go.
"""

from typing import TYPE_CHECKING, Any

from cutaway.compute.backends import Backend
from cutaway.compute.loading.adapter import Adapter
from cutaway.compute.loading.model import LoadedModel
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.compute.loading.identity import Identity
    from cutaway.text.grammar import GrammarCompiler
    from cutaway.text.thinking import Thinking


class AdaptedModel(LoadedModel):
    """To be read from; it is loaded, claimed and closed with the model."""

    def __init__(self, model: LoadedModel, name: str, adapter: Adapter) -> None:
        self._model, self._key = model, name
        self.name, self.graph, self.adapter = f"{model.name}+{name}", adapter.graph, adapter.sha256
        self.request_adapter = adapter.sha256

    def with_adapter(self, adapter: str) -> LoadedModel:
        """See ``LoadedModel``; it has one at a time."""
        if adapter:
            raise InputError(f"adapter: {self.name} has one already: name it of the model itself")
        return self

    def close(self) -> None:
        """See the class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._model, name)

    @property
    def backend(self) -> Backend:
        """See ``LoadedModel``."""
        return self._model.adapted_backend(self._key)

    @property
    def identity(self) -> "Identity":
        """See ``LoadedModel``."""
        return self._model.identity.adapted(self.adapter)

    @property
    def thinking(self) -> "Thinking | None":
        """See ``LoadedModel``."""
        return self._model.thinking

    @property
    def grammars(self) -> "GrammarCompiler":
        """See ``LoadedModel``."""
        return self._model.grammars
