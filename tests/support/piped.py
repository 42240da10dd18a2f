"""A model without weights in front of a replica with weights, in one process, over sockets."""

from cutaway import AsyncLLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.features.cluster.front import ClusterLLM
from support.replicas import InProcess, Killable, sent


class Piped(ClusterLLM):
    """A model that passes its requests to ``behind``, as from another process."""

    def __init__(self, behind: AsyncLLM) -> None:
        own = behind.model
        model = LoadedModel(own.path, own._setup, weights=False)
        model.elsewhere = sent(own.computer)
        self._pools = InProcess()
        super().__init__(model, self._pools, **sent(behind.options))
        self.behind = behind

    @property
    def engine(self):
        return self.behind.engine

    def state(self):
        """Return the present state of ``behind``; a Front's knowledge may be a second old."""
        return sent(self.behind.state())

    @property
    def alive(self):
        return super().alive and self.behind.alive

    async def __aenter__(self):
        self._pools.each.append(Killable(self.behind))
        return await super().__aenter__()

    async def aclose(self):
        await super().aclose()
        for replica in self._pools.each:
            await replica.close()
