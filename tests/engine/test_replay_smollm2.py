"""On SmolLM2: a text that was cut goes on with the same bits, beside other texts and alone."""

import pytest

from cutaway import LLM
from cutaway.errors import ReplayError

pytestmark = pytest.mark.model
PROMPT = "The keeper wrote a line every evening, and one day"
ASKED = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0, "top_p": 0.9, "seed": 7}
WAYS = {
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    "n-gram": {"speculate": "ngram"},
    "schema": {"json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
    "scores": {"logprobs": 3, "prompt_logprobs": 2},
}


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2", progress=False) as llm:
        yield llm


@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_was_cut_has_the_bits_of_the_whole(llm, way):
    asked = ASKED | WAYS[way]
    if way == "schema":
        asked |= {"ignore_eos": False}
    whole = llm.generate(PROMPT, **asked)
    with llm.stream("Another text beside it", max_tokens=200, seed=1) as beside:
        next(beside)
        for cut in (1, 17, len(whole.token_ids) - 1, len(whole.token_ids)):
            again = llm.generate(PROMPT, **asked, replay=whole.token_ids[:cut])
            assert (again.text, again.fingerprint) == (whole.text, whole.fingerprint)
            assert (again.logprobs, again.finish_reason) == (whole.logprobs, whole.finish_reason)


def test_another_seed_is_found_where_its_text_parts(llm):
    whole = llm.generate(PROMPT, **ASKED)
    other = llm.generate(PROMPT, **ASKED | {"seed": 8})
    pairs = zip(whole.token_ids, other.token_ids, strict=True)
    at = next(i for i, (one, two) in enumerate(pairs) if one != two)
    with pytest.raises(ReplayError, match=f"replay: token {at} is {other.token_ids[at]} "):
        llm.generate(PROMPT, **ASKED | {"seed": 8}, replay=whole.token_ids)
