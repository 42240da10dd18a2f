"""A text between a prompt and a suffix."""

import json
import re
from codecs import getincrementaldecoder
from collections import Counter

import numpy as np
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.cli.main import main
from cutaway.errors import ReplayError
from cutaway.methods import infill
from cutaway.rerun import replay
from cutaway.sampling import derive_seed, text_luck
from cutaway.trace import Trace
from support.random_llama import write_tiny_llama

PRE, SUF, MID = 250, 251, 252
NAMED = {
    f"tokenizer.ggml.fim_{name}_token_id": token_id
    for name, token_id in (("pre", PRE), ("suf", SUF), ("mid", MID), ("sep", 249))
}
OPTIONS = {"max_tokens": 20, "seed": 3, "temperature": 1.0, "top_p": 1.0}


# -- with the model's own tokens -----------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = write_tiny_llama(tmp_path_factory.mktemp("middle") / "tiny.gguf", metadata=NAMED)
    with LLM(path, progress=False) as llm:
        yield llm


def laid_out(llm, prompt, suffix):
    bos, *before = llm.tokenize(prompt)
    return [bos, PRE, *before, SUF, *llm.tokenizer.encode(suffix, goes_on=True), MID]


@pytest.mark.parametrize("suffix", [" ba", "b", "ab ab ab"])
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"regex": "[ab]{4}"}, {"speculate": "ngram"}])
def test_it_is_the_text_after_prompt_and_suffix_as_the_model_lays_them_out(trained, suffix, more):
    ends = trained.tokenizer.fim.ends
    done = trained.generate("ab", suffix=suffix, **OPTIONS, **more)
    same = trained.generate(laid_out(trained, "ab", suffix), stop_token_ids=ends, **OPTIONS, **more)
    for one, other in zip(*(d if more == {"n": 2} else [d] for d in (done, same)), strict=True):
        assert one.token_ids == other.token_ids
        assert one.fingerprint == other.fingerprint
        assert one.between.method == "tokens"
        assert (other.between, one.params["suffix"]) == (None, suffix)


def test_ids_and_streams_are_laid_out_too(trained):
    text = trained.generate("ab", suffix="b", **OPTIONS)
    assert trained.generate(trained.tokenize("ab"), suffix="b", **OPTIONS).text == text.text
    stream = trained.stream("ab", suffix="b", **OPTIONS)
    assert "".join(step.text for step in stream) == text.text
    assert stream.completion().between == text.between


def test_it_ends_at_the_end_of_the_middle(trained):
    ends = {249: 100}
    done = trained.generate("ab", suffix="b", logit_bias=ends, **OPTIONS)
    assert (done.finish_reason, done.matched, done.text) == ("stop_token", 249, "")
    on = trained.generate("ab", suffix="b", logit_bias=ends, ignore_eos=True, **OPTIONS)
    assert on.token_ids == (249,) * 20


def test_a_trace_of_it_replays(trained, tmp_path):
    done = trained.generate("ab", suffix="b", trace=tmp_path / "run.jsonl", **OPTIONS)
    trace = Trace.parse((tmp_path / "run.jsonl").read_bytes())
    assert trace.head.prompt_token_ids == done.prompt_token_ids
    assert replay(trained, trace).same


@pytest.mark.parametrize("suffix", ["", None])
def test_no_suffix_is_none(trained, suffix):
    done = trained.generate("ab", suffix=suffix, **OPTIONS)
    assert done.token_ids == trained.generate("ab", **OPTIONS).token_ids
    assert done.between is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"suffix": 7}, r"^suffix must be a string, not 7"),
        ({"suffix": "b", "heal": True}, r"^heal: .* leave one of them out"),
        ({"suffix": "b" * 200}, r"200|context"),
    ],
)
def test_what_cannot_be_is_refused_by_name(trained, more, said):
    with pytest.raises(InputError, match=said):
        trained.generate("ab", **more)


def test_a_conversation_has_no_suffix(tiny_path):
    with LLM(tiny_path, progress=False) as llm, pytest.raises(InputError, match=r"^suffix: "):
        llm.chat([{"role": "user", "content": "a"}], suffix="b")


# -- by Bayes' rule ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = write_tiny_llama(tmp_path_factory.mktemp("plain") / "tiny.gguf", context=96)
    with LLM(path, progress=False) as llm:
        yield llm


ANY = {"temperature": 1.0, "top_p": 1.0}
FEW = {"logit_bias": dict.fromkeys([259, 260, 261, 262], 30.0)}  # "▁", a, b and ab


def log_softmax(rows):
    wide = rows.astype(np.float64)
    return (
        wide
        - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1))[:, None]
        - wide.max(1, keepdims=True)
    )


def suffix_logprob(llm, before, behind):
    rows = log_softmax(llm.logits([*before, *behind]))
    return float(sum(rows[len(before) - 1 + i, token] for i, token in enumerate(behind)))


def by_definition(llm, prompt, suffix, seed, max_tokens, **more):
    """(tokens, share of each) of every beginning of every continuation, and which is taken."""
    behind = llm.tokenizer.encode(suffix, goes_on=True)
    counts = {}
    for i in range(infill.NUM_CONTINUATIONS):
        options = {"max_tokens": max_tokens + 1, "seed": derive_seed(seed, i), **more}
        done = llm.generate(prompt, **options)
        for length in range(len(done.token_ids)):
            ids = done.token_ids[:length]
            data = b"".join(map(llm.tokenizer.token_bytes, ids))
            if whole_characters(data):
                counts[ids] = counts.get(ids, 0) + 1
    start = llm.tokenize(prompt)
    logs = [np.log(n) + suffix_logprob(llm, [*start, *ids], behind) for ids, n in counts.items()]
    return [*counts], np.array(logs)


def whole_characters(data):
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return not decoder.getstate()[0]


@pytest.mark.each_choice
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("suffix", [" ba", "b", "ab ab"])
@pytest.mark.parametrize("more", [ANY, ANY | FEW])
def test_one_of_all_beginnings_is_taken_in_proportion_to_its_weight(plain, seed, suffix, more):
    texts, logs = by_definition(plain, "ab", suffix, seed, 3, **more)
    done = plain.generate("ab", suffix=suffix, seed=seed, max_tokens=3, **more)
    taken = int(np.argmax(logs + text_luck(seed, len(logs))))
    assert len(texts) <= infill.NUM_WEIGHED
    assert done.token_ids == texts[taken]
    shares = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    assert done.between.share == pytest.approx(shares[taken], rel=1e-4)
    assert done.between.logprob == pytest.approx(
        suffix_logprob(
            plain,
            [*plain.tokenize("ab"), *texts[taken]],
            plain.tokenizer.encode(suffix, goes_on=True),
        ),
        rel=1e-4,
    )
    assert done.between[:3] == ("bayes", infill.NUM_CONTINUATIONS, len(texts))
    assert done.seed == seed
    assert done.text == plain.detokenize([*plain.tokenize("ab"), *texts[taken]])[2:]
    assert (done.finish_reason, done.matched) == ("stop_string", suffix)
    assert done.usage.completion_tokens == len(done.token_ids) == len(done.steps)
    assert done.params["suffix"] == suffix
    assert done.params["n"] == 1
    assert done.timing[1:] == (None, None, None)


def test_over_seeds_it_is_the_distribution_of_all_texts_there_are(plain):
    """Of no token or one of four, both lengths alike beforehand."""
    ids, behind = [*FEW["logit_bias"]], plain.tokenizer.encode("b ab ba b", goes_on=True)
    start = plain.tokenize("ab")
    row = log_softmax(plain.logits(start)[-1:, ids])[0]
    prior = {(): 1.0} | {(v,): float(np.exp(p)) for v, p in zip(ids, row, strict=True)}
    weights = {
        text: p * np.exp(suffix_logprob(plain, [*start, *text], behind))
        for text, p in prior.items()
    }
    more, times = {"max_tokens": 1, **ANY, **FEW}, 300
    each = [plain.generate("ab", suffix="b ab ba b", seed=i, **more) for i in range(times)]
    found = Counter(done.token_ids for done in each)

    def distance(expected):
        total = sum(expected.values())
        return sum(abs(found[t] / times - p / total) for t, p in expected.items()) / 2

    assert found.keys() <= prior.keys()
    assert distance(weights) < 0.08 < distance(prior)


def test_the_most_fitting_beginning_of_the_one_text_there_is_at_temperature_0(plain):
    text = plain.generate("ab", max_tokens=6, temperature=0, ignore_eos=True).token_ids
    behind = plain.tokenizer.encode("b ab", goes_on=True)
    whole = [
        i
        for i in range(7)
        if whole_characters(b"".join(map(plain.tokenizer.token_bytes, text[:i])))
    ]
    logs = {i: suffix_logprob(plain, [*plain.tokenize("ab"), *text[:i]], behind) for i in whole}
    done = plain.generate("ab", suffix="b ab", max_tokens=6, temperature=0, ignore_eos=True)
    assert done.token_ids == text[: max(logs, key=logs.get)]
    assert done.between.drawn == 1


def test_each_sample_is_one_of_its_own_seed(plain):
    options = {"suffix": " ba", "max_tokens": 5, **ANY}
    each = plain.generate("ab", seed=7, n=3, **options)
    for i, done in enumerate(each):
        alone = plain.generate("ab", seed=derive_seed(7, i), **options)
        assert (done.token_ids, done.fingerprint) == (alone.token_ids, alone.fingerprint)
        assert done.between == alone.between
    assert len({done.between.logprob for done in each}) > 1
    again = plain.generate(["ab", "b"], seed=7, n=3, **options)
    assert [d.token_ids for d in again[0]] == [d.token_ids for d in each]
    assert plain.engine.is_idle


def test_more_beginnings_than_are_weighed_leave_those_that_promise_most(plain, monkeypatch):
    texts, _ = by_definition(plain, "ab", " ba", 1, 8, **ANY)
    first = plain.tokenizer.encode(" ba", goes_on=True)[:1]
    start = plain.tokenize("ab")
    promise = {t: suffix_logprob(plain, [*start, *t], first) for t in texts}
    monkeypatch.setattr(infill, "NUM_WEIGHED", 5)
    done = plain.generate("ab", suffix=" ba", seed=1, max_tokens=8, **ANY)
    assert len(texts) > 5 == done.between.candidates
    assert done.token_ids in sorted(promise, key=promise.get)[-5:]


@pytest.mark.parametrize("speculate", ["off", "ngram", "jacobi"])
@pytest.mark.parametrize("more", [{"stop": "aa"}, {"min_tokens": 3}, {"kv_cache": False}])
def test_neither_stops_nor_ways_of_computing_break_it(plain, speculate, more):
    options = {"suffix": " ba", "max_tokens": 6, "seed": 2, **ANY, **FEW, **more}
    done = plain.generate("ab", speculate=speculate, **options)
    assert "aa" not in done.text or "stop" not in more
    assert len(done.token_ids) >= more.get("min_tokens", 0)
    if "kv_cache" in more:
        del options["kv_cache"]
    alone = plain.generate("ab", **options)
    assert (done.token_ids, done.text, done.fingerprint) == (
        alone.token_ids, alone.text, alone.fingerprint,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"trace": "x.jsonl"}, "^trace: "),
        ({"regex": "[ab]+"}, "^regex: "),
        ({"forced": [5]}, "^forced: "),
        ({"check": "arithmetic"}, "^check: "),
        ({"max_tokens": 0, "prompt_logprobs": 1}, "^max_tokens: "),
        ({"suffix": "b" * 300}, "prompt and suffix have|suffix and prompt have|prompt has"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(plain, more, said):
    with pytest.raises(InputError, match=said):
        plain.generate("ab", **{"suffix": "b", **more})
    assert plain.engine.is_idle


def test_it_is_not_streamed(plain):
    with pytest.raises(InputError, match=r"^suffix: .* ask for it whole"):
        plain.stream("ab", suffix="b")
    [(_, refused)] = plain.generate_each(["ab"], suffix="b")
    assert re.match("suffix: .* ask for it whole", str(refused))


def test_its_streams_have_ended(plain):
    options = {"suffix": " ba", "seed": 3, "max_tokens": 4, "n": 2, **ANY}
    expected = plain.generate("ab", **options)
    streams = plain.streams("ab", **options)
    assert plain.engine.is_idle
    assert [one.completion().token_ids for one in streams] == [one.token_ids for one in expected]


async def test_an_event_loop_gets_the_same(tiny, tiny_path):
    options = {"suffix": " ba", "seed": 3, "max_tokens": 4}
    expected = tiny.generate("ab", **options)
    async with AsyncLLM(LLM(tiny_path, progress=False)) as llm:
        done = await llm.generate("ab", **options)
    assert (done.token_ids, done.between) == (expected.token_ids, expected.between)


def test_the_command_prints_the_text_and_what_it_was_chosen_of(tiny, tiny_path, capsys):
    ask = ["generate", "-m", str(tiny_path), "ab", "--suffix", " ba", "--seed", "3"]
    ask += ["--max-tokens", "4"]
    expected = tiny.generate("ab", suffix=" ba", seed=3, max_tokens=4)
    assert main([*ask, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == expected.text
    assert told["between"] == expected.between._asdict()
    assert main(ask) == 0
    out, err = capsys.readouterr()
    assert out.rstrip("\n") == expected.text.rstrip("\n")
    assert "from 16 continuations" in err


# -- replay ----------------------------------------------------------------------------------------

# The keyword ``replay``, with and without tasks, and in a trace.


ASKED = {"max_tokens": 25, "ignore_eos": True, "seed": 3, "temperature": 1.1}


@pytest.fixture(scope="module")
def llm(tiny_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def whole(llm):
    return llm.generate("ab ba", **ASKED)


def test_a_stream_tells_all_steps_again(llm, whole):
    with llm.stream("ab ba", **ASKED, replay=whole.token_ids[:20]) as stream:
        text = "".join(step.text for step in stream)
    assert text == whole.text
    assert stream.completion().fingerprint == whole.fingerprint


async def test_tasks_have_the_same(tiny_path, whole):
    async with AsyncLLM(LLM(tiny_path, threads=1, progress=False)) as llm:
        done = await llm.generate("ab ba", **ASKED, replay=whole.token_ids[:20])
    assert done.fingerprint == whole.fingerprint


def test_a_trace_has_the_request_and_not_the_replay(llm, whole, tmp_path):
    for name, more in (("whole", {}), ("again", {"replay": whole.token_ids[:20]})):
        llm.generate("ab ba", **ASKED, **more, trace=tmp_path / name)
    first, second = (Trace.read(tmp_path / name) for name in ("whole", "again"))
    assert first.head == second.head
    assert first.output_token_ids == second.output_token_ids
    assert [s.fingerprint for s in first.steps] == [s.fingerprint for s in second.steps]


def test_what_differs_is_an_error_of_its_own(llm, whole):
    first, *rest = whole.token_ids
    with pytest.raises(ReplayError, match="replay: token 1 is "):
        llm.generate("ab ba", **ASKED, replay=[first ^ 1, *rest])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"replay": [1], "n": 2}, "replay is of one text: leave out n"),
        ({"replay": "ab"}, "replay must be token ids"),
        ({"replay": [1], "forced": [2, 3]}, r"replay\[0\] is 1, and forced has 2 there"),
    ],
)
def test_what_cannot_be_is_refused(llm, more, sentence):
    with pytest.raises(InputError, match=sentence):
        llm.generate("ab ba", **ASKED, **more)
