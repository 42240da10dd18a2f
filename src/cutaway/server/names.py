"""The names by which requests may ask for a model: its own, and those of its adapters."""

from collections import Counter
from collections.abc import Mapping, Sequence

from cutaway.api.async_model import AsyncModel
from cutaway.compute.loading.model import LoadedModel
from cutaway.errors import InputError


class Names:
    """Those of one model.

    first  its name in answers to requests that name none
    every  all of them, its own first, then those of adapters
    """

    def __init__(self, model: LoadedModel, own: Sequence[str]) -> None:
        self._model, self.first, self._own = model, own[0], tuple(own)

    @property
    def every(self) -> tuple[str, ...]:
        """See the class; adapters come and go."""
        return (*self._own, *self._model.adapters)

    def known(self, name: str) -> str | None:
        """The name as this model has it; None if it is another model's."""
        bare = name.removesuffix(":latest")  # as Ollama's clients write it
        return next((own for own in (name, bare) if own in self.every), None)

    def named(self, name: str | None) -> str:
        """As ``known``, for a request to this model; without a name, the first."""
        return (name and self.known(name)) or self.first

    def adapter(self, name: str | None) -> str:
        """The adapter of which this is the name; "": none."""
        own = self.named(name)
        return own if own in self._model.adapters else ""

    def model(self, name: str | None) -> LoadedModel:
        """The model, with the adapter of which this is the name."""
        return self._model.with_adapter(self.adapter(name))

    def fingerprint(self, name: str | None) -> str:
        """What computes: OpenAI's ``system_fingerprint``."""
        return self.model(name).system_fingerprint


def names_of(models: Mapping[str, AsyncModel], usual: Sequence[str]) -> list[Names]:
    """Of each, by the name that it was given, by its own, and those of its adapters.

    usual: of one whose name is ""
    InputError where an adapter has the name of a model, or of another adapter.
    """
    own = Counter(one.name for one in models.values()) + Counter(models.keys())
    found = []
    for name, one in models.items():
        called = [name] if name else usual
        alone = [one.name] if own[one.name] == 1 or one.name == name else []
        found.append(Names(one.model, [*dict.fromkeys([*called, *alone])]))
    count = Counter(name for names in found for name in names.every)
    for one in models.values():
        for name in one.model.adapters:
            if count[name] > 1:
                raise InputError(
                    f"adapters: {name} is the name of a model or of another adapter: give another"
                )
    return found
