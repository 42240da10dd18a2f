"""The log of receipts: RFC 9162's trees by brute force, and damage that must show."""

import json
import os
from contextlib import contextmanager
from errno import ENOSPC
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.features.evidence.merkle_tree import Tree, root_by_proof
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.evidence.receipt_log import (
    ReceiptLog,
    check_inclusion,
    check_log,
)
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.trace.write import end_of

pytest.importorskip("cryptography", reason="the extra 'receipt' is not installed")


def root_of(entries):
    """By the definition: halves at the largest power of two below the size."""
    if not entries:
        return sha256().digest()
    if len(entries) == 1:
        return sha256(b"\0" + entries[0]).digest()
    k = 1
    while 2 * k < len(entries):
        k *= 2
    return sha256(b"\1" + root_of(entries[:k]) + root_of(entries[k:])).digest()


@given(st.lists(st.binary(max_size=4), max_size=40))
def test_the_tree_is_that_of_the_definition(entries):
    tree = Tree()
    assert tree.root == root_of([])
    for n, entry in enumerate(entries, 1):
        assert tree.append(entry) == n - 1
        assert tree.root == root_of(entries[:n])
    for index, entry in enumerate(entries):
        path = tree.inclusion(index)
        assert root_by_proof(entry, index, len(entries), path) == tree.root
        assert root_by_proof(entry + b"x", index, len(entries), path) != tree.root
        assert root_by_proof(entry, index, len(entries), [*path, b"\0" * 32]) != tree.root
        assert root_by_proof(entry, len(entries), len(entries), path) is None


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return PrivateKey.create(tmp_path_factory.mktemp("keys") / "key.pem")


@pytest.fixture(scope="module")
def receipts(tiny_path, key):
    llm, made = LLM(tiny_path, threads=1, progress=False), []
    for seed in range(5):
        with llm.stream("ab", max_tokens=3, seed=seed, ignore_eos=True) as stream:
            stream.finish()
        made.append(Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key))
    return made


@pytest.fixture
def folder(tmp_path, key, receipts):
    """A log of five receipts, written in two sittings; the fifth belongs to the first's answer."""
    log = ReceiptLog(tmp_path / "log", key)
    for n in range(3):
        log.append(f"a{n}", receipts[n])
    log.close()
    log = ReceiptLog(tmp_path / "log", key)
    log.append("a3", receipts[3])
    log.append("a0", receipts[4])
    log.close()
    return tmp_path / "log"


def test_a_log_goes_on_after_a_restart_and_proves_what_it_has(folder, key, receipts):
    log = ReceiptLog(folder, key)
    assert len(log) == 5
    found = log.find("a0")
    assert [one["receipt"]["root"] for one in found] == [receipts[0].root, receipts[4].root]
    for one in found:
        assert check_inclusion(Receipt.from_json(one["receipt"]), one["log"])["size"] == 5
    assert log.find("nobody") == []
    with pytest.raises(FormatError, match="leads elsewhere"):
        check_inclusion(receipts[1], found[0]["log"])
    log.close()


def lines(folder, name="receipts.jsonl"):
    return (folder / name).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda all_: all_[:-1], "1 receipts are missing"),
        (lambda all_: [*all_[:1], *all_[2:]], "not those of head"),
        (lambda all_: [*all_[:3], all_[4], all_[3]], "not those of head"),
        (lambda all_: [all_[0], *all_[:4]], "not those of head"),
        (lambda all_: [all_[0][:-9] + b"\n", *all_[1:]], "line 1"),
        (lambda all_: [*all_, b"{}\n"], "line 6"),
    ],
)
def test_a_receipt_that_is_taken_out_or_moved_shows(folder, key, change, what):
    (folder / "receipts.jsonl").write_bytes(b"".join(change(lines(folder))))
    with pytest.raises(FormatError, match=what):
        check_log(folder)
    with pytest.raises(InputError, match="damaged log"):
        ReceiptLog(folder, key)


def test_a_log_that_is_cut_as_a_whole_shows_by_a_head_kept_elsewhere(folder):
    kept = json.loads(lines(folder, "heads.jsonl")[-1])
    for name in ("receipts.jsonl", "heads.jsonl"):
        (folder / name).write_bytes(b"".join(lines(folder, name)[:3]))
    assert len(check_log(folder)) == 3  # it agrees with itself
    with pytest.raises(FormatError, match="2 receipts are missing"):
        check_log(folder, [kept])
    with pytest.raises(FormatError, match="not one of the key"):
        check_log(folder, [kept | {"size": 3}])


def test_nobody_else_may_read_a_log(tmp_path, key):
    before = os.umask(0o022)
    try:
        ReceiptLog(tmp_path / "log", key).close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "log").iterdir()}
    assert modes == {"receipts.jsonl": 0o600, "heads.jsonl": 0o600}
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700


# -- a disk that is full ---------------------------------------------------------------------------


@contextmanager
def no_larger_file(size):
    """As a disk that is full: a file that would be larger is written up to here, then EFBIG."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of a file's size")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def size(folder, name="receipts.jsonl"):
    return (folder / name).stat().st_size


@pytest.mark.parametrize("room", [0, 1, 700, "its line, but for the end"])
def test_a_receipt_that_found_no_room_is_a_signed_gap(folder, key, receipts, room):
    """Half a line is taken back, whatever part of it there was room for."""
    line = lines(folder)[0]
    log, before = ReceiptLog(folder, key), size(folder)
    room = len(line) - 1 if isinstance(room, str) else room
    with no_larger_file(before + room):
        for n in (0, 1):
            with pytest.raises(CutawayError, match="a receipt is lost: File too large"):
                log.append(f"lost{n}", receipts[n])
    assert size(folder) == before
    assert log.append("a5", receipts[2]) == 6
    log.close()
    found = check_log(folder)
    assert [entry.lost_count for entry in found] == [0, 0, 0, 0, 0, 2, 0]
    log = ReceiptLog(folder, key)  # it starts again
    assert log.find("lost0") == []
    [one] = log.find("a5")
    assert check_inclusion(receipts[2], one["log"])["size"] == 7
    log.close()


def test_a_gap_is_told_at_the_end_and_cannot_be_changed(folder, key, receipts):
    log = ReceiptLog(folder, key)
    with no_larger_file(size(folder)), pytest.raises(CutawayError):
        log.append("lost", receipts[0])
    log.close()
    kept, whole = json.loads(lines(folder, "heads.jsonl")[-1]), lines(folder)
    assert [entry.lost_count for entry in check_log(folder, [kept])] == [0, 0, 0, 0, 0, 1]
    gap = json.loads(whole[-1])["gap"]
    for change, what in [
        ({"lost": 2}, "not one of the key"), ({"lost": 0}, "how many are lost"),
        ({"lost": 2**80}, "0 to 2\\*\\*63"), ({"lost": True}, "whole number"),
        ({"index": 4}, "number of its line"), ({"index": 5.0}, "whole number"),
        ({"signature": "0" * 128}, "not one of the key"), ({"more": 1}, "or a gap"),
    ]:  # fmt: skip
        changed = json.dumps({"gap": gap | change}).encode() + b"\n"
        (folder / "receipts.jsonl").write_bytes(b"".join([*whole[:-1], changed]))
        with pytest.raises(FormatError, match=what):
            check_log(folder)
    (folder / "receipts.jsonl").write_bytes(b"".join(whole[:-1]))
    with pytest.raises(FormatError, match="1 receipts are missing"):
        check_log(folder)


def test_a_head_that_found_no_room_is_made_up_for_by_the_next(folder, key, receipts):
    log = ReceiptLog(folder, key)
    log._heads.append = _full  # a limit of a file's size would meet the receipts first
    with pytest.raises(CutawayError, match="no head of its own: No space left"):
        log.append("a5", receipts[0])
    del log._heads.append
    assert log.append("a6", receipts[1]) == 6
    log.close()
    assert len(check_log(folder)) == 7
    assert json.loads(lines(folder, "heads.jsonl")[-1])["size"] == 7


def _full(*_):
    raise OSError(ENOSPC, "No space left on device")


def test_half_a_line_of_a_process_that_was_killed_is_taken_away(folder, key, receipts):
    for name in ("receipts.jsonl", "heads.jsonl"):
        half = lines(folder, name)[0][:200]
        with (folder / name).open("ab") as file:
            file.write(half)
    assert len(check_log(folder)) == 5
    log = ReceiptLog(folder, key)
    log.append("a5", receipts[0])
    log.close()
    assert [entry.lost_count for entry in check_log(folder)] == [0, 0, 0, 0, 0, 1, 0]
    assert [json.loads(line)["size"] for line in lines(folder, "heads.jsonl")] == [
        1, 2, 3, 4, 5, 7,
    ]  # fmt: skip


def test_two_servers_add_to_no_one_log(folder, key):
    log = ReceiptLog(folder, key)
    with pytest.raises(InputError, match="another server adds to this log"):
        ReceiptLog(folder, key)
    log.close()
    ReceiptLog(folder, key).close()


# -- what is no log --------------------------------------------------------------------------------


def signed_head(key, size, root):
    """By the folder's own author, whatever it says."""
    message = b"cutaway receipts head 1\n" + size.to_bytes(8, "big", signed=True) + root
    return {
        "size": size, "root": root.hex(),
        "public_key": key.public.hex, "signature": key.sign(message),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"size": 2**80}, "size must be a whole number"), ({"size": -9}, "size must be a whole"),
        ({"size": 2**63}, "size must be a whole number"), ({"size": True}, "size must be a whole"),
        ({"size": 5.0}, "size must be a whole"), ({"size": None}, "size must be a whole"),
        ({"root": "00"}, "root must be 64"), ({"root": 7}, "root must be 64"),
        ({"public_key": "00"}, "64 hex digits"), ({"signature": None}, "not one of the key"),
        ({"more": 1}, "the fields size"),
    ],
)  # fmt: skip
def test_a_head_that_is_none(folder, key, receipts, change, what):
    log = ReceiptLog(folder, key)
    [one, *_] = log.find("a0")
    log.close()
    head = one["log"]["head"] | change
    with pytest.raises(FormatError, match=what):
        check_log(folder, [head])
    with pytest.raises(FormatError, match=what):
        check_inclusion(receipts[0], one["log"] | {"head": head})


def test_a_head_of_no_size_by_the_folders_own_author(folder, key):
    head = signed_head(key, -9, bytes(32))
    with pytest.raises(FormatError, match="size must be a whole number"):
        check_log(folder, [head])
    with (folder / "heads.jsonl").open("a") as file:
        file.write(json.dumps(head) + "\n")
    with pytest.raises(InputError, match="size must be a whole number"):
        ReceiptLog(folder, key)


@pytest.mark.parametrize(
    "change",
    [
        {"index": 2**80}, {"index": -1}, {"index": True}, {"index": "0"}, {"path": "00"},
        {"path": {}}, {"path": [7]}, {"path": ["00"]}, {"path": ["0" * 64] * 99}, {"head": []},
        {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_proof_that_is_none(folder, key, receipts, change):
    log = ReceiptLog(folder, key)
    [one, *_] = log.find("a0")
    log.close()
    with pytest.raises(FormatError):
        check_inclusion(receipts[0], one["log"] | change)
