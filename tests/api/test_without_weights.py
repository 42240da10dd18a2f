"""A model opened without its weights says all that its file says, and computes nothing."""

import pickle
import threading

import numpy as np
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.compute.backends import Computer
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.requests.generation import Generation
from support.piped import Piped

SETUPS = [
    Setup(), Setup(kv="q8_0"), Setup(context=40, kv_tokens=100), Setup(backend="reference"),
    Setup(quantize="q8_0"),
]  # fmt: skip
SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}


@pytest.mark.parametrize("setup", SETUPS, ids=repr)
def test_it_says_what_the_loaded_model_says(tiny_path, setup):
    loaded = LoadedModel.open(tiny_path, setup, progress=False)
    threads = threading.active_count()
    without = LoadedModel.open(tiny_path, setup, progress=False, weights=False)
    assert threading.active_count() == threads
    assert without.computer == Computer(loaded.backend.name, "elsewhere", 0)
    without.elsewhere = loaded.computer
    for what in ("name", "config", "context", "kv", "computer", "identity", "arithmetic",
                 "computed_by", "pooling"):  # fmt: skip
        assert getattr(without, what) == getattr(loaded, what), what
    assert without.kv_tokens == loaded.kv_tokens
    assert loaded.kv_tokens == loaded.backend.kv_blocks * loaded.backend.kv.block_tokens
    assert without.tokenizer.encode("ab") == loaded.tokenizer.encode("ab")


@pytest.mark.parametrize("use", [LLM, AsyncLLM, lambda model: model.backend])
def test_nothing_can_be_computed_with_it(tiny_path, use):
    without = LoadedModel.open(tiny_path, progress=False, weights=False)
    with pytest.raises(InputError, match="opened without its weights"):
        use(without)


def told(done):
    return {k: v for k, v in done.to_dict().items() if k not in ("timing", "usage")}


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3},
        {"regex": "[ab]{3,9}", "ignore_eos": False},
        {"suffix": "b", "max_tokens": 4, "n": 2},
        {"logprobs": 2},
    ],
)
async def test_what_it_asks_of_one_elsewhere_is_what_that_one_writes(tiny_path, options):
    asked = {**SAMPLED, "n": 1, **options}
    async with Piped(AsyncLLM(LLM(tiny_path, threads=1, progress=False))) as llm:
        there = await llm.generate(["ab"], **asked)
    here = LLM(tiny_path, threads=1, progress=False).generate(["ab"], **asked)
    for one, other in zip(*(np.ravel(done) for done in (there, here)), strict=True):
        assert told(one) == told(other)


class Own:
    """A check that is nobody's but the caller's."""

    def allows(self, _text, _token):
        return True


@pytest.mark.parametrize("option", [{"processors": (lambda _ids, row: row,)}, {"check": Own()}])
@pytest.mark.parametrize("more", [{}, {"suffix": "b"}])
async def test_what_is_of_this_process_alone_is_refused_by_name(tiny_path, option, more):
    async with Piped(AsyncLLM(LLM(tiny_path, threads=1, progress=False))) as llm:
        with pytest.raises(InputError, match=f"^{min(option)}: .* sent to another process"):
            await llm.generate("ab", **option, **more)


def test_a_text_arrives_without_its_model_and_has_it_again(tiny_path):
    llm = LLM(tiny_path, threads=1, progress=False)
    with llm.stream("ab", **SAMPLED) as stream:
        for _ in stream:
            pass
    arrived = pickle.loads(pickle.dumps(stream))
    assert type(arrived) is Generation
    arrived.belongs_to(LoadedModel.open(tiny_path, progress=False, weights=False))
    assert told(arrived.completion()) == told(stream.completion())
