"""The Python API on small random models: texts, streams that end early, what is held and freed."""

import gc
import json
import weakref

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError, LoadedModel
from cutaway.engine import Policy
from cutaway.sampling import derive_seed
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("a folder ü") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(path):
    return LLM(path)


def test_text_is_the_tokens_text(llm):
    done = llm.generate("ab", max_tokens=12, seed=1, ignore_eos=True, temperature=1.0)
    assert done.text == b"".join(map(llm.tokenizer.token_bytes, done.token_ids)).decode(
        errors="replace"
    )
    assert done.usage.completion_tokens == len(done.token_ids) == len(done.steps) == 12
    assert done.prompt_token_ids == tuple(llm.tokenize("ab"))


def test_a_prompt_is_text_or_ids(llm):
    ids = llm.tokenize("ab")
    a, b = (llm.generate(p, max_tokens=5, seed=1) for p in ("ab", ids))
    assert (a.token_ids, a.fingerprint) == (b.token_ids, b.fingerprint)


def test_a_list_of_prompts_gives_a_list(llm):
    both = llm.generate(["ab", [1, 9]], max_tokens=3, seed=1)
    assert [len(c.token_ids) for c in both] == [3, 3]
    assert [len(c.token_ids) for c in llm.generate(["ab"], max_tokens=3, seed=1)] == [3]


def test_same_seed_same_text_another_seed_another(llm):
    texts = [
        llm.generate("ab", max_tokens=20, seed=s, temperature=1.0).token_ids for s in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_seed_that_was_not_given_is_chosen_and_reported(llm):
    first = llm.generate("ab", max_tokens=20, temperature=1.0)
    again = llm.generate("ab", max_tokens=20, temperature=1.0, seed=first.seed)
    assert first.params_source["seed"] == "chosen"
    assert again.params_source["seed"] == "given"
    assert first.token_ids == again.token_ids


def test_samples_of_one_prompt_use_derived_seeds(llm):
    samples = llm.generate("ab", n=3, seed=4, max_tokens=8, temperature=1.0)
    assert [c.seed for c in samples] == [derive_seed(4, i) for i in range(3)]
    alone = llm.generate("ab", seed=samples[2].seed, max_tokens=8, temperature=1.0)
    assert alone.token_ids == samples[2].token_ids


def test_samples_without_a_seed_derive_from_the_one_that_was_chosen(llm):
    samples = llm.generate("ab", n=3, max_tokens=2)
    assert [c.seed for c in samples] == [derive_seed(samples[0].seed, i) for i in range(3)]


def test_stream_yields_what_generate_returns(llm):
    options = {"max_tokens": 15, "seed": 3, "temperature": 1.0}
    with llm.stream("ab", **options) as stream:
        text = "".join(step.text for step in stream)
    whole = llm.generate("ab", **options)
    assert text == whole.text
    assert stream.completion().fingerprint == whole.fingerprint


def test_two_streams_may_be_read_in_turns(llm):
    options = {"max_tokens": 9, "seed": 3, "temperature": 1.0}
    one, two = llm.stream("ab", **options), llm.stream([1, 9], **options)
    pairs = list(zip(one, two, strict=True))
    assert [a.token_id for a, _ in pairs] == list(llm.generate("ab", **options).token_ids)
    assert [b.token_id for _, b in pairs] == list(llm.generate([1, 9], **options).token_ids)


def test_leaving_a_stream_early_frees_its_blocks(llm):
    free = llm.engine.blocks.free
    with llm.stream("ab", max_tokens=20, ignore_eos=True) as stream:
        next(stream)
        assert llm.engine.blocks.free < free
    assert llm.engine.blocks.free == free
    assert stream.completion().finish_reason == "aborted"
    assert stream.completion().usage.completion_tokens == 1


def test_a_failing_processor_frees_its_blocks_too(llm):
    def fail(tokens, logits):
        raise RuntimeError("mine")

    free = llm.engine.blocks.free
    with pytest.raises(RuntimeError, match="mine"):
        llm.generate(["ab", "b"], processors=(fail,))
    assert llm.engine.blocks.free == free
    assert llm.generate("ab", max_tokens=2, seed=1).finish_reason in ("max_tokens", "end_token")


def test_logits_rows_are_the_steps(llm):
    done = llm.generate("ab", max_tokens=6, temperature=0, ignore_eos=True)
    logits = llm.logits([*done.prompt_token_ids, *done.token_ids])
    assert logits.dtype == np.float32
    start = len(done.prompt_token_ids) - 1
    assert logits[start : start + 6].argmax(axis=1).tolist() == list(done.token_ids)


def test_ledger_only_when_asked(llm):
    options = {"max_tokens": 2, "seed": 1, "top_k": 3, "ignore_eos": True}
    assert llm.generate("ab", **options).steps[0].observed is None
    ledger = llm.generate("ab", ledger=True, **options).steps[0].observed.stages
    assert [r.stage.name for r in ledger] == ["temperature", "top_k", "top_p"]
    assert ledger[1].survivors == 3


def test_what_python_prints_of_a_completion_is_short(llm):
    done = llm.generate("ab", max_tokens=3, ignore_eos=True, ledger=True, logprobs=9)
    usage = "usage=Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=3)"
    assert repr(done) == f"Completion(text={done.text!r}, finish_reason='max_tokens', {usage})"


def test_document_is_json_and_complete(llm):
    done = llm.generate("ab", max_tokens=3, logit_bias={5: 1.0}, stop=["x"])
    document = json.loads(json.dumps(done.to_dict()))
    assert set(document) >= {
        "model", "prompt_token_ids", "token_ids", "text", "finish_reason", "matched", "usage",
        "params", "params_source", "seed", "timing", "fingerprint", "chain",
    }  # fmt: skip
    assert document["params"]["max_tokens"] == 3
    assert document["params_source"]["max_tokens"] == "given"
    assert document["params_source"]["top_p"] == "default"
    assert [s["stage"] for s in document["chain"]] == ["logit_bias", "temperature", "top_p"]


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("ab", {"temprature": 1}, "unknown option 'temprature'; did you mean 'temperature'"),
        ("ab", {"frobnicate": 1}, "unknown option 'frobnicate'; cutaway.requests.keywords.Request"),
        ("ab", {"n": 0}, "n must be between 1 and 1024"),
        ("ab", {"kv_cache": "no"}, "kv_cache must be true or false"),
        ("ab", {"max_tokens": 0}, "max_tokens: 0 writes nothing"),
        ("ab", {"logit_bias": {264: 1.0}}, "logit_bias: token id 264 is not between 0 and 263"),
        ([1, 264], {}, "prompt: token id 264 is not between 0 and 263"),
        ([], {}, "prompt is empty"),
        ([1] * 128, {}, "prompt has 128 tokens, and this model's maximum context length is 128"),
        ([1, "a"], {}, "prompt"),
        (7, {}, "prompt"),
        (None, {}, "prompt"),
    ],
)
def test_what_cannot_be_gets_one_sentence(llm, prompt, options, sentence):
    with pytest.raises(InputError, match=sentence):
        llm.generate(prompt, **options)
    assert not llm.engine.waiting
    assert not llm.engine.running


def test_a_bad_prompt_in_a_list_leaves_nothing_behind(llm):
    free = llm.engine.blocks.free
    with pytest.raises(InputError, match="prompt has 128 tokens"):
        llm.generate(["ab", [1] * 128])
    assert (len(llm.engine.waiting), llm.engine.blocks.free) == (0, free)


def test_a_smaller_context_is_full_sooner(path):
    small = LLM(path, context=10)
    done = small.generate([1, 2, 3], ignore_eos=True, max_tokens=100, temperature=0)
    assert (done.finish_reason, len(done.token_ids)) == ("context_full", 7)
    with pytest.raises(InputError, match="context must be between 2 and 128"):
        LLM(path, context=129)


def test_backends_are_known_by_name(path):
    with pytest.raises(InputError, match=r"backend must be one of .*reference.*, not 'npu'"):
        LLM(path, backend="npu")


def test_a_model_that_is_not_supported_is_refused_by_name(tmp_path):
    other = write_tiny_llama(tmp_path / "other.gguf", extra_tensor="blk.0.attn_q_norm")
    with pytest.raises(FormatError, match="attn_q_norm"):
        LLM(other)


def test_an_early_end_releases_what_was_held_back(llm):
    whole = llm.generate("ab", max_tokens=4, temperature=0, ignore_eos=True)
    with llm.stream(
        "ab", max_tokens=4, temperature=0, ignore_eos=True, stop=whole.text + "never"
    ) as stream:
        for _ in range(3):
            next(stream)
    assert stream.completion().text == llm.detokenize(whole.token_ids[:3])


def test_numbers_and_ids_of_numpy_are_numbers_and_ids(llm):
    done = llm.generate(np.array([1, 9]), max_tokens=np.int64(2), temperature=np.float32(0), n=1)
    assert done.prompt_token_ids == (1, 9)
    assert llm.generate([*np.array([1, 9])], max_tokens=2).prompt_token_ids == (1, 9)
    json.dumps(done.to_dict())
    both = llm.generate(np.array([[1, 9], [1, 8]]), max_tokens=1)
    assert [c.prompt_token_ids for c in both] == [(1, 9), (1, 8)]
    assert llm.stream(np.array([1, 9])).prompt_token_ids == (1, 9)
    assert llm.logits(np.array([1, 9])).shape == (2, 264)
    assert llm.detokenize(np.array([261])) == llm.detokenize([261])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda llm: llm.stream("ab", n=2), "n must be 1 to stream"),
        (lambda llm: llm.chat([{"role": "user", "content": "Hi"}]), "no chat template"),
        (lambda llm: llm.generate(b"ab"), r"prompt must be a string or .* not b'ab'"),
        (lambda llm: llm.generate([b"ab"]), r"prompt must be a string or .* not b'ab'"),
        (lambda llm: llm.stream(bytearray(b"ab")), "prompt must be a string or"),
        (lambda llm: llm.generate([True, 5]), "prompt must be token ids"),
        (lambda llm: llm.generate(np.array([True])), "prompt must be token ids"),
        (lambda llm: llm.generate(np.array([1.0])), "prompt must be a string or"),
        (lambda llm: llm.generate([]), "prompt is empty"),
        (lambda llm: llm.generate([1, 9], special=True), "special says how to read a text"),
        (lambda llm: llm.logits(5), "token_ids must be token ids"),
        (lambda llm: llm.logits(b"ab"), "token_ids must be token ids"),
        (lambda llm: llm.logits([True]), "token_ids must be token ids"),
        (lambda llm: llm.tokenize(b"ab"), "text must be a string, not b'ab'"),
        (lambda llm: llm.detokenize(["a"]), "ids must be token ids"),
        (lambda llm: llm.detokenize(5), "ids must be token ids"),
    ],
)
def test_arguments_that_cannot_be_get_one_sentence(llm, call, sentence):
    with pytest.raises(InputError, match=sentence):
        call(llm)


def test_what_can_be_refused_is_refused_before_a_model_is_fetched(monkeypatch, tmp_path):
    monkeypatch.setattr("cutaway.files.hub.resolve", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(InputError, match="context must be between 2"):
        LLM(context=1)
    with pytest.raises(InputError, match="backend must be one of"):
        LLM(backend="npu")


@pytest.mark.parametrize("threads", [0, -1, 2000, "2"])
def test_a_number_of_threads_that_cannot_be_is_refused(path, threads):
    with pytest.raises(InputError, match=r"threads must be .*between 1 and 1023"):
        LLM(path, threads=threads)


def test_a_text_can_be_checked_against_a_constraint(llm):
    assert llm.accepts("[1, 2]", json_schema={"type": "array"})
    assert not llm.accepts("[1, 2]", json_schema={"type": "array"}, json_compact=True)
    assert llm.accepts("north", choice=["north", "south"]).whole
    assert llm.accepts("norse", choice=["north", "south"]).at == 3
    for bad, said in [({}, "needs one of"), ({"regex": "("}, "regex"), ({"min_tokens": 1}, "min")]:
        with pytest.raises(InputError, match=said):
            llm.accepts("a", **bad)


# -- streams that end early: stopped, closed, abandoned or read in part ------------------------


MAX_ROWS = Policy().max_rows

OPTIONS = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def long_llm(tmp_path_factory):
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "t.gguf", context=4 * MAX_ROWS)
    return LLM(path, backend="reference")


def free(long_llm):
    """How many blocks are free once the loop has turned again."""
    long_llm.generate("a", max_tokens=1)
    assert not long_llm.engine.running
    assert not long_llm.engine.waiting
    return long_llm.engine.blocks.free


def test_stop_ends_a_prompt_that_is_still_being_computed(long_llm, monkeypatch):
    before, turns = free(long_llm), []
    stream = long_llm.stream([2] * (3 * MAX_ROWS), **OPTIONS)  # in no cache
    run = long_llm.backend.run
    monkeypatch.setattr(
        long_llm.backend, "run", lambda b: (turns.append(b), stream.stop(), run(b))[2]
    )
    assert list(stream) == []
    assert len(turns) == 1
    assert stream.completion().finish_reason == "aborted"
    monkeypatch.undo()
    assert free(long_llm) == before


def test_stop_before_the_first_step(long_llm):
    stream = long_llm.stream("ab", **OPTIONS)
    stream.stop()
    assert list(stream) == []
    assert stream.completion().text == ""


def test_what_had_come_before_the_stop_can_be_read(long_llm):
    whole = long_llm.generate("ab", n=2, seed=1, **OPTIONS)
    streams = long_llm.streams("ab", n=2, seed=1, **OPTIONS)
    for _ in range(5):
        next(streams[0])  # both grow
    for stream in streams:
        stream.stop()
    done = [stream.finish() for stream in streams]
    assert [c.finish_reason for c in done] == ["aborted", "aborted"]
    assert len(done[0].token_ids) == 5 and len(done[1].token_ids) > 1
    for part, all_of_it in zip(done, whole, strict=True):
        assert part.token_ids == all_of_it.token_ids[: len(part.token_ids)]


def test_a_stream_that_is_dropped_frees_its_blocks(long_llm):
    before = free(long_llm)
    for _ in long_llm.stream("ab", **OPTIONS):
        break
    long_llm.stream("ab", **OPTIONS)  # never begun
    gc.collect()
    assert free(long_llm) == before
    kept = [long_llm.stream("ab", **OPTIONS)]
    next(kept[0])
    kept.append(kept)  # a cycle, which only the collector ends
    del kept
    gc.collect()
    assert long_llm.logits([1] * (4 * MAX_ROWS)).shape == (4 * MAX_ROWS, 264)
    assert free(long_llm) == before


def test_a_partly_read_stream_tells_of_the_part_that_was_read(long_llm):
    whole = long_llm.generate("ab", **OPTIONS)
    stream, other = long_llm.stream("ab", **OPTIONS), long_llm.stream("b", **OPTIONS)
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


def test_closing_a_stream_that_ran_ahead_gives_what_was_read(long_llm):
    whole = long_llm.generate("ab", **OPTIONS)
    held = long_llm.stream("ab", **OPTIONS, stop=whole.text + "never")
    other = long_llm.stream("b", **OPTIONS)
    for _ in range(3):
        next(held)
    other.finish()
    held.close()
    assert list(held) == []
    part = held.completion()
    assert (part.finish_reason, len(part.token_ids)) == ("aborted", 3)
    shown = b"".join(map(long_llm.tokenizer.token_bytes, part.token_ids)).decode(errors="replace")
    assert part.text == shown


# -- what an LLM holds is free when it is closed, or nobody refers to it any more --------------


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
