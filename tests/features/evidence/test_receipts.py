"""Receipts: what is signed, what a change of it does, and what the model says of it."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from cutaway import LLM, InputError
from cutaway.base.strict_json import parse
from cutaway.errors import FormatError
from cutaway.features.evidence.receipt import Receipt, chain_root
from cutaway.features.evidence.receipt_check import check_all, check_some, drawn_steps
from cutaway.features.evidence.signing_keys import PrivateKey, PublicKey
from cutaway.features.measure.verify import instruction_set
from cutaway.trace.write import end_of
from support.random_llama import write_tiny_llama

pytest.importorskip("cryptography", reason="the extra 'receipt' is not installed")


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return PrivateKey.create(tmp_path_factory.mktemp("keys") / "key.pem")


@pytest.fixture(scope="module")
def llm(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


def receipt_of(llm, key, prompt="abc", **options):
    with llm.stream(prompt, **{"max_tokens": 12, "seed": 5} | options) as stream:
        stream.finish()
    return Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key)


@pytest.fixture(scope="module")
def receipt(llm, key):
    return receipt_of(llm, key, temperature=1.5, frequency_penalty=0.3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0},
        {"top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.2},
        {"forced": [3, 4]},
        {"stop": ["e"], "max_tokens": 200},
        {"regex": "[a-z]{5}"},
        {"logit_bias": {5: 2.5}},
        {"ignore_eos": True, "max_tokens": 1},
    ],
    ids=str,
)
def test_a_text_is_computed_again_from_its_receipt(llm, key, options):
    """Also from the bytes of the file, and at every step alone."""
    again = Receipt.from_json(parse(json.dumps(receipt_of(llm, key, **options).document).encode()))
    assert check_all(llm, again).same
    count = len(again.steps)
    assert check_some(llm, again, count, seed=1).same


def test_other_tiers_and_threads_compute_the_same(tiny_path, receipt):
    with instruction_set("generic"):
        other = LLM(tiny_path, threads=2, progress=False)
    assert check_all(other, receipt).same
    assert check_some(other, receipt, 4, seed=9).same


def leaves(value, path=()):
    """The way to every value in a document, containers included."""
    yield path
    if not isinstance(value, dict | list):
        return
    for name, inside in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(inside, (*path, name))


def at(document, path):
    for name in path:
        document = document[name]
    return document


def changed(value, luck):
    """Something else of the same kind, or of another."""
    match value:
        case bool():
            return not value
        case int():
            return luck.choice([value + 1, -value - 1, float(value), str(value), None])
        case float():
            return luck.choice([value * 2 + 1, -value - 1])
        case str():
            at = luck.randrange(len(value) + 1)
            return luck.choice([value[:at] + luck.choice("0aé ") + value[at:], value + "0", None])
        case None:
            return luck.choice([0, "", [], False])
        case list():
            return luck.choice([[*value, 0], {}, None])
        case dict():
            return luck.choice([value | {"more": 1}, [], None])


def tampered(document, luck):
    """A copy in which one thing is changed, left out, doubled, or in another's place."""
    copy = json.loads(json.dumps(document))
    path = luck.choice([*leaves(copy)][1:])
    place, name = at(copy, path[:-1]), path[-1]
    match luck.randrange(4):
        case 0:
            del place[name]
        case 1 if isinstance(place, list):
            place.insert(name, place[luck.randrange(len(place))])
        case 2 if isinstance(place, list):
            other = luck.randrange(len(place))
            place[name], place[other] = place[other], place[name]
        case _:
            place[name] = changed(place[name], luck)
    return copy


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_changes_and_none_is_valid(receipt, count):
    """Every field of the document, of its head, of each step and of the end; order, and removal."""
    luck, done = random.Random(4), 0
    assert len([*leaves(receipt.document)]) > 100
    while done < count:
        copy = tampered(receipt.document, luck)
        if copy == receipt.document and json.dumps(copy) == json.dumps(receipt.document):
            continue  # two equal things changed places
        with pytest.raises(FormatError):
            Receipt.from_json(copy)
        done += 1


def test_who_signs_a_change_anew_signs_with_another_key(receipt, key, tmp_path):
    other = PrivateKey.create(tmp_path / "other.pem")
    forged = json.loads(json.dumps(receipt.document)) | {
        "text": "other",
        "public_key": other.public.hex,
    }
    forged["root"] = chain_root(forged)
    forged["signature"] = other.sign(bytes.fromhex(forged["root"]))
    assert Receipt.from_json(forged).public_key != key.public.hex
    with pytest.raises(FormatError, match="not one of the key"):
        Receipt.from_json(forged | {"public_key": key.public.hex})


@pytest.mark.parametrize(
    ("step", "what"), [((7, 7, "0" * 16), "logits_hash"), (None, "sampled_id")]
)
def test_the_model_finds_what_its_author_signed_wrongly(llm, receipt, key, step, what):
    """A lie that is signed has a valid signature; the model contradicts it."""
    forged = json.loads(json.dumps(receipt.document))
    old = forged["steps"][6]
    forged["steps"][6] = list(step) if step else [old[0], (old[1] + 1) % 50, old[2]]
    forged["root"] = chain_root(forged)
    forged["signature"] = key.sign(bytes.fromhex(forged["root"]))
    lie = Receipt.from_json(forged)
    done = check_all(llm, lie)
    assert (done.mismatch.step, done.mismatch.what) == (6, what)
    assert check_some(llm, lie, len(lie.steps), seed=0).mismatch.what == what


def test_drawn_steps_and_what_they_miss(llm, receipt):
    """Every set of steps is as likely; a wrong step is missed as often as told."""
    n, count = 6, 2
    times = [0] * n
    for seed in range(600):
        for step in drawn_steps(n, count, seed):
            times[step] += 1
    assert all(abs(each - 200) < 60 for each in times)
    done = check_some(llm, receipt, 3, seed=2)
    assert done.miss() == pytest.approx(1 - 3 / len(receipt.steps))
    assert check_all(llm, receipt).miss() == 0


def test_a_run_that_was_ended_before_its_first_token_has_a_receipt(llm, key):
    stream = llm.stream("abc", max_tokens=5, seed=5)
    stream.close()
    receipt = Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key)
    assert receipt.steps == ()
    done = check_all(llm, receipt)
    assert done.same
    assert done.miss() == 0


def test_another_model_is_refused(receipt, tmp_path):
    other = LLM(write_tiny_llama(tmp_path / "other.gguf", seed=1), progress=False)
    for check in (check_all, lambda *both: check_some(*both, 1, 0)):
        with pytest.raises(InputError, match="weights"):
            check(other, receipt)


def test_one_sentence_for_what_has_no_receipt(llm, key):
    with pytest.raises(InputError, match="processors are functions"):
        receipt_of(llm, key, processors=[lambda ids, row: row])
    with llm.stream("abc", max_tokens=4, seed=5, ignore_eos=True) as stream:
        stream.finish()
    end = end_of(stream.ended)
    with pytest.raises(InputError, match="not all steps of the run; read it to its end"):
        Receipt.sign_run(stream.head(), stream.steps[:3], end, key)
    with pytest.raises(InputError, match="a prompt was scored, and no text was written"):
        Receipt.sign_run(stream.head(), stream.steps, replace(end, reason="scored"), key)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "no receipt"), (b"[]", "format"), (b"{}", "format"), (b'{"a":1,"a":2}', "twice"),
        (b"\xff", "no receipt"), (b"[" * 100_000, "deeper than 64"),
    ],
)  # fmt: skip
def test_one_sentence_for_what_is_no_receipt(tmp_path, text, what):
    (tmp_path / "r.json").write_bytes(text)
    with pytest.raises(FormatError, match=what):
        Receipt.read(tmp_path / "r.json")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="Windows has no such device")
def test_what_has_no_end_fills_no_memory(tmp_path):
    with pytest.raises(InputError, match=r"/dev/zero: more than 67 MB; name a smaller"):
        Receipt.read("/dev/zero")
    for read in (PublicKey.read, PrivateKey.read):
        with pytest.raises(InputError, match=r"/dev/zero: more than 1 MB; name a smaller"):
            read("/dev/zero")


def test_keys_of_openssl_and_what_is_none(tmp_path, key):
    (tmp_path / "rsa.pem").write_text(
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    )
    with pytest.raises(InputError, match="no key in PEM"):
        PrivateKey.read(tmp_path / "rsa.pem")
    (tmp_path / "public").write_text(key.public.hex + "\n")
    assert PublicKey.read(tmp_path / "public") == key.public
    with pytest.raises(InputError, match="File exists"):
        PrivateKey.create(tmp_path / "public")
