"""Answers scored after a prompt: the logits' own numbers, and tokens cut as lm-eval does."""

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, AsyncLLM, CutawayError, InputError
from cutaway.errors import TooLongError
from cutaway.methods.scoring import windows
from support.random_llama import write_tiny_llama

WORDS = st.text("ab ", min_size=1, max_size=12)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Of a context of 16 tokens, and with no begin token."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    none = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.bos_token_id": None}
    with LLM(write_tiny_llama(path, context=16, metadata=none), progress=False) as llm:
        yield llm


def brute(llm, prompt, answer):
    """In float64, of every row's logits."""
    logits = llm.logits([*prompt, *answer])[len(prompt) - 1 : -1].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    logprobs -= logits.max(1, keepdims=True)
    return logprobs[range(len(answer)), answer], [*map(int, logits.argmax(1))]


def check(llm, one):
    """By the logits, and to the bit by the scores of a prompt."""
    prompt, answer = one.prompt_token_ids, one.token_ids
    expected, best = brute(llm, prompt, answer)
    np.testing.assert_allclose(one.logprobs, expected, rtol=0, atol=1e-9)
    assert one.total == pytest.approx(expected.sum(), abs=1e-8)
    assert one.is_greedy == (best == [*answer])
    told = llm.generate([*prompt, *answer], max_tokens=0, prompt_logprobs=1).prompt_logprobs
    assert [row.logprob for row in told][len(prompt) - 1 :] == [*one.logprobs]
    assert [row.rank for row in told][len(prompt) - 1 :] == [*one.ranks]


@given(prompt=WORDS, answers=st.lists(WORDS, min_size=1, max_size=6))
@settings(deadline=None, max_examples=25)
def test_scores_are_those_of_the_logits_whatever_is_beside_them(tiny, prompt, answers):
    found = tiny.score(prompt, answers)
    for one, answer in zip(found, answers, strict=True):
        check(tiny, one)
        assert [one] == tiny.score(prompt, [answer])
    assert [*tiny.score_each((prompt, answer) for answer in answers)] == found
    ids = [list(one.token_ids) for one in found]
    assert tiny.score(list(found[0].prompt_token_ids), ids) == found


def test_forced_tokens_have_the_same_numbers(tiny):
    [one] = tiny.score("ab ab", [" a b ab"])
    written = tiny.generate(
        [*one.prompt_token_ids], forced=one.token_ids, max_tokens=len(one.token_ids), logprobs=1
    )
    assert [step.logprob for step in written.steps] == [*one.logprobs]


def test_a_greedy_text_is_greedy(tiny):
    text = tiny.generate("ab", temperature=0, max_tokens=6, ignore_eos=True)
    [one] = tiny.score([*text.prompt_token_ids], [text.token_ids])
    assert one.is_greedy
    assert one.ranks == (1,) * 6


def lm_eval_pair(encode, context, continuation):
    """``TemplateLM._encode_pair`` of lm-eval 0.4."""
    n_spaces = len(context) - len(context.rstrip())
    if n_spaces > 0:
        continuation = context[-n_spaces:] + continuation
        context = context[:-n_spaces]
    whole_enc, context_enc = encode(context + continuation), encode(context)
    return context_enc, whole_enc[len(context_enc) :]


@given(prompt=WORDS, answer=WORDS)
@settings(deadline=None, max_examples=50)
def test_a_text_is_cut_where_lm_eval_cuts_it(tiny, prompt, answer):
    [one] = tiny.score(prompt, [answer])
    context, continuation = lm_eval_pair(tiny.tokenize, prompt, answer)
    whole = tiny.tokenize(prompt + answer)
    if [*context, *continuation] == whole:
        assert (one.prompt_token_ids, one.token_ids) == (tuple(context), tuple(continuation))
    else:  # a token would span the two, and lm-eval would score another text
        assert one.prompt_token_ids == tuple(context)
    assert tiny.detokenize(one.prompt_token_ids + one.token_ids) == tiny.detokenize(whole)


def test_a_token_that_would_span_the_two_leaves_the_text_as_it_is(tiny):
    """ "ab" is one token, and "a" and "b" are."""
    [one] = tiny.score("a", ["b"])
    assert tiny.detokenize(one.prompt_token_ids) == tiny.detokenize(tiny.tokenize("a"))
    assert tiny.detokenize(one.token_ids) == "b"
    check(tiny, one)


def test_nothing_before_an_answer_is_the_begin_token(tiny, small):
    bos = tiny.tokenizer.bos_id
    for prompt in ("", [], "  "):
        [one] = tiny.score(prompt, ["ab"])
        assert one.prompt_token_ids == (bos,)
        check(tiny, one)
    with pytest.raises(InputError, match="prompt is empty and this model has no begin token"):
        small.score("", ["ab"])


def test_an_answer_may_fill_the_context_and_one_token_more(small):
    [one] = small.score([3] * 10, [[5] * 7])
    assert one.logprobs[:6] == small.score([3] * 10, [[5] * 6])[0].logprobs
    with pytest.raises(TooLongError, match=r"answers\[1\] have 10 and 8 tokens.* length is 16"):
        small.score([3] * 10, [[5], [5] * 8])
    with pytest.raises(TooLongError, match="at least"):
        small.score("a" * 10_000_000, ["b"])


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([""], r"answers\[0\] has no tokens"),
        ([[3], []], r"answers\[1\] has no tokens"),
        ([], "answers must be a list of texts"),
        ("ab", "answers must be a list of texts"),
        (None, "answers must be a list of texts"),
        ([3], r"answers\[0\] must be a string or a list of token ids"),
        ([[99999]], r"answers\[0\]: token id 99999 is not between"),
        ([[-1]], r"answers\[0\]: token id -1 is not between"),
        (["\ud800"], "surrogate"),
    ],
)
def test_answers_that_cannot_be_scored_are_refused_by_name(tiny, answers, says):
    with pytest.raises(InputError, match=says):
        tiny.score("ab", answers)


def test_other_bad_input_is_refused_by_name(tiny):
    with pytest.raises(InputError, match="prompt must be a string"):
        tiny.score(None, ["ab"])
    with pytest.raises(InputError, match="special must be true or false"):
        tiny.score("ab", ["ab"], special=1)
    with pytest.raises(InputError, match=r"pairs\[1\] must be a prompt and an answer"):
        [*tiny.score_each([("a", "b"), ("a",)])]
    with pytest.raises(InputError, match=r"pairs\[0\] must be a prompt and an answer"):
        [*tiny.score_each(["ab", "ba"])]  # each would be a letter after a letter
    with pytest.raises(InputError, match=r"pairs\[0\]: answer has no tokens"):
        [*tiny.score_each([("a", "")])]
    with pytest.raises(InputError, match="pairs must be prompts with an answer each"):
        [*tiny.score_each(None)]


def test_special_tokens_are_parsed_where_it_is_asked_for(tiny):
    plain, parsed = (tiny.score("ab", ["</s>"], special=special)[0] for special in (False, True))
    assert parsed.token_ids == (2,)
    assert len(plain.token_ids) > 1


# -- a text of any length ------------------------------------------------------------------------


def lm_eval_windows(token_list, prefix_token, max_seq_len, context_len):
    """``get_rolling_token_windows`` and ``make_disjoint_window`` of lm-eval 0.4."""
    pred_len, predicted = max_seq_len - context_len + 1, 0
    first = min(max_seq_len, len(token_list))
    pairs = [([prefix_token, *token_list[: first - 1]], token_list[:first])]
    predicted += first
    while predicted < len(token_list):
        count = min(len(token_list) - predicted, pred_len)
        end = predicted + count
        pairs.append((token_list[end - max_seq_len - 1 : end - 1], token_list[end - count : end]))
        predicted += count
    return [(tuple(a[: len(a) - (len(b) - 1)]), tuple(b)) for a, b in pairs]


@given(st.integers(2, 60), st.integers(1, 20), st.data())
def test_windows_are_those_of_lm_eval(length, size, data):
    before = data.draw(st.integers(1, size))
    ids = tuple(range(length))
    expected = lm_eval_windows([*ids[1:]], ids[0], size, before)
    assert [*windows(ids, size, before)] == expected


def test_a_text_that_fits_is_scored_at_once(tiny):
    one = tiny.likelihood("ab ab a ba b")
    assert (*one.prompt_token_ids, *one.token_ids) == tuple(tiny.tokenize("ab ab a ba b"))
    check(tiny, one)
    assert one.perplexity == pytest.approx(math.exp(-sum(one.logprobs) / len(one.logprobs)))


@pytest.mark.parametrize("before", [1, 3])
def test_a_long_text_is_scored_in_windows_each_by_the_logits(small, before):
    ids = tuple(3 + i * 7 % 60 for i in range(50))
    one = small.likelihood(ids, before=before)
    assert (one.prompt_token_ids, one.token_ids) == (ids[:1], ids[1:])
    parts = [small.score(cut.prompt, [cut.answer])[0] for cut in windows(ids, 16, before)]
    assert one.logprobs == tuple(p for part in parts for p in part.logprobs)
    assert small.likelihood(ids, window=5).logprobs != one.logprobs


def test_texts_that_cannot_be_scored_are_refused(tiny, small):
    for llm, text in ((tiny, ""), (small, "a"), (tiny, [5])):
        with pytest.raises(InputError, match="no token after its first"):
            llm.likelihood(text)
    for window in (0, 17, "a"):
        with pytest.raises(InputError, match="window"):
            small.likelihood("ab ab", window=window)
    with pytest.raises(InputError, match="before"):
        small.likelihood("ab ab", before=17)


# -- for tasks, and models of another kind -------------------------------------------------------


async def test_tasks_have_the_same_scores(tiny_path):
    async with AsyncLLM(tiny_path) as llm:
        some = await asyncio.gather(
            *[llm.score(prompt, ["b", " ab", "b a"]) for prompt in ("ab", "ba", "ab")],
            llm.likelihood("ab ba ab", window=4),
        )
        with pytest.raises(InputError, match=r"answers\[0\] has no tokens"):
            await llm.score("ab", [""])
        found = some
    with LLM(tiny_path, progress=False) as llm:
        assert found[0] == found[2] == llm.score("ab", ["b", " ab", "b a"])
        assert found[1] == llm.score("ba", ["b", " ab", "b a"])
        assert found[3] == llm.likelihood("ab ba ab", window=4)


def test_scores_of_a_closed_model_are_an_error(tiny_path):
    llm = LLM(tiny_path, progress=False)
    llm.close()
    with pytest.raises(CutawayError, match="closed"):
        llm.score("ab", ["b"])


def test_a_model_that_sees_the_whole_text_says_what_else_it_does(tiny_diffusion_path):
    with LLM(tiny_diffusion_path, progress=False) as llm, pytest.raises(InputError, match="fill"):
        llm.score("ab", ["b"])
