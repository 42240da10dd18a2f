"""Engines on the mock backend whose prefix cache is kept in a folder."""

from pathlib import Path

from cutaway.engine import Engine
from cutaway.files.block_folder import BlockFolder
from cutaway.requests.prefix_store import PrefixStore
from support.engine_mock import make_engine
from support.mock_backend import narrow

BLOCK, SIZE = 4, 1 << 30


def open_folder(root: Path, size: int = SIZE) -> BlockFolder:
    """Return the folder of the mock's blocks."""
    return BlockFolder(root, size, "mock", {"weights": "mock"})


def make_stored(root: Path, size: int = SIZE, **policy) -> Engine:
    """Return an engine whose prefix cache is kept in a folder."""
    engine = make_engine(narrow, block=BLOCK, **policy)
    engine.use_store(PrefixStore(engine, open_folder(root, size)))
    return engine
