"""The log of receipts: RFC 9162's trees by brute force, and damage that must show."""

import json
import os
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.errors import FormatError, InputError
from cutaway.lab.evidence.merkle import Tree, root_by_proof
from cutaway.lab.evidence.receipt import Receipt
from cutaway.lab.evidence.receipt_log import ReceiptLog, check_inclusion, check_log
from cutaway.lab.evidence.signing import PrivateKey
from cutaway.trace.sinks import end_of

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
        made.append(Receipt.of(stream.head(), stream.steps, end_of(stream.ended), key))
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
    found = log.of("a0")
    assert [one["receipt"]["root"] for one in found] == [receipts[0].root, receipts[4].root]
    for one in found:
        assert check_inclusion(Receipt.from_json(one["receipt"]), one["log"])["size"] == 5
    assert log.of("nobody") == []
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
