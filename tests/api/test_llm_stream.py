"""Streams that end early: stopped, closed, abandoned or read in part."""

import gc

import pytest

from cutaway import LLM
from cutaway.engine import Policy
from support.random_llama import write_tiny_llama

MAX_ROWS = Policy().max_rows

OPTIONS = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "t.gguf", context=4 * MAX_ROWS)
    return LLM(path, backend="reference")


def free(llm):
    """How many blocks are free once the loop has turned again."""
    llm.generate("a", max_tokens=1)
    assert not llm.engine.running
    assert not llm.engine.waiting
    return llm.engine.blocks.free


def test_stop_ends_a_prompt_that_is_still_being_computed(llm, monkeypatch):
    before, turns = free(llm), []
    stream = llm.stream([1] * (3 * MAX_ROWS), **OPTIONS)
    run = llm.backend.run
    monkeypatch.setattr(llm.backend, "run", lambda b: (turns.append(b), stream.stop(), run(b))[2])
    assert list(stream) == []
    assert len(turns) == 1
    assert stream.completion().finish_reason == "aborted"
    monkeypatch.undo()
    assert free(llm) == before


def test_stop_before_the_first_step(llm):
    stream = llm.stream("ab", **OPTIONS)
    stream.stop()
    assert list(stream) == []
    assert stream.completion().text == ""


def test_what_had_come_before_the_stop_can_be_read(llm):
    whole = llm.generate("ab", n=2, seed=1, **OPTIONS)
    streams = llm.streams("ab", n=2, seed=1, **OPTIONS)
    for _ in range(5):
        next(streams[0])  # both grow
    for stream in streams:
        stream.stop()
    done = [stream.finish() for stream in streams]
    assert [c.finish_reason for c in done] == ["aborted", "aborted"]
    assert len(done[0].token_ids) == 5 and len(done[1].token_ids) > 1
    for part, all_of_it in zip(done, whole, strict=True):
        assert part.token_ids == all_of_it.token_ids[: len(part.token_ids)]


def test_a_stream_that_is_dropped_frees_its_blocks(llm):
    before = free(llm)
    for _ in llm.stream("ab", **OPTIONS):
        break
    llm.stream("ab", **OPTIONS)  # never begun
    gc.collect()
    assert free(llm) == before
    kept = [llm.stream("ab", **OPTIONS)]
    next(kept[0])
    kept.append(kept)  # a cycle, which only the collector ends
    del kept
    gc.collect()
    assert llm.logits([1] * (4 * MAX_ROWS)).shape == (4 * MAX_ROWS, 264)
    assert free(llm) == before


def test_a_partly_read_stream_tells_of_the_part_that_was_read(llm):
    whole = llm.generate("ab", **OPTIONS)
    stream, other = llm.stream("ab", **OPTIONS), llm.stream("b", **OPTIONS)
    assert stream.completion().finish_reason == "unfinished"
    step = next(stream)
    other.finish()  # turns the loop until both have ended
    assert stream.ended is not None
    part = stream.completion()
    assert (part.finish_reason, part.matched) == ("unfinished", None)
    assert part.fingerprint == f"{step.fingerprint:016x}" != whole.fingerprint
    done = stream.finish()
    assert (done.text, done.token_ids) == (whole.text, whole.token_ids)
    assert done.finish_reason == "max_tokens"
    assert done.fingerprint == f"{stream.ended.fingerprint:016x}"


def test_closing_a_stream_that_ran_ahead_gives_what_was_read(llm):
    whole = llm.generate("ab", **OPTIONS)
    held = llm.stream("ab", **OPTIONS, stop=whole.text + "never")
    other = llm.stream("b", **OPTIONS)
    for _ in range(3):
        next(held)
    other.finish()
    held.close()
    assert list(held) == []
    part = held.completion()
    assert (part.finish_reason, len(part.token_ids)) == ("aborted", 3)
    shown = b"".join(map(llm.tokenizer.token_bytes, part.token_ids)).decode(errors="replace")
    assert part.text == shown
