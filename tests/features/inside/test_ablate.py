"""A step without a part of its text: what the text without it says, alone, bit for bit."""

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.engine.interventions import bind, parse_intervention
from cutaway.features.inside.ablate import BY, ablate, text_parts
from cutaway.features.inside.look import inside
from cutaway.features.inside.steps import unrecorded_trace
from cutaway.methods.rows import GivenText
from cutaway.sampling import logprob
from cutaway.sampling.luck import gumbel
from cutaway.sampling.observe import row_hash
from cutaway.trace import Trace
from support.block_integrity import check_blocks
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
WINDOWS = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 2}
MODELS = {
    "Q8_0": {},
    "windows": {"metadata": WINDOWS},
    "codes": {"metadata": WINDOWS},
}
KV = {"codes": "q8_0"}
PROMPT = np.random.default_rng(0).integers(3, 260, 70).tolist()
STEP = 9
HEAT = 0.8
OPTIONS = {"max_tokens": 12, "temperature": HEAT, "seed": 5, "ignore_eos": True}
PURE = {"top_p": 1.0, "top_k": 0}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablate")
    return {
        name: write_tiny_llama(folder / f"{name}.gguf", **SHAPE, format="Q8_0", context=256, **more)
        for name, more in MODELS.items()
    }


@pytest.fixture(scope="module")
def traces(paths, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("traces"), {}
    for name, path in paths.items():
        file = folder / f"{name}.jsonl"
        LLM(path, kv=KV.get(name, "f16")).generate(PROMPT, **OPTIONS, **PURE, trace=file)
        made[name] = Trace.read(file)
    return made


@pytest.fixture
def opened(paths):
    return lambda name, **how: LLM(paths[name], kv=KV.get(name, "f16"), **how)


def text_of(done, part):
    return [*done.token_ids[: part.start], *part.instead, *done.token_ids[part.stop :]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["delete", "other"])
def test_each_is_the_text_without_it_alone(opened, traces, name, how):
    """Equal bits, though they ran in batches and on what was cached; and the luck is the same."""
    trace, alone = traces[name], opened(name, prefix_cache=False, threads=1)
    done = ablate(opened(name, threads=2), trace, STEP, how=how)
    assert [len(done.parts), done.total] == [80 - 1 - (how == "other")] * 2
    step, ids = trace.steps[STEP], np.arange(trace.head.vocab_size)
    luck = gumbel(trace.head.seed, step.position, ids)
    for part in done.parts:
        text = text_of(done, part)
        assert len(text) == len(done.token_ids) - (how == "delete")
        row = alone.logits(text, len(text) - 1)[0]
        assert part.logprob == logprob(row, done.token)
        assert part.rival_logprob == logprob(row, done.rival)
        assert part.drawn == np.argmax(row.astype(np.float64) / HEAT + luck)
        assert part.effect == step.logprob - part.logprob
        lead = done.logprob - done.rival_logprob
        assert part.margin == pytest.approx(lead - (part.logprob - part.rival_logprob))


def test_the_last_rows_of_texts_are_their_logits(opened):
    """Of texts that begin alike or not; stopping early leaves no sequence in the engine."""
    llm, texts = opened("Q8_0"), [PROMPT[:i] + PROMPT[i + 1 :] for i in range(70)] + [[7], PROMPT]
    rows = dict(llm.last_rows(GivenText(PROMPT), map(GivenText, texts)))
    assert [*range(72)] == sorted(rows)
    alone = opened("Q8_0", prefix_cache=False)
    for index, row in rows.items():
        expected = alone.logits(texts[index], len(texts[index]) - 1)[0]
        assert row.tobytes() == expected.tobytes()
    begun = llm.last_rows(GivenText(PROMPT), map(GivenText, texts))
    next(begun)
    begun.close()
    assert llm.engine.is_idle
    check_blocks(llm.engine.blocks, [])


@pytest.mark.parametrize("kv_tokens", [96, 160, 256])
def test_little_memory_changes_nothing(opened, traces, kv_tokens):
    tight = opened("windows", context=96, kv_tokens=kv_tokens)
    expected = ablate(opened("windows"), traces["windows"], STEP, by="word")
    assert ablate(tight, traces["windows"], STEP, by="word") == expected
    check_blocks(tight.engine.blocks, [])


def test_texts_that_are_written_meanwhile_are_not_changed(opened, traces):
    llm = opened("Q8_0")
    alone = llm.generate(PROMPT[:20], **OPTIONS).fingerprint
    stream = llm.stream(PROMPT[:20], **OPTIONS)
    next(stream)
    ablate(llm, traces["Q8_0"], STEP)
    assert stream.finish().fingerprint == alone


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_what_is_stopped_says_what_is_done(opened, traces, turns):
    """The largest attributions first, each as in the whole."""
    llm, trace, seen = opened("Q8_0"), traces["Q8_0"], []
    whole = ablate(llm, trace, STEP)
    sizes = np.abs(inside(llm, trace, STEP).logit_attribution().positions).sum(axis=(0, 1))
    order = np.argsort(-sizes, kind="stable").tolist()
    assert [part.start for part in whole.parts] == order
    left = iter(range(turns))
    some = ablate(
        llm, trace, STEP, stopped=lambda: next(left, None) is None,
        progress=lambda *report: seen.append(report),
    )  # fmt: skip
    assert some.total == whole.total > len(some.parts) == len(seen) - 1
    assert bool(some.parts) == bool(turns)
    assert some.parts == whole.parts[: len(some.parts)]
    assert seen[-1] == ("ablate", len(some.parts), whole.total)
    assert ablate(llm, trace, STEP, budget_s=1e-9).parts == ()
    assert ablate(llm, trace, STEP, budget_s=1000) == whole


def test_parts_of_several_tokens(opened, traces):
    llm, trace = opened("Q8_0"), traces["Q8_0"]
    done = ablate(llm, trace, STEP, by="word")
    look = inside(llm, trace, STEP)
    attribution, weight = (
        look.logit_attribution().positions.sum(axis=(0, 1)),
        look.weights.mean(axis=(0, 1)),
    )
    assert 1 < done.total < len(done.token_ids)
    at = 0
    for part in sorted(done.parts, key=lambda part: part.start):
        assert part.start == at
        at = part.stop
        assert part.token_ids == done.token_ids[part.start : part.stop]
        assert part.attribution == pytest.approx(attribution[part.start : part.stop].sum())
        assert part.weight == pytest.approx(weight[part.start : part.stop].sum())
    assert at == len(done.token_ids)


def test_other_tokens_are_the_likeliest_there(opened, traces):
    llm, trace = opened("Q8_0"), traces["Q8_0"]
    done = ablate(llm, trace, STEP, how="other")
    rows = llm.logits(done.token_ids)
    for part in done.parts:
        row = rows[part.start - 1].copy()
        row[done.token_ids[part.start]] = -np.inf
        assert part.instead == (np.argmax(row),)
    assert min(part.start for part in done.parts) == 1
    token = done.token_ids[3]
    named = ablate(llm, trace, STEP, how="other", other=token)
    assert {part.instead for part in named.parts} == {(token,)}
    stay = {i for i, id_ in enumerate(done.token_ids) if id_ == token} | {0}
    assert {part.start for part in named.parts} == set(range(len(done.token_ids))) - stay


def test_another_token_where_none_moves_is_a_branch_of_the_prompt(opened, traces):
    """Positions stay, so the loop itself draws with the same luck."""
    llm, trace = opened("Q8_0"), traces["Q8_0"]
    done = ablate(llm, trace, 0, how="other")
    for part in done.parts:
        again = llm.generate(text_of(done, part), **OPTIONS | PURE | {"max_tokens": 1})
        assert again.token_ids[0] == part.drawn


@pytest.mark.parametrize("name", MODELS)
def test_knock_out_is_the_intervention_of_that_name(opened, traces, name):
    """All stays where it is, so the loop itself draws with the same luck."""
    llm, trace = opened(name), traces[name]
    done = ablate(llm, trace, 0, how="knock_out", by="word")
    assert {part.start for part in done.parts} == {
        part.start for part in ablate(llm, trace, 0, by="word").parts
    } - {len(PROMPT) - 1}
    interventions = [f"knock_out {part.start}-{part.stop - 1}" for part in done.parts]
    made = (bind([parse_intervention(text)], llm.graph, len(PROMPT)) for text in interventions)
    rows = dict(llm.last_rows(GivenText(PROMPT), (GivenText(PROMPT, one) for one in made)))
    for index, (part, change) in enumerate(zip(done.parts, interventions, strict=True)):
        one = OPTIONS | PURE | {"max_tokens": 1, "interventions": [change]}
        [step] = opened(name, prefix_cache=False).generate(PROMPT, **one).steps
        assert row_hash(rows[index]) == step.logits_hash
        assert part.drawn == step.token_id
        assert part.logprob == logprob(rows[index], done.token)
        assert part.instead == part.token_ids


@pytest.mark.parametrize(
    "change", ["L0.mlp x 0", "L1.H2 x 0.5 at 3-60 from 2", "L1 x 2 from 0", "knock_out 5-9"]
)
@pytest.mark.parametrize("how", ["delete", "knock_out", "other"])
def test_a_changed_run_stays_changed(opened, tmp_path, change, how):
    llm = opened("Q8_0")
    llm.generate(PROMPT, **OPTIONS, **PURE, interventions=[change], trace=tmp_path / "run.jsonl")
    trace = Trace.read(tmp_path / "run.jsonl")
    if how == "delete" and change != "L0.mlp x 0":
        with pytest.raises(InputError, match="which delete would move"):
            ablate(llm, trace, STEP, how=how)
        return
    done = ablate(llm, trace, STEP, by="word", how=how)
    alone = opened("Q8_0", prefix_cache=False)
    for part in done.parts:
        hidden = [f"knock_out {part.start}-{part.stop - 1}"] if how == "knock_out" else []
        made = bind(map(parse_intervention, [change, *hidden]), llm.graph, len(PROMPT))
        text = text_of(done, part)
        row = alone.logits(text, len(text) - 1, made)[0]
        assert part.logprob == logprob(row, done.token)
        assert part.drawn is not None


def test_only_the_last_token_attends_to_itself(opened, traces):
    done = ablate(opened("Q8_0"), traces["Q8_0"], STEP, how="knock_out")
    assert {part.start for part in done.parts} == set(range(len(done.token_ids) - 1))


def test_penalties_and_grammars_see_the_text_as_it_was(opened, tmp_path):
    llm = opened("Q8_0")
    options = {"max_tokens": 8, "seed": 5, "regex": "[ab]{4,}", "repetition_penalty": 1.5}
    llm.generate("abab ab", trace=tmp_path / "run.jsonl", **options)
    trace = Trace.read(tmp_path / "run.jsonl")
    for part in ablate(llm, trace, 3).parts:
        assert llm.tokenizer.token_bytes(part.drawn).strip(b"ab") == b""


def test_draws_that_cannot_be_repeated_are_left_out(opened, tmp_path):
    llm = opened("Q8_0")
    llm.generate("ab", trace=tmp_path / "run.jsonl", processors=[lambda _, row: row], max_tokens=2)
    parts = ablate(llm, Trace.read(tmp_path / "run.jsonl"), 1).parts
    assert {part.drawn for part in parts} == {None}


def test_a_text_on_no_record(opened, traces):
    """Nobody knows what was drawn, and all the rest is the same."""
    llm, trace = opened("Q8_0"), traces["Q8_0"]
    text = unrecorded_trace(llm, PROMPT, trace.output_token_ids, STEP)
    done, known = ablate(llm, text, STEP, by="word"), ablate(llm, trace, STEP, by="word")
    assert done.drawn is None
    assert done.parts == tuple(replace(part, drawn=None) for part in known.parts)
    assert "drawn_name" not in done.to_dict(str)


def test_the_reference_says_that_it_is_not_what_ran(opened, traces):
    done = ablate(opened("Q8_0", backend="reference"), traces["Q8_0"], 1, by="word")
    assert not done.is_as_run
    assert {part.drawn for part in done.parts} == {None}
    assert done.to_dict(str)["as_run"] is False


def test_what_cannot_be_asked(opened, traces, tmp_path):
    llm, trace = opened("Q8_0"), traces["Q8_0"]
    for wrong, why in (
        ({"by": "letter"}, "by must be one of token, word, line, sentence"),
        ({"how": "hide"}, "how must be one of delete, knock_out, other"),
        ({"other": 7}, "how must be other, too"),
        ({"how": "other", "other": 9999}, "other must be between 0 and 263"),
        ({"how": "other", "other": "no such token"}, "^other: 'no such token' is not one token"),
        ({"rival": 9999}, "rival must be between 0 and 263"),
        ({"budget_s": 0}, "budget_s must be a number of seconds above 0"),
        ({"budget_s": float("nan")}, "budget_s"),
        ({"budget_s": "1"}, "budget_s"),
    ):
        with pytest.raises(InputError, match=why):
            ablate(llm, trace, STEP, **wrong)
    for step in (-1, 12, "3"):
        with pytest.raises(InputError, match="step must be"):
            ablate(llm, trace, step)
    with pytest.raises(InputError, match="no steps"):
        ablate(llm, replace(trace, steps=(), end=None), 0)
    llm.generate([7], trace=tmp_path / "run.jsonl", max_tokens=1, ignore_eos=True)
    short = Trace.read(tmp_path / "run.jsonl")
    with pytest.raises(InputError, match="without it nothing is left"):
        ablate(llm, short, 0)
    with pytest.raises(InputError, match="the first token stays"):
        ablate(llm, short, 0, how="other")
    with pytest.raises(InputError, match="only the last token is left"):
        ablate(llm, short, 0, how="knock_out")


# -- a text in parts: every token is in one, and goes where its first byte is ----------------------


def parts(text, by):
    """Of a text with a token for each byte."""
    data = text.encode()
    pieces = [bytes([byte]) for byte in data]
    return [data[part.start : part.stop].decode() for part in text_parts(pieces, by)]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("word", ["The", " storm's", "  over,", " so", " "]),
        ("word", ["a", "\n", "b", " \n\n", "  c", "\t\t"]),
        ("word", ["Füße", " naïve\u0301", "\u00a0nach", "\u3000oben"]),
        ("word", ["猫", "は", "、", "GPU", "を", "見", "た"]),
        ("line", ["first\n", "\n", "second \r\n", "third"]),
        ("sentence", ["It is.", " Is it?!", ' "No…"', " 3.5 is one"]),
        ("sentence", ["没有。", "「是」。", " Oui !", " fin"]),
        ("sentence", ["A heading", "\n\nThen text.", "\n"]),
    ],
)
def test_what_a_part_is(by, expected):
    assert parts("".join(expected), by) == expected


@given(
    text=st.text(st.sampled_from("ab .!?\n\r«é。猫\u3000"), max_size=40),
    by=st.sampled_from(BY[1:]),
)
def test_parts_are_the_text(text, by):
    """None is cut within a character, and none is empty."""
    found = parts(text, by)
    assert "".join(found) == text
    assert all(found)


@given(
    pieces=st.lists(st.binary(max_size=6) | st.sampled_from(["é".encode(), b" a", b".\n"])),
    by=st.sampled_from(BY),
)
def test_a_token_goes_where_its_first_byte_is(pieces, by):
    """Whatever bytes there are, and however they are cut."""
    found = text_parts(pieces, by)
    assert [i for part in found for i in part] == [*range(len(pieces))]
    home = {i: n for n, part in enumerate(found) for i in part}
    singles = [p[n : n + 1] for p in pieces for n in range(len(p) or 1)]  # b"" stays one
    firsts = accumulate((len(p) or 1 for p in pieces), initial=0)
    of_byte = {i: n for n, part in enumerate(text_parts(singles, by)) for i in part}
    if by == "token":
        assert len(found) == len(pieces)
        return
    at = [of_byte[first] for first, _ in zip(firsts, pieces, strict=False)]
    for (i, a), (j, b) in pairwise(enumerate(at)):
        assert (home[i] == home[j]) == (a == b)


def test_a_token_without_bytes_divides_the_text():
    assert text_parts([b"a", b"", b"", b"b", b"c"], "sentence") == [
        range(1), range(1, 2), range(2, 3), range(3, 5)
    ]  # fmt: skip
