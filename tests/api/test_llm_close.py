"""What an LLM holds is free when it is closed, or when nobody refers to it any more."""

import gc
import weakref

import pytest

from cutaway import LLM, InputError, LoadedModel


def test_dropping_the_last_reference_frees_the_weights_at_once(tiny_path):
    """A sweep over models would hold about ten of them until the collector runs."""
    gc.collect()
    gc.disable()
    try:
        llm = LLM(tiny_path, threads=1, progress=False)
        llm.generate("ab", max_tokens=2, speculate="ngram")
        backend = weakref.ref(llm.backend)
        del llm
        assert backend() is None
    finally:
        gc.enable()


def test_closing_frees_the_weights_and_ends_what_is_written(tiny_path):
    gc.disable()
    try:
        with LLM(tiny_path, threads=1, progress=False) as llm:
            stream = llm.stream("ab", max_tokens=40, ignore_eos=True)
            next(stream)
            backend = weakref.ref(llm.backend)
        assert backend() is None
    finally:
        gc.enable()
    with pytest.raises(InputError, match=r"^tiny is closed: load the model again$"):
        next(stream)
    part = stream.completion()
    assert (part.finish_reason, len(part.token_ids)) == ("error", 1)
    stream.close()
    llm.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate("ab"),
        lambda llm: llm.stream("ab"),
        lambda llm: llm.logits([1, 2]),
        lambda llm: llm.engine,
        lambda llm: llm.backend,
    ],
)
def test_a_closed_model_says_so(tiny_path, use):
    llm = LLM(tiny_path, threads=1, progress=False)
    llm.close()
    with pytest.raises(InputError, match=r"^tiny is closed: load the model again$"):
        use(llm)
    assert repr(llm) == "<LLM tiny>"


def test_a_loaded_model_has_one_owner_after_the_other(tiny_path):
    model = LoadedModel.open(tiny_path)
    first = LLM(model)
    with pytest.raises(InputError, match=r"^tiny belongs to an LLM already"):
        LLM(model)
    with pytest.raises(InputError, match="loaded already"):
        LLM(model, threads=2)
    assert first.generate("ab", max_tokens=2, seed=1).token_ids
