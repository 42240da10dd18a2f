"""Draft models of an LLM: which fit, when they may be changed, how far they draft."""

from threading import Thread
from time import monotonic, sleep

import pytest

from cutaway import LLM, InputError
from cutaway.requests import sync_llm
from cutaway.requests.sync_llm import load_draft
from support.random_llama import WORDS, write_tiny_llama

OPTIONS = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def llm(tiny_path):
    return LLM(tiny_path)


def test_a_dropped_text_does_not_stand_in_the_way(llm, tiny_path):
    plain = llm.generate("ab", **OPTIONS)
    stream = llm.stream("b", **OPTIONS)
    next(stream)
    del stream
    guessed = llm.generate("ab", speculate=f"draft:{tiny_path}", **OPTIONS)
    assert guessed.token_ids == plain.token_ids
    assert guessed.speculation.accepted > 0


def test_two_first_requests_for_one_draft_model_load_it_once(llm, tiny_path, monkeypatch):
    found, loads = [], []

    def generate():
        found.append(llm.generate("ab", speculate=f"draft:{tiny_path}", **OPTIONS).text)

    other = Thread(target=generate)

    def load(*args, **options):
        loads.append(args)
        if len(loads) == 1:
            other.start()
            latest = monotonic() + 30
            while len(llm.owner._turns._line) < 2 and monotonic() < latest:
                sleep(0.001)
        load_draft(*args, **options)

    monkeypatch.setattr(sync_llm, "load_draft", load)
    generate()
    other.join(30)
    assert len(loads) == 1 and len(found) == 2


def test_another_draft_model_waits_for_the_texts_that_run(llm, tiny_path):
    stream = llm.stream("b", **OPTIONS)
    next(stream)
    with pytest.raises(InputError, match="while texts run"):
        llm.generate("ab", speculate=f"draft:{tiny_path}", **OPTIONS)
    stream.finish()
    assert llm.generate("ab", speculate=f"draft:{tiny_path}", **OPTIONS).speculation.accepted > 0


def test_other_tokens_are_refused_and_change_nothing(llm, tiny_path, tmp_path):
    tokens = ["<unk>", "<s>", "</s>", *WORDS[:-1], "c"]
    other = write_tiny_llama(tmp_path / "other.gguf", metadata={"tokenizer.ggml.tokens": tokens})
    sentence = "other has other tokens than the model it is to draft for"
    with pytest.raises(InputError, match=sentence):
        llm.generate("ab", speculate=f"draft:{other}", **OPTIONS)
    assert llm.generate("ab", speculate=f"draft:{tiny_path}", **OPTIONS).speculation.accepted > 0


def test_a_draft_model_of_less_context_guesses_as_far_as_it_reads(llm, tmp_path):
    short = write_tiny_llama(tmp_path / "short.gguf", context=16)
    plain = llm.generate("ab", **OPTIONS)
    guessed = llm.generate("ab", speculate=f"draft:{short}", **OPTIONS)
    assert guessed.token_ids == plain.token_ids
    sources = [step.source for step in guessed.steps]
    assert "draft" in sources
    assert all(s.position < 16 for s in guessed.steps if s.source == "draft")


def test_a_draft_model_that_does_not_fit_into_memory_is_said_in_a_sentence(
    llm, tiny_path, monkeypatch
):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr("cutaway.compute.loading.model.backends.load", full)
    with pytest.raises(InputError, match=r"tiny\.gguf does not fit into memory beside the model"):
        llm.generate("ab", speculate=f"draft:{tiny_path}", **OPTIONS)
