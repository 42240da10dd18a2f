"""Weight, attribution and the effect of ablating a word are three things, on SmolLM2."""

import pytest

from cutaway import LLM
from cutaway.features.inside.ablate import ablate
from cutaway.sampling import logprob
from cutaway.trace import Trace

pytestmark = pytest.mark.model
PROMPT = "The lighthouse keeper wrote in his log that the storm had passed, and the sea was"


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, backend="cpu", context=512)


@pytest.fixture(scope="module")
def trace(llm, tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2") / "run.jsonl"
    llm.generate(PROMPT, seed=7, max_tokens=4, trace=path)
    return Trace.read(path)


def test_the_token_with_the_most_attention_has_no_effect(llm, trace):
    done = ablate(llm, trace, 0, by="word")
    name = {part.start: llm.detokenize(part.token_ids) for part in done.parts}
    assert llm.detokenize([done.token]) == " calm"
    most = {
        figure: max(done.parts, key=lambda part, figure=figure: abs(getattr(part, figure)))
        for figure in ("weight", "attribution", "effect")
    }
    assert [name[part.start] for part in most.values()] == ["The", " sea", " sea"]
    assert abs(most["weight"].effect) < 0.1 < 8 < most["effect"].effect
    assert most["effect"].drawn != done.drawn == most["weight"].drawn


@pytest.mark.parametrize("how", ["delete", "other"])
def test_each_is_the_text_without_it_alone(smollm2_path, llm, trace, how):
    alone = LLM(smollm2_path, backend="cpu", context=512, prefix_cache=False, threads=1)
    done = ablate(llm, trace, 3, by="word", how=how)
    for part in done.parts:
        text = [*done.token_ids[: part.start], *part.instead, *done.token_ids[part.stop :]]
        row = alone.logits(text, len(text) - 1)[0]
        assert (part.logprob, part.rival_logprob) == (
            logprob(row, done.token), logprob(row, done.rival)
        )  # fmt: skip
