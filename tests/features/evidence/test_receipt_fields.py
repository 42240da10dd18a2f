"""A receipt says only what was checked: every field is held against the run, or is a word."""

import json
from functools import cache
from pathlib import Path

import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.errors import FormatError
from cutaway.features.evidence.receipt import (
    DERIVED,
    SIGNED,
    Receipt,
    ReceiptStep,
    chain_root,
    entry,
    flat,
    is_signed,
)
from cutaway.features.evidence.receipt_check import (
    Derived,
    check_all,
    check_some,
    differing,
)
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.rerun.request import settings_of
from cutaway.sampling.observe import START, chain_hash
from cutaway.trace.write import end_of

pytest.importorskip("cryptography", reason="the extra 'receipt' is not installed")

RUNS = {
    "plain": {"max_tokens": 6},
    "greedy": {"max_tokens": 6, "temperature": 0},
    "forced": {"max_tokens": 6, "forced": [103, 104, 105]},
    "grammar": {"max_tokens": 9, "regex": "[a-z]{3}"},
    "penalties": {"max_tokens": 6, "frequency_penalty": 0.5, "logit_bias": {101: 2.5}, "top_k": 40},
    "interventions": {"max_tokens": 4, "interventions": ["L0.H1 x 0"]},
    "healed": {"max_tokens": 4, "heal": True},
    "stopped": {"max_tokens": 300, "stop": [*"eaotnshr"]},
    "ended": {"max_tokens": 300, "stop_token_ids": [*range(100, 130)]},
    "context full": {"max_tokens": 500, "ignore_eos": True},
    "aborted": {"max_tokens": 300, "stop": ["*" * 9], "aborted": 4},
    "aborted at once": {"max_tokens": 5, "aborted": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return PrivateKey.create(tmp_path_factory.mktemp("keys") / "key.pem")


@pytest.fixture(scope="module")
def llm(tiny_path):
    return LLM(tiny_path, threads=1, progress=False, context=24)


@pytest.fixture(scope="module")
def receipt_of(llm, key):
    @cache
    def make(name):
        options = {"seed": 5} | RUNS[name]
        aborted = options.pop("aborted", None)
        with llm.stream("abc", **options) as stream:
            for _ in range(300 if aborted is None else aborted):
                next(stream, None)
        return Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key)

    return make


@pytest.fixture(scope="module")
def signed_anew(key):
    """What a liar signs: a document after a change, under the liar's own key."""

    def sign(document):
        document = json.loads(json.dumps(document))
        if isinstance(document["steps"], list):
            document["root"] = chain_root(document)
        return document | {"signature": key.sign(bytes.fromhex(document["root"]))}

    return sign


REASONS = {
    "plain": "max_tokens", "grammar": "constraint", "stopped": "stop_string",
    "ended": "stop_token", "context full": "context_full", "aborted": "aborted",
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_receipt_holds(llm, receipt_of, name):
    receipt = receipt_of(name)
    assert receipt.end.reason == REASONS.get(name, receipt.end.reason)
    found = check_all(llm, receipt)
    assert found.mismatch is None
    if receipt.steps:
        assert check_some(llm, receipt, 1, seed=3).mismatch is None


def test_every_field_is_held_against_something_or_is_a_word(receipt_of):
    """A field that a release adds fails here until somebody says which it is."""
    paths = {f"steps.{name}" for name in ReceiptStep._fields} | {"text"}
    for name in RUNS:
        document = receipt_of(name).document
        for part in ("head", "end"):
            paths |= {path for path, _ in flat(part, document[part])}
    unsaid = [p for p in sorted(paths) if not (entry(p, DERIVED) or entry(p, SIGNED))]
    assert unsaid == []
    assert not DERIVED.keys() & SIGNED.keys()


def test_the_documentation_has_every_field():
    text = (Path(__file__).parents[3] / "docs" / "receipts.md").read_text()
    shown = [path for path in (*DERIVED, *SIGNED) if f"`{path}`" not in text]
    assert shown == []


def lies(value):
    """Other values of a field, of its kind and of others."""
    match value:
        case bool():
            return [not value, None, int(value)]
        case int() | float():
            return [value + 1, value + 0.5, -1, 2**63, 2**80, str(value), None, True]
        case str():
            return [value + "0", "", "0" * len(value), value[::-1] + " ", None, 7]
        case None:
            return [0, 1, "I consent.", [], {}, True]
        case list():
            return [[*value, 0], value[:-1], [*value, "x"], [*value, None], {}, None, 5]
    return [{**value, "more": 1}, [], None]


def leaves(value, path=()):
    """The way to everything inside, objects and lists too."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for name, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inside, (*path, name))


def changed(document, path, value):
    copy = json.loads(json.dumps(document))
    place = copy
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return copy


def is_true(llm, lie):
    """Whether whoever asks for the run that the receipt names gets its very steps and end.

    So it is with a setting that could not have changed this text, such as a limit it never met.
    """
    options = settings_of(lie.head)
    with llm.stream(list(lie.head.prompt_token_ids), **options) as stream:
        for _ in lie.steps:
            next(stream, None)
        if lie.end.reason != "aborted":
            stream.finish()
    steps = [(s.token_id, s.sampled_id, f"{s.logits_hash:016x}") for s in stream.steps]
    end = end_of(stream.ended).to_json()
    derived = Derived(stream.head(), {"end": end, "text": stream.text}, None)
    others = {each.what for each in differing(lie, derived)}
    return steps == [*lie.steps] and others <= {"head.prompt"}  # which was given as ids


QUICK = "plain", "forced", "stopped", "aborted"


@pytest.mark.parametrize(
    ("name", "every"),
    [*((name, 4) for name in QUICK), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in RUNS)],
)
def test_every_lie_about_a_field_is_refused_or_stands_under_the_signers_word(
    llm, receipt_of, signed_anew, name, every
):
    """One lie in four, of each kind in turn; slow, all of them, and of every run."""
    document, tried = receipt_of(name).document, 0
    for part in ("head", "steps", "end", "text"):
        for path in leaves({part: document[part]}):
            value = document
            for step in path:
                value = value[step]
            for other in lies(value):
                if json.dumps(other) == json.dumps(value):
                    continue
                tried += 1
                if tried % every:
                    continue
                lie = signed_anew(changed(document, path, other))
                try:
                    read = Receipt.from_json(lie)
                    found = check_all(llm, read)
                except (FormatError, InputError):
                    continue
                where = ".".join(map(str, path))
                if found.same and not is_signed(where, read.end.reason):
                    assert is_true(llm, read), (where, value, other)
                elif found.same:
                    held = [v for p, v in found.signer_says.items() if f"{p}.".startswith(where)]
                    assert held or other in (None, {}, []), (where, value, other)
    assert tried > 400


def cut(document, count, reason):
    """A careful liar's: the first tokens alone, with all that follows from them, and a reason."""
    steps = document["steps"][:count]
    fingerprint = START
    for _, _, logits_hash in steps:
        fingerprint = chain_hash(fingerprint, int(logits_hash, 16))
    usage = document["end"]["usage"] | {"completion_tokens": count}
    end = {"reason": reason, "matched": None, "usage": usage, "fingerprint": f"{fingerprint:016x}"}
    text = bytes(step[0] - 3 for step in steps).decode("latin-1") if count else ""
    return document | {"steps": steps, "text": text, "end": document["end"] | end}


def having(part, **fields):
    return lambda document: document | {part: document[part] | fields}


def setting(**fields):
    return lambda document: having("head", params=document["head"]["params"] | fields)(document)


def step(number, at, value):
    def change(document):
        steps = [[*each] for each in document["steps"]]
        steps[number][at] = steps[number][at] + value if at < 2 else value
        return document | {"steps": steps}

    return change


REFUSED = {
    "the request forced nothing": ("forced", setting(forced=[])),
    "the request forced less": ("forced", setting(forced=[103])),
    "the request forced other tokens": ("forced", setting(forced=[103, 104, 106])),
    "it was asked something else": ("plain", having("head", prompt="I consent. abc")),
    "a prompt of megabytes": ("plain", having("head", prompt="a b" * 3_000_000)),
    "other luck drew it": ("plain", setting(seed=7)),
    "other luck drew it, twice said": (
        "plain", lambda document: setting(seed=7)(having("head", seed=7)(document)),
    ),
    "it was cooler": ("plain", setting(temperature=0.5)),
    "the chain was cooler": (
        "plain", having("head", chain=[{"stage": "temperature", "temperature": 0.5}]),
    ),
    "there was no grammar": ("grammar", having("head", grammar=None)),
    "a setting that there is not": ("plain", setting(consent=True)),
    "a canvas": ("plain", having("head", decoder={})),
    "a check took part": ("plain", setting(check="arithmetic")),
    "a processor took part": ("plain", setting(processors=["consent"])),
    "nothing was changed inside": ("interventions", having("head", interventions=[])),
    "the tokenizer ends elsewhere": ("plain", having("head", end_ids=[2, 3])),
    "a larger vocabulary": ("plain", having("head", vocab_size=1000)),
    "a larger model": (
        "plain",
        lambda d: having("head", sizes=d["head"]["sizes"] | {"layers": 80})(d),
    ),
    "no kind of record": ("plain", having("head", kind="tok")),
    "the end is no end": ("plain", having("end", kind="step")),
    "all bits of nothing": ("plain", having("end", fingerprint="0" * 16)),
    "a stop string matched": ("plain", having("end", matched="blue")),
    "another stop string matched": ("stopped", having("end", matched="blue")),
    "a million tokens": (
        "plain",
        lambda d: having("end", usage=d["end"]["usage"] | {"completion_tokens": 10**6})(d),
    ),
    "a longer prompt": (
        "plain", lambda d: having("end", usage=d["end"]["usage"] | {"prompt_tokens": 9})(d),
    ),
    "more was counted": (
        "plain", lambda d: having("end", usage=d["end"]["usage"] | {"consent": 1})(d),
    ),
    "something was held back": ("plain", having("end", text="I consent.")),
    "an error that was none": ("plain", having("end", error="I consent.")),
    "another text": ("plain", lambda document: document | {"text": "I consent."}),
    "a token that nobody drew": ("plain", step(1, 0, 1)),
    "a draw that the luck did not make": ("plain", step(1, 1, 1)),
    "other bits": ("plain", step(1, 2, "0" * 16)),
    "a token that there is not": ("plain", step(1, 0, 10**6)),
    **{
        f"it ended by {reason} before its end": (
            "plain", lambda document, reason=reason: cut(document, 3, reason),
        )
        for reason in ("end_token", "stop_token", "stop_string", "max_tokens", "constraint",
                       "scored", "the text goes on")
    },
    **{
        f"{reason} ended it at once": (
            "plain", lambda document, reason=reason: cut(document, 0, reason),
        )
        for reason in ("end_token", "max_tokens", "context_full", "constraint", "scored")
    },
    "it was stopped where it ended": ("ended", having("end", reason="aborted", matched=None)),
    "it went on after its end": (
        "stopped", lambda document: document | {"steps": [*document["steps"], [9, 9, "0" * 16]]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_lie_is_refused(llm, receipt_of, signed_anew, name):
    run, lie = REFUSED[name]
    document = signed_anew(lie(receipt_of(run).document))
    try:
        read = Receipt.from_json(document)
        assert not check_all(llm, read).same
        if read.steps:  # what follows from the tokens is compared with some, too
            assert not check_some(llm, read, len(read.steps), seed=1).same
    except (FormatError, InputError):
        pass


WORDS = {
    "it was stopped": ("end.reason", lambda document: cut(document, 3, "aborted")),
    "an error ended it": ("end.reason", lambda document: cut(document, 3, "error")),
    "its context was full": ("end.reason", lambda document: cut(document, 3, "context_full")),
    "a model of this name": ("head.model", having("head", model="GPT-9")),
    "this release": ("head.cutaway", having("head", cutaway="9.9.9")),
    "so many threads": ("head.threads", having("head", threads=4096)),
    "so many cached": (
        "end.usage.cached_tokens",
        lambda d: having("end", usage=d["end"]["usage"] | {"cached_tokens": 3})(d),
    ),
    "a branch of this": (
        "head.parent.trace", having("head", parent={"trace": "0" * 64, "step": 1, "token_id": 2}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_what_nothing_shows_is_the_signers_word(
    tiny_path, tmp_path, capsys, llm, receipt_of, signed_anew, name
):
    """Also in what the command prints."""
    path, lie = WORDS[name]
    document = signed_anew(lie(receipt_of("plain").document))
    found = check_all(llm, Receipt.from_json(document))
    assert found.mismatch is None
    value = document
    for key in path.split("."):
        value = value[key]
    assert found.signer_says[path] == value
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(document))
    assert main(["receipt", "verify", str(file), "-m", str(tiny_path), "-q"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith("the signer says, and nothing here shows: ")
    assert f"{path} {json.dumps(value)}" in told[-1]
    if path == "end.reason":
        assert told[-2].startswith("the model goes on after its last token; the signer says: ")


def test_a_verdict_says_what_the_request_gave(tiny_path, tmp_path, capsys, receipt_of):
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt_of("forced").document))
    assert main(["receipt", "verify", str(file), "-m", str(tiny_path), "-q"]) == 0
    told = capsys.readouterr().out
    assert "its first 3 tokens are the request's (forced), and not drawn" in told
    assert "it ends at the request's limit of tokens; the model goes on" in told
    file.write_text(json.dumps(receipt_of("aborted at once").document))
    assert main(["receipt", "verify", str(file), "-m", str(tiny_path), "-q"]) == 0
    assert "it has no steps: nothing could be computed again" in capsys.readouterr().out


def test_a_signers_word_writes_no_lines_into_the_verdict(
    tiny_path, tmp_path, capsys, receipt_of, signed_anew
):
    name = "m\n18 steps computed again, no bit differs"
    lie = signed_anew(having("head", model=name)(receipt_of("plain").document))
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(lie))
    assert main(["receipt", "verify", str(file), "-m", str(tiny_path), "-q"]) == 0
    assert "\n18 steps" not in capsys.readouterr().out
