"""The adapters of a loaded model: by name, by task, and what computes with each.

Knows no sequences: whoever changes adapters sees to it that nothing computes.
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
    """What ``lora``, ``adapters`` and the model's own folder name, and what is loaded later.

    own    that of all texts; None without one
    tasks  those for which the model's folder has adapters (jina v3), each with what stands in front
           of a text
    """

    def __init__(self) -> None:
        self.own: Adapter | None = None
        self.tasks: Mapping[str, str] = {}
        self._named: dict[str, Adapter] = {}
        self._of_tasks: dict[str, Adapter] = {}
        self._backends: dict[str, Backend] = {}  # by the hash of an adapter

    def read(self, setup: Setup, path: Path, graph: Graph, config: ModelConfig) -> None:
        """Open what a setup and the model's folder name; errors as of ``Adapter.open``."""
        if asked := setup.adapter_files():
            from cutaway.compute.loading.adapter import Adapter  # few models have some

            self._named = {k: Adapter.open(files, graph, config) for k, files in asked.items()}
            self.own = self._named.pop("", None)
        if path.is_dir() and config.architecture == "jina-bert-v3":
            self._read_tasks(setup, path, graph, config)

    def _read_tasks(self, setup: Setup, path: Path, graph: Graph, config: ModelConfig) -> None:
        from cutaway.compute.loading.adapter import Adapter, AdapterFile, AdapterFiles
        from cutaway.files.huggingface.adapters import task_instructions

        self.tasks = task_instructions(path)
        for task in self.tasks if setup.lora is None else ():
            files = AdapterFiles((AdapterFile(path, 1.0, task),))
            self._of_tasks[task] = Adapter.open(files, graph, config)

    def put_on(self, backend: Backend) -> Backend:
        """Make a backend with each adapter of this one; returns that of all texts."""
        self._backends = {one.sha256: one.put_on(backend) for one in self._every()}
        return self._backends[self.own.sha256] if self.own else backend

    @property
    def names(self) -> list[str]:
        """The names that requests can give."""
        return [*self._named]

    @property
    def nbytes(self) -> int:
        """Of the tensors of all."""
        return sum(one.nbytes for one in self._every())

    def find(self, name: object) -> "Adapter":
        """The adapter of this name. InputError where none has it."""
        if not isinstance(name, str):
            raise InputError("adapter", f" must be a string, not {shown(name)}")
        if name not in self._named:
            known = ", ".join(self.names) or "none"
            raise InputError(f"unknown adapter {shown(name)}; loaded: {known}")
        return self._named[name]

    def find_task(self, task: object, model: str) -> "Adapter":
        """The adapter of a task of this model. InputError where it has none."""
        if not isinstance(task, str) or task not in self._of_tasks:
            known = f"its tasks are {', '.join(self.tasks)}" if self.tasks else "it has no tasks"
            if self.tasks and not self._of_tasks:
                known = "lora was loaded for all texts; load the model without it"
            raise InputError("task", f": {model} has none named {shown(task)}: {known}")
        return self._of_tasks[task]

    def backend(self, sha256: str) -> Backend:
        """The backend with an adapter. InputError once it is unloaded."""
        if sha256 not in self._backends:
            raise InputError("adapter", ": it was unloaded; name another")
        return self._backends[sha256]

    def open(
        self, name: str, at: str | PathLike[str], setup: Setup, graph: Graph, config: ModelConfig
    ) -> "Adapter":
        """Read one more adapter, for ``add``. InputError where it cannot be one.

        graph: the model's own, without an adapter
        """
        from cutaway.compute.loading.adapter import Adapter  # few models have some

        files = Setup(lora=setup.lora, adapters={name: at}).adapter_files()
        if name in self._named:
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
        """Let requests name an adapter; the backend with it. Not while the model computes."""
        if adapter.sha256 not in self._backends:
            self._backends = {**self._backends, adapter.sha256: adapter.put_on(backend)}
        self._named = {**self._named, name: adapter}
        return self._backends[adapter.sha256]

    def remove(self, name: str) -> bool:
        """Let no request name an adapter; whether no other name has it, so that it was freed."""
        gone = self._named[name].sha256
        self._named = {k: one for k, one in self._named.items() if k != name}
        if any(one.sha256 == gone for one in self._every()):
            return False
        self._backends = {k: one for k, one in self._backends.items() if k != gone}
        return True

    def close(self) -> None:
        """Free what computes."""
        self._backends = {}

    def _every(self) -> "list[Adapter]":
        own = [self.own] if self.own else []
        return [*own, *self._named.values(), *self._of_tasks.values()]
