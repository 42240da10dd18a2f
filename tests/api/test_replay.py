"""The keyword ``replay``, with and without tasks, and in a trace."""

import pytest

from cutaway import LLM, AsyncLLM
from cutaway.errors import InputError, ReplayError
from cutaway.trace import Trace

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
    with pytest.raises(ReplayError, match="replay: token 0 is "):
        llm.generate("ab ba", **ASKED, replay=[first ^ 1, *rest])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"replay": [1], "n": 2}, "replay is of one text: leave out n"),
        ({"replay": "ab"}, "replay must be token ids"),
        ({"replay": [1], "forced": [2, 3]}, "replay: token 0 is 1, and forced has 2 there"),
    ],
)
def test_what_cannot_be_is_refused(llm, more, sentence):
    with pytest.raises(InputError, match=sentence):
        llm.generate("ab ba", **ASKED, **more)
