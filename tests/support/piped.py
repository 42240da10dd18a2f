"""A model without weights in front of a replica with weights, in one process, over sockets."""

from cutaway import AsyncLLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.features.cluster.front import ClusterLLM
from support.replicas import InProcess, Killable, pickle_copy


class Piped(ClusterLLM):
    """A model that passes its requests to ``behind``, as from another process."""

    def __init__(self, behind: AsyncLLM) -> None:
        loaded = behind.model
        model = LoadedModel(loaded.path, loaded._setup, weights=False)
        model.elsewhere = pickle_copy(loaded.computer)
        self._pools = InProcess()
        super().__init__(model, self._pools, **pickle_copy(behind.options))
        self.behind = behind

    @property
    def engine(self):
        return self.behind.engine

    def state(self):
        """Return the present state of ``behind``; a Front's knowledge may be a second old."""
        return pickle_copy(self.behind.state())

    @property
    def alive(self):
        return super().alive and self.behind.alive

    async def __aenter__(self):
        self._pools.members.append(Killable(self.behind))
        return await super().__aenter__()

    async def aclose(self):
        await super().aclose()
        for replica in self._pools.members:
            await replica.close()
