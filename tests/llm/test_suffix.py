"""A text that stands between a prompt and a suffix."""

import pytest

from cutaway import LLM, InputError
from cutaway.rerun import replay
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
def test_it_is_the_text_behind_both_as_the_model_lays_them_out(trained, suffix, more):
    ends = trained.tokenizer.middle.ends
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


def test_a_conversation_has_nothing_behind_it(tiny_path):
    with LLM(tiny_path, progress=False) as llm, pytest.raises(InputError, match=r"^suffix: "):
        llm.chat([{"role": "user", "content": "a"}], suffix="b")
