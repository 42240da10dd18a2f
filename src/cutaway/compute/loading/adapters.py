"""The adapters of a loaded model, by name and by task, and a backend for each.

Knows no sequences, so the caller must ensure that nothing computes while adapters change.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.base.checks import shown
from cutaway.compute.backends import Backend
from cutaway.compute.loading.setup import MOST_ADAPTERS, Setup
from cutaway.compute.model import Graph, ModelConfig
from cutaway.errors import FormatError, InputError

if TYPE_CHECKING:
    from cutaway.compute.loading.adapter import Adapter


class LoadedAdapters:
    """The adapters of ``lora``, ``adapters`` and the model's folder, and those loaded later.

    common  the adapter of all texts; None if there is none
    tasks   a task for which the model's folder has an adapter (jina v3) -> the prefix of its texts
    """

    def __init__(self) -> None:
        self.common: Adapter | None = None
        self.tasks: Mapping[str, str] = {}
        self._by_name: dict[str, Adapter] = {}
        self._by_task: dict[str, Adapter] = {}
        self._backends: dict[str, Backend] = {}  # an adapter's hash -> the backend with it

    def read(self, setup: Setup, path: Path, graph: Graph, config: ModelConfig) -> None:
        """Open the adapters of a setup and of the model's folder; errors as in ``Adapter.open``."""
        if sources := setup.adapter_files():
            from cutaway.compute.loading.adapter import Adapter  # few models have some

            _check_takes_adapters(config, "lora" if "" in sources else "adapters")
            self._by_name = {k: Adapter.open(files, graph, config) for k, files in sources.items()}
            self.common = self._by_name.pop("", None)
        if path.is_dir() and config.architecture == "jina-bert-v3":
            self._read_tasks(setup, path, graph, config)

    def _read_tasks(self, setup: Setup, path: Path, graph: Graph, config: ModelConfig) -> None:
        from cutaway.compute.loading.adapter import Adapter, AdapterFile, AdapterFiles
        from cutaway.files.huggingface.adapters import task_instructions

        self.tasks = task_instructions(path)
        for task in self.tasks if setup.lora is None else ():
            files = AdapterFiles((AdapterFile(path, 1.0, task),))
            self._by_task[task] = Adapter.open(files, graph, config)

    def put_on(self, backend: Backend) -> Backend:
        """Make a backend with each adapter from this backend; return the one for usual texts."""
        self._backends = {adapter.sha256: adapter.put_on(backend) for adapter in self._all()}
        return self._backends[self.common.sha256] if self.common else backend

    @property
    def names(self) -> list[str]:
        """The names of the adapters that requests can ask for."""
        return [*self._by_name]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensors of all adapters."""
        return sum(adapter.nbytes for adapter in self._all())

    def find(self, name: object) -> "Adapter":
        """Return the adapter of this name. InputError if there is none."""
        if not isinstance(name, str):
            raise InputError("adapter", f" must be a string, not {shown(name)}")
        if name not in self._by_name:
            names = ", ".join(self.names) or "none"
            raise InputError(f"unknown adapter {shown(name)}; loaded: {names}")
        return self._by_name[name]

    def find_task(self, task: object, model: str) -> "Adapter":
        """Return a task's adapter; model: the name for errors. InputError if there is none."""
        if not isinstance(task, str) or task not in self._by_task:
            hint = f"its tasks are {', '.join(self.tasks)}" if self.tasks else "it has no tasks"
            if self.tasks and not self._by_task:
                hint = "lora was loaded for all texts; load the model without it"
            raise InputError("task", f": {model} has none named {shown(task)}: {hint}")
        return self._by_task[task]

    def backend(self, sha256: str) -> Backend:
        """Return the backend with the adapter of this hash; InputError if that was unloaded."""
        if sha256 not in self._backends:
            raise InputError("adapter", ": it was unloaded; name another")
        return self._backends[sha256]

    def open(
        self, name: str, at: str | PathLike[str], setup: Setup, graph: Graph, config: ModelConfig
    ) -> "Adapter":
        """Read one more adapter, for ``add``. InputError if it is no adapter of this model.

        graph: the model's own, without an adapter
        """
        from cutaway.compute.loading.adapter import Adapter  # few models have some

        _check_takes_adapters(config, "adapters")
        files = Setup(lora=setup.lora, adapters={name: at}).adapter_files()
        if name in self._by_name:
            raise InputError("adapters", f": {name} is loaded already: unload it first")
        if len(self.names) == MOST_ADAPTERS:
            raise InputError(
                "adapters", f": {MOST_ADAPTERS} are loaded, the most: unload one first"
            )
        try:
            return Adapter.open(files[name], graph, config)
        except FormatError as error:
            raise InputError("adapters", f": {name}: {error}") from error

    def add(self, name: str, adapter: "Adapter", backend: Backend) -> Backend:
        """Let requests name an adapter; return its backend. The model must not be computing."""
        if adapter.sha256 not in self._backends:
            self._backends = {**self._backends, adapter.sha256: adapter.put_on(backend)}
        self._by_name = {**self._by_name, name: adapter}
        return self._backends[adapter.sha256]

    def remove(self, name: str) -> bool:
        """Remove a name; return whether this freed its adapter, which may have another name."""
        sha256 = self._by_name[name].sha256
        self._by_name = {k: adapter for k, adapter in self._by_name.items() if k != name}
        if any(adapter.sha256 == sha256 for adapter in self._all()):
            return False
        self._backends = {k: adapter for k, adapter in self._backends.items() if k != sha256}
        return True

    def close(self) -> None:
        """Free the backends."""
        self._backends = {}

    def _all(self) -> "list[Adapter]":
        common = [self.common] if self.common else []
        return [*common, *self._by_name.values(), *self._by_task.values()]


def _check_takes_adapters(config: ModelConfig, setting: str) -> None:
    if config.attention == "canvas":
        raise InputError(setting, ": this model denoises a canvas without adapters: leave it out")
