"""Saved prefixes: what was computed once goes on anywhere, the same bits."""

import asyncio
import threading

import pytest

from cutaway import AsyncLLM, CutawayError, InputError
from cutaway.base import _native
from support.block_integrity import check_blocks
from support.prefixes import MORE, RUN, TEXT, load, taken_back
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_text_goes_on_with_the_bits_of_one_computed_anew(path, tmp_path, backend):
    place = tmp_path / "été.prefix"
    first = load(path, backend=backend)
    written = first.save_prefix(place, TEXT)
    llm, prefix = taken_back(path, place, backend=backend)
    assert prefix == written
    assert prefix.nbytes == place.stat().st_size
    assert prefix.text == TEXT
    ids = llm.tokenize(TEXT)
    assert prefix.token_ids == tuple(ids[: len(ids) // 32 * 32])
    assert prefix.cached_tokens == len(prefix.token_ids) > 100
    # NumPy's BLAS rounds as the number of rows is: what `reference` goes on from must be cached.
    other = first if backend == "reference" else load(path, backend=backend)
    done, expected = (one.generate(prefix.text + MORE, **RUN) for one in (llm, other))
    assert done.usage.cached_tokens >= prefix.cached_tokens - 32
    assert expected.usage.cached_tokens == (done.usage.cached_tokens if other is first else 0)
    assert (done.token_ids, done.fingerprint) == (expected.token_ids, expected.fingerprint)
    assert llm.engine.blocks.free == llm.engine.blocks.count
    check_blocks(llm.engine.blocks, [])


@pytest.mark.parametrize("tier", _native.tiers().split(","))
def test_another_instruction_set_and_other_threads_go_on_too(path, saved, monkeypatch, tier):
    expected = load(path).generate(TEXT + MORE, **RUN).fingerprint
    monkeypatch.setenv("CUTAWAY_ISA", tier)
    llm, prefix = taken_back(path, saved, threads=3)
    done = llm.generate(prefix.text + MORE, **RUN)
    assert done.usage.cached_tokens > 100
    assert done.fingerprint == expected


def test_messages_and_token_ids_are_prompts_too(path, tmp_path):
    llm, messages = load(path), [{"role": "user", "content": TEXT}]
    ids = llm.chat_prompt(messages)
    for given_ in ({"messages": messages}, {"prompt": ids}):
        prefix = llm.save_prefix(tmp_path / "one", **given_)
        assert (prefix.text, prefix.special) == (None, False)
        again, _ = taken_back(path, tmp_path / "one")
        done = again.chat(messages, **RUN)
        assert done.usage.cached_tokens == (len(ids) - 1) // 32 * 32
        assert done.fingerprint == load(path).chat(messages, **RUN).fingerprint


def test_special_tokens_are_parsed_where_they_are_to_be(path, tmp_path):
    llm = load(path)
    plain = llm.save_prefix(tmp_path / "plain", TEXT + "</s>" + TEXT)
    special = llm.save_prefix(tmp_path / "special", TEXT + "</s>" + TEXT, special=True)
    assert (plain.special, special.special) == (False, True)
    assert plain.token_ids != special.token_ids
    assert taken_back(path, tmp_path / "special")[1] == special


def test_without_computing_only_what_is_there_is_saved(path, tmp_path):
    llm, place = load(path), tmp_path / "some"
    assert llm.save_prefix(place, TEXT, compute=False).token_ids == ()
    llm.generate(TEXT[:80], max_tokens=1)
    part = llm.save_prefix(place, TEXT, compute=False)
    assert part.token_ids == tuple(llm.tokenize(TEXT)[:64])
    assert taken_back(path, place)[1] == part


def test_what_does_not_fit_is_left_out_and_said(path, saved):
    whole = taken_back(path, saved)[1]
    llm, prefix = taken_back(path, saved, kv_tokens=96)
    assert prefix == whole._replace(cached_tokens=96)
    assert len(llm.tokenize(TEXT)[:90]) == 90
    done = llm.generate(llm.tokenize(TEXT)[:90], max_tokens=2, seed=1)
    assert done.usage.cached_tokens == 64
    assert (
        done.fingerprint
        == load(path).generate(llm.tokenize(TEXT)[:90], max_tokens=2, seed=1).fingerprint
    )


def test_whoever_writes_meanwhile_keeps_what_they_hold(path, saved):
    llm, expected = load(path, kv_tokens=256), load(path).generate("ab", **RUN).fingerprint
    with llm.stream("ab", **RUN) as stream:
        next(stream)
        prefix = llm.restore_prefix(saved)
        assert 0 < prefix.cached_tokens <= 256 - 32
        assert stream.finish().fingerprint == expected


@pytest.mark.parametrize("pattern", [{}, {"llama.attention.sliding_window_pattern": 2}])
@pytest.mark.parametrize("window", [5, 40, 100])
def test_layers_with_a_window_go_on_too(tmp_path, pattern, window):
    """Of what they see no more there may be nothing in the file; nor is it needed."""
    metadata = {"llama.attention.sliding_window": window, "tokenizer.chat_template": TEMPLATE}
    path = write_tiny_llama(
        tmp_path / "tiny.gguf", layers=4, context=512, metadata=metadata | pattern
    )
    place, first = tmp_path / "some.prefix", load(path, context=256)
    first.generate("ab " * 80, max_tokens=1)  # whose windows make room for others
    prefix = first.save_prefix(place, TEXT)
    llm = load(path, context=256)
    assert llm.restore_prefix(place) == prefix
    done = llm.generate(TEXT + MORE, **RUN)
    expected = load(path, context=256).generate(TEXT + MORE, **RUN)
    assert done.usage.cached_tokens == prefix.cached_tokens == len(prefix.token_ids) > 100
    assert done.fingerprint == expected.fingerprint
    # A text that parts from it earlier is computed where nothing can be gone on from.
    ids = [*llm.tokenize(TEXT)[:70], 5, 6, 7]
    parted = [one.generate(ids, **RUN).fingerprint for one in (llm, load(path, context=256))]
    assert parted[0] == parted[1]


@pytest.mark.parametrize("window", [0, 40])
def test_a_conversation_goes_on_from_what_its_last_answer_left(tmp_path, window):
    metadata = {"tokenizer.chat_template": TEMPLATE}
    metadata |= {"llama.attention.sliding_window": window} if window else {}
    path = write_tiny_llama(tmp_path / "tiny.gguf", layers=4, context=512, metadata=metadata)
    llm, said, fresh = load(path), [], load(path, prefix_cache=False)
    for turn in range(4):
        said.append({"role": "user", "content": f"{turn}. " + TEXT[:50]})
        cached = llm.save_prefix(tmp_path / "talk", llm.chat_prompt(said), compute=False)
        again, restored = taken_back(path, tmp_path / "talk")
        assert restored == cached
        done = again.chat(said, **RUN)
        assert done.usage.cached_tokens == cached.cached_tokens
        assert (cached.cached_tokens > 0) == (turn > 0)
        assert done.fingerprint == fresh.chat(said, **RUN).fingerprint
        assert done.fingerprint == llm.chat(said, **RUN).fingerprint
        said.append({"role": "assistant", "content": done.text})


def test_threads_that_save_restore_and_write_at_once(path, saved, tmp_path):
    llm, errors = load(path), []
    expected = load(path).generate(TEXT + MORE, **RUN).fingerprint

    def work(number):
        try:
            for _ in range(4):
                if number == 0:
                    llm.save_prefix(tmp_path / "shared", TEXT)
                elif number == 1:
                    llm.restore_prefix(saved)
                else:
                    assert llm.generate(TEXT + MORE, **RUN).fingerprint == expected
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number % 3,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    check_blocks(llm.engine.blocks, [])
    assert taken_back(path, tmp_path / "shared")[1].cached_tokens > 100


def test_the_asynchronous_face_saves_and_restores_beside_others(path, tmp_path):
    place, expected = tmp_path / "async", load(path).generate(TEXT + MORE, **RUN).fingerprint

    async def run():
        async with AsyncLLM(load(path), **RUN) as first:
            other, written = await asyncio.gather(
                first.generate(TEXT + MORE), first.save_prefix(place, TEXT)
            )
            with pytest.raises(InputError, match="longer one"):
                await first.save_prefix(place, "ab")
        async with AsyncLLM(load(path), **RUN) as second:
            assert await second.restore_prefix(place) == written
            done = await second.generate(TEXT + MORE)
            with pytest.raises(InputError, match="no file"):
                await second.restore_prefix(tmp_path / "x")
        assert done.usage.cached_tokens > 100
        assert done.fingerprint == other.fingerprint == expected
        with pytest.raises(CutawayError, match="closed"):
            await second.restore_prefix(place)

    asyncio.run(run())
