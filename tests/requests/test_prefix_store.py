"""A prefix cache that is kept in a folder: an engine that finds it writes what it would compute."""

import errno
import os
from collections import Counter, deque
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import RunParams, StopParams
from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.windows import Windows
from cutaway.errors import CutawayError
from cutaway.files.block_folder import BlockFolder, clear_folder, stored_files
from support.engine_mock import MockRequest, make_engine, read_written, run_to_end
from support.mock_backend import narrow
from support.stored_engines import BLOCK, make_stored, open_folder

TEXTS = st.lists(st.sampled_from([*b"ab"]), min_size=1, max_size=40).map(tuple)
LAYERS = {"window": st.sampled_from([0, 5, 9]), "has_state": st.booleans()}


def run_beside(requests, engine):
    sequences = [request.add_to(engine) for request in requests]
    events = run_to_end(engine)
    return [read_written(sequence, events) for sequence in sequences]


@given(
    texts=st.lists(st.tuples(TEXTS, st.sampled_from([None, "a", "b"])), min_size=1, max_size=6),
    kv_blocks=st.integers(16, 40), rows=st.integers(1, 20), **LAYERS,
)  # fmt: skip
def test_engines_that_share_a_folder_write_what_each_would_alone(texts, kv_blocks, rows, **layers):
    """Blocks are evicted and read again, beside others, under salts, and by a later engine."""
    requests = [
        MockRequest(text, stops=StopParams(max_tokens=9), run=RunParams(cache_salt=salt))
        for text, salt in texts
    ]
    alone = [request.run_on(make_engine(narrow, **layers)) for request in requests]
    policy = {"kv_blocks": kv_blocks, "rows": rows, "max_num_seqs": min(rows, 8), **layers}
    with TemporaryDirectory() as folder:
        for _ in range(2):
            engine = make_stored(Path(folder), **policy)
            assert run_beside(requests, engine) == alone
            engine.store.flush()
            assert engine.store.counts().damaged == 0


@given(
    text=TEXTS.filter(lambda text: len(text) > 2 * BLOCK),
    salt=st.sampled_from([None, "a"]),
    **LAYERS,
)
def test_a_later_engine_reads_no_token_again_beyond_the_last_whole_block(text, salt, **layers):
    run = RunParams(cache_salt=salt)
    with TemporaryDirectory() as folder:
        first = make_stored(Path(folder), **layers)
        done = MockRequest(text, stops=StopParams(max_tokens=9), run=run).finish(first)
        first.store.flush()
        known = len(text) + len(done.token_ids) - 1  # the last token was drawn and not read
        for prompt, cached in ((text, len(text) - 1), ((*text, *done.token_ids, 7), known)):
            later = make_stored(Path(folder), **layers)
            sequence = MockRequest(tuple(prompt), run=run).finish(later).sequence
            assert sequence.num_cached_tokens == cached // BLOCK * BLOCK
            assert later.store.counts().hit_tokens == sequence.num_cached_tokens
        other = make_stored(Path(folder), **layers)
        run = RunParams(cache_salt="another")
        assert MockRequest(text, run=run).finish(other).sequence.num_cached_tokens == 0


def counted(method, calls):
    """Return a method that counts its calls under its name."""

    def call(*args, **options):
        calls[method.__name__] += 1
        return method(*args, **options)

    return call


@pytest.mark.parametrize("layers", [{"window": 100}, {"window": 9}, {"has_state": True}])
def test_a_search_of_the_folder_takes_as_many_steps_as_the_text_has_blocks(
    tmp_path, monkeypatch, layers
):
    """Windows and states are lost, in memory and in the folder, so that all places are tried."""
    text = tuple(b"ab" * 240)
    engine, steps = make_stored(tmp_path, context=600, kv_blocks=300, **layers), Counter()
    MockRequest(text).run_on(engine)
    engine.store.flush()
    for file in [*stored_files(tmp_path)]:
        if file.path.suffix != ".kv":
            file.path.unlink()
    if windows := engine.blocks.windows:
        windows.max_stored = 0
        windows.trim(0)
    if states := engine.blocks.states:
        states.max_unread = 0
        states.trim()
    for owner, name in ((BlockFolder, "has"), (BlockManager, "_key"), (Windows, "count_stored")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), steps))
    assert not engine.store.fetch(text, None)
    assert len(engine.blocks.published_ids(text)) == len(text) // BLOCK
    assert len(text) // BLOCK <= steps["has"]
    assert steps.total() <= 10 * len(text) // BLOCK


def test_what_memory_loses_while_texts_run_is_found_again(tmp_path):
    """The engine is never idle in between, so that only evictions write."""
    engine = make_stored(tmp_path, kv_blocks=20)
    texts = [tuple(b"%c" % letter * 30) for letter in b"abcdef"]
    waiting = deque(MockRequest(text).add_to(engine) for text in texts)
    run_to_end(engine)
    assert waiting
    assert engine.blocks.evictions > 0
    engine.store.flush()
    again = MockRequest(texts[0]).finish(engine).sequence
    assert again.num_cached_tokens == 28
    assert engine.store.counts().hit_tokens > 0


def test_a_folder_that_is_full_loses_what_was_not_used_for_the_longest_time(tmp_path):
    texts = [tuple(b"%c" % letter * 40) for letter in b"abcdefgh"]
    nbytes = {}
    for text in texts[:2]:
        engine = make_stored(tmp_path / str(text[0]))
        MockRequest(text).run_on(engine)
        engine.store.flush()
        nbytes[text] = sum(file.nbytes for file in stored_files(tmp_path / str(text[0])))
    size = 4 * max(nbytes.values())
    root = tmp_path / "shared"
    for text in [*texts[:3], texts[0], *texts[3:6]]:
        engine = make_stored(root, size)
        MockRequest(text).run_on(engine)
        engine.store.flush()
        assert sum(file.nbytes for file in stored_files(root)) <= size
        assert engine.store.counts().bytes <= size
    cached = {}
    for text in (texts[5], texts[1]):
        sequence = MockRequest(text).finish(make_stored(root, size)).sequence
        cached[text] = sequence.num_cached_tokens
    assert cached == {texts[5]: 36, texts[1]: 0}


def test_more_than_the_folder_holds_is_written_once(tmp_path):
    engine = make_stored(tmp_path, 3000)
    texts = [tuple(b"%c" % letter * 40) for letter in b"abcdefgh"]
    for text in texts:
        MockRequest(text).add_to(engine)
    run_to_end(engine)
    engine.store.flush()
    before = engine.store.counts()
    assert before.written_bytes > 1000  # and 48 bytes more for each block of 16
    assert before.bytes <= 3000
    engine.store.flush()
    assert engine.store.counts().written_bytes == before.written_bytes


def test_what_memory_finds_stays_in_the_folder_too(tmp_path):
    engine, texts = make_stored(tmp_path, 4000), [tuple(b"%c" % n * 40) for n in b"abcdefgh"]
    for text in texts:
        for prompt in (texts[0], text):
            MockRequest(prompt).run_on(engine)
            engine.store.flush()
    assert engine.store.counts().hit_tokens == 0
    later = [MockRequest(text).finish(make_stored(tmp_path, 4000)) for text in texts[:2]]
    assert [finished.sequence.num_cached_tokens for finished in later] == [36, 0]


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:20], "flip"])
def test_a_damaged_block_is_dropped_and_computed(tmp_path, caplog, damage):
    text = tuple(b"a" * 21)
    engine = make_stored(tmp_path)
    alone = MockRequest(text).run_on(engine)
    engine.store.flush()
    names = engine.blocks.names(text)
    file = open_folder(tmp_path).path(names[2], "kv")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flip" else damage(data))
    later = make_stored(tmp_path)
    finished = MockRequest(text).finish(later)
    assert finished.written == alone
    assert finished.sequence.num_cached_tokens == 2 * BLOCK
    assert later.store.counts().damaged == 1
    [record] = caplog.records
    assert "damaged, and was removed" in record.getMessage()
    assert not file.exists()
    later.store.flush()
    assert file.read_bytes() == data[:8] + file.read_bytes()[8:48] + data[48:]


def test_a_block_under_another_blocks_name_is_damaged(tmp_path):
    engine = make_stored(tmp_path)
    MockRequest(tuple(b"ab" * 9)).run_on(engine)
    engine.store.flush()
    folder = open_folder(tmp_path)
    first, second = (folder.path(name, "kv") for name in engine.blocks.names(b"ab" * 9)[:2])
    second.write_bytes(first.read_bytes())
    later = make_stored(tmp_path)
    assert MockRequest(tuple(b"ab" * 9)).finish(later).sequence.num_cached_tokens == BLOCK
    assert later.store.counts().damaged == 1


def test_a_full_disk_is_one_line_and_no_failure(tmp_path, caplog, monkeypatch):
    engine = make_stored(tmp_path)
    folder = engine.store._folder

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        for letter in b"abc":
            MockRequest(tuple(bytes([letter]) * 20)).run_on(engine)
            engine.store.flush()
        assert list(stored_files(tmp_path)) == []
        [record] = caplog.records
        assert "No space left on device" in record.getMessage()
    assert not any(path.name.endswith(".part") for path in folder.root.rglob("*"))
    engine.store.flush()  # there is room again
    later = make_stored(tmp_path)
    assert MockRequest(tuple(b"a" * 20)).finish(later).sequence.num_cached_tokens == 16
    assert len(caplog.records) == 1


def test_two_engines_that_write_at_once_write_the_same(tmp_path):
    engines = [make_stored(tmp_path) for _ in range(2)]
    text = tuple(b"abc" * 12)
    for engine in engines:
        MockRequest(text).add_to(engine)
    for _ in range(12):
        for engine in engines:
            engine.step()
    for engine in engines:
        engine.store.flush()
    later = make_stored(tmp_path)
    assert MockRequest(text).finish(later).sequence.num_cached_tokens == 32
    assert later.store.counts().damaged == 0


def refuse(monkeypatch, call):
    """Let a call of the system fail for files of blocks, as for a user without rights."""
    allowed = getattr(os, call)

    def refuse_blocks(path, *args, **options):
        if str(path).endswith((".kv", ".window", ".state")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return allowed(path, *args, **options)

    monkeypatch.setattr(os, call, refuse_blocks)


def test_a_folder_that_cannot_be_read_is_one_line_and_the_text_is_computed(
    tmp_path, caplog, monkeypatch
):
    text = tuple(b"abc" * 12)
    engine = make_stored(tmp_path)
    alone = MockRequest(text).run_on(engine)
    engine.store.flush()
    later = make_stored(tmp_path)
    refuse(monkeypatch, "stat")
    for prompt in (text, text[1:]):
        finished = MockRequest(prompt).finish(later)
        assert finished.sequence.num_cached_tokens == 0
        assert prompt != text or finished.written == alone
    [record] = caplog.records
    assert "cannot read" in record.getMessage()
    assert "Permission denied" in record.getMessage()


def test_files_that_cannot_be_removed_are_one_line_and_stay(tmp_path, caplog, monkeypatch):
    engine = make_stored(tmp_path)
    MockRequest(tuple(b"abc" * 12)).run_on(engine)
    engine.store.flush()
    files = {file.path for file in stored_files(tmp_path)}
    refuse(monkeypatch, "unlink")
    later = make_stored(tmp_path, 300)
    MockRequest(tuple(b"xyz" * 12)).run_on(later)
    later.store.flush()
    assert files <= {file.path for file in stored_files(tmp_path)}
    [record] = caplog.records
    assert "cannot remove" in record.getMessage()
    with pytest.raises(CutawayError, match=r"cannot be cleared: .*: Permission denied"):
        clear_folder(tmp_path)


def test_what_cannot_be_read_now_stays_and_is_not_damaged(tmp_path, caplog, monkeypatch):
    text = tuple(b"a" * 21)
    engine = make_stored(tmp_path)
    alone = MockRequest(text).run_on(engine)
    engine.store.flush()
    file = open_folder(tmp_path).path(engine.blocks.names(text)[2], "kv")
    open_any = Path.open

    def fail(path, *args, **options):
        if path == file:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return open_any(path, *args, **options)

    monkeypatch.setattr(Path, "open", fail)
    later = make_stored(tmp_path)
    assert MockRequest(text).finish(later).written == alone
    counts = later.store.counts()
    assert (counts.damaged, counts.unreadable) == (0, 1)
    [record] = caplog.records
    assert "cannot be read: Too many open files" in record.getMessage()
    assert file.exists()


def test_a_damaged_block_that_stays_is_not_said_to_be_removed(tmp_path, caplog, monkeypatch):
    engine = make_stored(tmp_path)
    MockRequest(tuple(b"a" * 21)).run_on(engine)
    engine.store.flush()
    file = open_folder(tmp_path).path(engine.blocks.names(tuple(b"a" * 21))[2], "kv")
    file.write_bytes(b"")
    refuse(monkeypatch, "unlink")
    MockRequest(tuple(b"a" * 21)).finish(make_stored(tmp_path))
    assert any("damaged, and cannot be removed" in r.getMessage() for r in caplog.records)


def test_the_uses_that_wait_to_be_noted_are_bounded(tmp_path, monkeypatch):
    """The engine never writes in between: one use for each part, and the oldest are dropped."""
    monkeypatch.setattr("cutaway.requests.prefix_store._MOST_USES", 12)
    engine = make_stored(tmp_path)
    monkeypatch.setattr(engine.store, "rest", lambda: None)
    texts = [tuple(b"%c" % letter * 40) for letter in b"abab"]
    for text in texts:
        MockRequest(text).run_on(engine)
    names = [name for text in texts for name in engine.blocks.names(text)[:9]]
    assert [name for name, _ in engine.store._used] == names[-12:]


def test_a_flush_writes_the_newest_first_and_no_more_than_the_folder_holds(
    tmp_path, caplog, monkeypatch
):
    engine = make_stored(tmp_path, 128)  # bytes of eight blocks
    monkeypatch.setattr(engine.store, "rest", lambda: None)
    texts = [tuple(b"abcd" + b"%c" % letter * 16) for letter in b"xyz"]
    for text in texts:
        MockRequest(text, stops=StopParams(max_tokens=1)).run_on(engine)
    wanted = engine.blocks.names(texts[2]) + engine.blocks.names(texts[1])[1:]
    names, write = [], engine.store._folder.write
    engine.store._folder.write = lambda name, *args: (names.append(name), write(name, *args))
    engine.store.flush()
    assert names == wanted[:8]
    [record] = caplog.records
    assert "of the prompt cache were not written" in record.getMessage()


def test_a_flush_ends_at_its_deadline_and_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("cutaway.requests.prefix_store._FLUSH_S", 0)
    engine = make_stored(tmp_path)
    MockRequest(tuple(b"ab" * 20)).run_on(engine)
    engine.store.flush()
    assert [*stored_files(tmp_path)] == []
    [record] = caplog.records
    assert "for at most 0 s" in record.getMessage()
    monkeypatch.undo()
    engine.store.flush()
    assert len([*stored_files(tmp_path)]) >= 10
    assert len(caplog.records) == 1
