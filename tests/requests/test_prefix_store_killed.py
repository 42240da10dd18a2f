"""Processes that are killed while they write a folder of prompts: nothing wrong is read afterwards.

``python tests/requests/test_prefix_store_killed.py FOLDER SEED`` is the process that is killed: it
writes texts until then.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutaway.engine import StopParams
from cutaway.files.block_folder import stored_files
from support.engine_mock import MockRequest, make_engine
from support.mock_backend import narrow
from support.stored_engines import make_stored

LAYERS = {"window": 9, "has_state": True}
KILLS = 200
"""Kills of two processes each, at moments within the time in which one writes dozens of files."""
AT_ONCE = 20  # kills with one start of Python, whose forks are killed


def text_of(seed: int) -> MockRequest:
    """Return a text that begins as others do."""
    rng = random.Random(seed)
    prompt = [*b"abab" * rng.randrange(4), *rng.choices(b"abc", k=rng.randrange(8, 40))]
    return MockRequest(tuple(prompt), stops=StopParams(max_tokens=9))


def write_for_ever(folder: Path, seed: int) -> None:
    """Write texts to a folder that has room for few, so that files are removed, too."""
    engine = make_stored(folder, size=60_000, kv_blocks=40, **LAYERS)
    while True:
        text_of(seed).run_on(engine)
        seed += 1


def kill_two(folder: Path, rng: random.Random) -> None:
    """Fork two processes that write to the folder, and kill each at a moment of its own."""
    children = []
    for _ in range(2):
        seed = rng.randrange(300)
        if not (child := os.fork()):
            try:
                write_for_ever(folder, seed)
            finally:
                os._exit(3)  # what it raised is not a kill
        children.append(child)
    for child in children:
        time.sleep(rng.uniform(0.005, 0.4))
        os.kill(child, signal.SIGKILL)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_after_kills_at_random_moments_nothing_wrong_is_read(tmp_path):
    folder, read = tmp_path / "cache", 0
    alone = {}
    for first in range(0, KILLS // 2, AT_ONCE):
        command = [sys.executable, __file__, str(folder), str(first)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(command, env=environment, check=True)
        engine = make_stored(folder, size=60_000, kv_blocks=400, **LAYERS)
        for seed in range(0, 300, 7):
            if seed not in alone:
                alone[seed] = text_of(seed).run_on(make_engine(narrow, **LAYERS))
            assert text_of(seed).run_on(engine) == alone[seed]
        engine.store.flush()
        counts = engine.store.counts()
        assert counts.damaged == 0
        read += counts.hit_tokens
        assert sum(file.nbytes for file in stored_files(folder)) <= 60_000
    unfinished = sum(path.name.endswith(".part") for path in folder.rglob("*"))
    assert read > 0
    assert unfinished > KILLS / 20  # so many kills came while a file was being written
    print(f"{KILLS} kills, {unfinished} within a file; {read} tokens were read, none damaged")


if __name__ == "__main__":
    kills = random.Random(int(sys.argv[2]))
    for _ in range(AT_ONCE):
        kill_two(Path(sys.argv[1]), kills)
