"""Where the prefix cache is kept on a disk: keywords of ``LLM``, checked before a model loads."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import InputError
from cutaway.files.block_folder import BlockFolder, make_private
from cutaway.requests.prefix_store import PrefixStore

if TYPE_CHECKING:
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.engine import Engine

CACHE_SIZE = 10 * 10**9
"""The size of a folder in bytes, if none is given."""
_LEAST = 1 << 20


@dataclass(frozen=True)
class StoreSettings:
    """Where and how the prefix cache is kept on a disk; InputError for a bad setting.

    folder  a folder that is this user's own; it is made if it does not exist
    size    the most bytes of all models' blocks in it
    """

    folder: Path
    size: int = CACHE_SIZE

    @classmethod
    def read(cls, cache_dir: Any, cache_size: Any, *, prefix_cache: bool) -> "StoreSettings | None":
        """Read the keywords of ``LLM``; None if there is no folder."""
        if cache_dir is None:
            if cache_size is not None:
                raise InputError("cache_size", " is of the folder cache_dir: name that too")
            return None
        if not prefix_cache:
            raise InputError("cache_dir", " keeps the prefix cache, which is off: leave it on")
        if not isinstance(cache_dir, str | os.PathLike) or not os.fspath(cache_dir):
            raise InputError("cache_dir", f" must be a folder's name, not {shown(cache_dir)}")
        size = CACHE_SIZE if cache_size is None else check_int("cache_size", cache_size, _LEAST)
        folder = Path(cache_dir).expanduser().resolve()
        make_private(folder)
        return cls(folder, size)

    def open(self, model: "LoadedModel", engine: "Engine") -> None:
        """Let an engine keep its prefix cache here, under its model's name."""
        folder = BlockFolder(self.folder, self.size, model.name, model.computed_by)
        engine.use_store(PrefixStore(engine, folder))
