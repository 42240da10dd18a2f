"""A saved prefix on disk: what was written is read, or one sentence says what is wrong."""

import errno
import os
import resource
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.files.prefix import PrefixHeader, PrefixReader, write_prefix
from support.damage import damage

BLOCKS = [bytes([n] * 5 + [n + 100] * (6 if n else 9)) for n in range(3)]
HEAD = PrefixHeader(
    model="tiny", computed_by={"weights": "af", "cutaway": "0"}, block_tokens=2,
    token_ids=(1, 2, 3, 4, 2**31 - 1, 0), text="été und\0mehr", special=True,
)  # fmt: skip


def pieces(data):
    """Memory in two parts, as a backend may have it."""
    memory = np.frombuffer(data, np.uint8).copy()
    return [memory[:5], memory[5:]]


def write(path, blocks=BLOCKS, head=HEAD):
    with write_prefix(path, head) as file:
        for place, block in enumerate(blocks):
            file.add(place, pieces(block))
    assert file.nbytes == path.stat().st_size
    return path


def read(path):
    """What it says and all blocks, in an order of no file."""
    with PrefixReader(path) as file:
        blocks = {}
        for place in reversed(range(file.head.blocks)):
            memory = pieces(bytes(file.head.block_bytes[place]))
            file.read(place, memory)
            blocks[place] = b"".join(piece.tobytes() for piece in memory)
        file.check()
        assert file.nbytes == path.stat().st_size
        return file.head, [blocks[place] for place in sorted(blocks)]


def by_hand(version, tokens, blocks, blocks_bytes, json_bytes, rest):
    """A file of these sizes whose hash is right."""
    fixed = b"cutaway\x0c" + struct.pack(
        "<IIQQQ", version, tokens, blocks, blocks_bytes, json_bytes
    )
    return fixed + sha256(fixed + rest).digest() + rest


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write(tmp_path_factory.mktemp("raw") / "some.prefix").read_bytes()


@pytest.mark.parametrize("name", ["a.prefix", "with a space", "日本.prefix", "n" * 255])
def test_what_was_written_is_read(tmp_path, name):
    head, blocks = read(write(tmp_path / name))
    assert blocks == BLOCKS
    digests = tuple(sha256(block).digest() for block in BLOCKS)
    assert head == replace(HEAD, digests=digests, block_bytes=(14, 11, 11))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_blocks_and_no_text_are_a_file_too(tmp_path):
    head = replace(HEAD, token_ids=(), text=None, special=False)
    assert read(write(tmp_path / "none", [], head)) == (head, [])


# -- damage --------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found(raw, tmp_path):
    path = tmp_path / "flipped"
    for at in range(len(raw)):
        for bit in range(8):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :])
            with pytest.raises(FormatError, match=r"^.*flipped (is|has|was) [^\n]*$"):
                read(path)


def test_every_cut_is_found_and_so_is_what_was_added(raw, tmp_path):
    path = tmp_path / "cut"
    for end in range(len(raw)):
        path.write_bytes(raw[:end])
        with pytest.raises(FormatError, match=r"is truncated|is no saved prefix"):
            PrefixReader(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(FormatError, match="is too long"):
        PrefixReader(path)


@given(data=st.data())
@settings(max_examples=300)
def test_no_damage_goes_unnoticed(raw, tmp_path_factory, data):
    pieces = st.one_of(st.binary(min_size=1, max_size=30), st.sampled_from([raw[:72], raw[72:]]))
    damaged = damage(data.draw, raw, pieces)
    path = tmp_path_factory.getbasetemp() / "damaged.prefix"
    path.write_bytes(damaged)
    if damaged == raw:
        assert read(path)[1] == BLOCKS
        return
    with pytest.raises(FormatError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} ")
    assert str(caught.value).isprintable()


NUMBERS = st.sampled_from([0, 1, 2, 11, 72, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])


@given(version=NUMBERS, tokens=NUMBERS, sizes=st.tuples(NUMBERS, NUMBERS, NUMBERS),
       rest=st.one_of(st.binary(max_size=200), st.just(b'{"model":1}')))  # fmt: skip
@settings(max_examples=300)
def test_sizes_that_no_file_has_are_refused_before_memory_is_taken(
    tmp_path_factory, version, tokens, sizes, rest
):
    path = tmp_path_factory.getbasetemp() / "hostile.prefix"
    path.write_bytes(by_hand(version % 2**32, tokens % 2**32, *sizes, rest))
    with pytest.raises(FormatError):
        read(path)


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b"7", b"{}", b'{"model":"a","computed_by":[],"text":null,"special":false}',
     b'{"model":"a","computed_by":{"a":1},"text":null,"special":false}',
     b'{"model":7,"computed_by":{},"text":null,"special":false}',
     b'{"model":"a","computed_by":{},"text":null,"special":0}',
     b'{"model":"a","computed_by":{},"text":null,"special":false,"more":1}',
     b"[" * 100_000, b'{"text": "\xff"}'],
)  # fmt: skip
def test_a_head_that_nobody_wrote_is_refused(tmp_path, said):
    path = tmp_path / "strange"
    path.write_bytes(by_hand(1, 2, 0, 0, len(said), said))
    with pytest.raises(FormatError, match="a header that cutaway does not write"):
        PrefixReader(path)


def test_blocks_are_of_the_size_that_the_reader_has_room_for(tmp_path):
    with PrefixReader(write(tmp_path / "some")) as file:
        for nbytes in (10, 12):
            with pytest.raises(FormatError, match="of another size than its model"):
                file.read(1, pieces(bytes(nbytes)))


def test_sizes_that_do_not_add_up_are_refused(tmp_path, raw):
    said = b'{"model":"a","computed_by":{},"text":null,"special":false}'
    rest = said + bytes(4) + (2**63).to_bytes(8, "little") + bytes(32)
    path = tmp_path / "strange"
    path.write_bytes(by_hand(1, 1, 1, 3, len(said), rest) + b"abc")
    with pytest.raises(FormatError, match="a header that cutaway does not write"):
        PrefixReader(path)


def test_another_version_says_so(raw, tmp_path):
    path = tmp_path / "later"
    path.write_bytes(raw[:8] + b"\x02" + raw[9:])
    with pytest.raises(FormatError, match="of version 2, and this cutaway reads version 1"):
        PrefixReader(path)


@pytest.mark.parametrize("what", ["nothing", "folder", "fifo", "forbidden"])
def test_what_cannot_be_read_is_one_sentence(tmp_path, what):
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)  # opening it would wait for ever
    elif what == "forbidden":
        path.touch(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(InputError, match=f"{what} (is no file|cannot be read)"):
        PrefixReader(path)


# -- what others do meanwhile --------------------------------------------------------------------


def test_a_file_that_is_deleted_or_replaced_is_read_to_its_end(tmp_path, raw):
    path = tmp_path / "gone"
    path.write_bytes(raw)
    with PrefixReader(path) as file:
        path.unlink()
        write(path, BLOCKS[:1], replace(HEAD, token_ids=(1, 2)))
        file.check()
        memory = pieces(bytes(11))
        file.read(2, memory)
    assert b"".join(piece.tobytes() for piece in memory) == BLOCKS[2]


def test_a_file_that_is_cut_or_overwritten_while_it_is_read_is_found(tmp_path, raw):
    path = tmp_path / "changing"
    path.write_bytes(raw)
    with PrefixReader(path) as file:
        with path.open("r+b") as other:
            other.seek(-1, 2)
            other.write(b"!")
        with pytest.raises(FormatError, match="damaged in block 2"):
            file.check()
        os.truncate(path, len(raw) - 12)
        file.read(0, pieces(bytes(14)))
        with pytest.raises(FormatError, match="was truncated while it was read"):
            file.check()


def test_a_file_of_before_stays_until_another_is_whole(tmp_path, raw):
    path = write(tmp_path / "some.prefix")
    with pytest.raises(KeyboardInterrupt), write_prefix(path, HEAD) as file:
        file.add(0, pieces(BLOCKS[1]))
        raise KeyboardInterrupt
    assert path.read_bytes() == raw
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link", tmp_path / "elsewhere" / "target"
    link.symlink_to(target)
    assert read(write(link))[1] == BLOCKS
    assert link.is_symlink()
    assert target.is_file()


_WRITER = """
import sys
import numpy as np
from pathlib import Path
from cutaway.files.prefix import PrefixHeader, write_prefix
path, own = Path(sys.argv[1]), int(sys.argv[2])
head = PrefixHeader(model="m", computed_by={}, block_tokens=1, token_ids=(own,) * 50)
for _ in range(40):
    with write_prefix(path, head) as file:
        for place in range(50):
            file.add(place, [np.full(4096, own, np.uint8)])
"""


def test_of_two_processes_that_write_at_once_one_has_the_file(tmp_path):
    path = tmp_path / "shared"
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(own)]) for own in (1, 2)
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(_whose(path))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert _whose(path) in seen | {(1,), (2,)}
    assert [*tmp_path.iterdir()] == [path]


def _whose(path):
    """The one writer whose blocks and head these are."""
    with PrefixReader(path) as file:
        memory = np.empty(4096, np.uint8)
        found = set(file.head.token_ids)
        for place in range(file.head.blocks):
            file.read(place, [memory])
            found |= {*memory.tolist()}
    assert len(found) == 1
    return tuple(found)


_KILLED = _WRITER.replace("for place in range(50):", "for place in range(49):").replace(
    "np.uint8)])", "np.uint8)]); print(flush=True); input()"
)


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path):
    path = write(tmp_path / "some.prefix")
    command = [sys.executable, "-c", _KILLED, str(path), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        [part] = {*tmp_path.iterdir()} - {path}
        write(path)
        assert part.exists()  # somebody writes into it
        process.kill()
    other = tmp_path / f".{part.name[1:9][::-1]}-{part.name[10:]}"  # of another file
    other.touch()
    for old in (part, other):
        os.utime(old, (0, 0))
    write(path)
    assert {*tmp_path.iterdir()} == {path, other}
    assert read(path)[1] == BLOCKS


# -- disks ---------------------------------------------------------------------------------------


@contextmanager
def at_most(nbytes):
    """As on a disk with so much room, but that the error is EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_what_was_there(tmp_path, raw):
    path = write(tmp_path / "some.prefix")
    for room in (0, 50, 200, len(raw) - 1):
        with at_most(room), pytest.raises(CutawayError, match="cannot be written: File too large"):
            write(path, BLOCKS[::-1])
        assert path.read_bytes() == raw
        assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("when", ["fsync", "replace"])
def test_no_space_is_said_whenever_it_is_found(tmp_path, monkeypatch, when):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "some.prefix"
    monkeypatch.setattr(os if when == "fsync" else Path, when, full)
    with pytest.raises(CutawayError, match="No space left on device; nothing was left behind"):
        write(path)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(CutawayError, match="cannot be written: No such file or directory"):
        write(tmp_path / "no such" / "some.prefix")
