"""``cache_dir``: what one model has read, later ones continue with the same bits."""

import asyncio
import atexit
import os
import stat
import threading

import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.files.block_folder import clear_folder, stored_files, stored_models
from cutaway.requests import owner
from cutaway.requests.prefix_store import PrefixStore
from support.adapters import adapter_of
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35
from support.random_rwkv7 import write_tiny_rwkv7
from support.served import TEMPLATE

TEXT, MORE = "a bé ab été, " * 12, "and then"
RUN = {"max_tokens": 40, "seed": 3, "temperature": 1.0, "ignore_eos": True}
BLOCK = 32


def llama(path, **metadata):
    names = {"tokenizer.chat_template": TEMPLATE} | {f"llama.{k}": v for k, v in metadata.items()}
    return write_tiny_llama(path, layers=4, context=512, metadata=names)


WINDOW = "attention.sliding_window"
FAMILIES = {
    "all attend": llama,
    "windows": lambda path: llama(path, **{WINDOW: 40}),
    "windows and all": lambda p: llama(p, **{WINDOW: 40, f"{WINDOW}_pattern": 2}),
    "delta nets": lambda path: write_tiny_qwen35(path, context=512),
    "mamba": lambda path: write_tiny_granite_hybrid(path, context=512),
    "rwkv": lambda path: write_tiny_rwkv7(path, context=512),
    "convolutions": lambda path: write_tiny_lfm2(path, context=512),
}


def load(path, folder=None, **setup):
    return LLM(path, progress=False, threads=1, cache_dir=folder, **setup)


def written(done):
    return done.token_ids, done.fingerprint


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv", ["f16", "q8_0,q4_0"])
def test_a_conversation_goes_on_in_another_process_from_its_last_whole_block(tmp_path, family, kv):
    path, folder = FAMILIES[family](tmp_path / "tiny.gguf"), tmp_path / "cache"
    with load(path, folder, kv=kv) as first, load(path, kv=kv) as alone:
        ids = first.tokenize(TEXT)
        done = first.generate(ids, **RUN)
        assert done.usage.cached_tokens == 0
        assert written(done) == written(alone.generate(ids, **RUN))
        following = [*ids, *done.token_ids, *first.tokenize(MORE)]
        expected = written(alone.generate(following, **RUN, cache_prompt=False))
    for prompt, known in ((ids, len(ids) - 1), (following, len(ids) + len(done.token_ids) - 1)):
        with load(path, folder, kv=kv) as later:
            again = later.generate(prompt, **RUN)
            assert again.usage.cached_tokens == known // BLOCK * BLOCK > 100
            assert written(again) == (written(done) if prompt is ids else expected)
            assert later.engine.store.counts().hit_tokens == again.usage.cached_tokens


def test_other_weights_formats_contexts_and_adapters_find_nothing(tmp_path):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    lora = adapter_of(path, tmp_path / "lora.gguf")
    other = write_tiny_llama(tmp_path / "other.gguf", layers=4, context=512, seed=5)
    with load(path, folder, adapters={"poet": lora}) as llm:
        done = llm.generate(TEXT, **RUN)
        poem = llm.generate(TEXT, adapter="poet", **RUN)
        assert poem.usage.cached_tokens == 0
        assert poem.token_ids != done.token_ids
    for model, setup in ((other, {}), (path, {"kv": "q8_0"}), (path, {"lora": lora})):
        with load(model, folder, **setup) as llm:
            assert llm.generate(TEXT, **RUN).usage.cached_tokens == 0
    with load(path, folder, adapters={"poet": lora}) as llm:
        for adapter, expected in (("poet", poem), ("", done)):
            again = llm.generate(TEXT, adapter=adapter, **RUN)
            assert again.usage.cached_tokens > 100
            assert written(again) == written(expected)
        assert llm.generate(TEXT, cache_salt="x", **RUN).usage.cached_tokens == 0
        assert llm.generate(TEXT, cache_prompt=False, **RUN).usage.cached_tokens == 0
    assert len(stored_models(folder)) == 4


def test_two_models_that_run_now_share_what_either_wrote(tmp_path):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    with load(path, folder) as first, load(path, folder) as second:
        first.generate(TEXT, **RUN)
        first.engine.store._join()
        assert second.generate(TEXT + MORE, **RUN).usage.cached_tokens > 100


def test_threads_share_one_model_and_its_folder(tmp_path):
    path, errors = llama(tmp_path / "tiny.gguf"), []
    with load(path, tmp_path / "cache", kv_tokens=1024) as llm, load(path) as alone:
        prompts = [f"{n} {TEXT}" for n in range(4)]
        expected = [written(alone.generate(prompt, **RUN)) for prompt in prompts]

        def work(first):
            try:
                for turn in range(6):
                    n = (first + turn) % 4
                    assert written(llm.generate(prompts[n], **RUN)) == expected[n]
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert llm.engine.store.counts().damaged == 0


def test_an_event_loops_model_writes_when_it_is_closed_or_idle(tmp_path):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"

    async def run():
        async with AsyncLLM(load(path, folder), **RUN) as llm:
            first = await llm.generate(TEXT)
        async with AsyncLLM(load(path, folder), **RUN) as llm:
            again = await llm.generate(TEXT)
            assert llm.state().stored.hit_tokens == again.usage.cached_tokens > 100
            assert written(again) == written(first)

    asyncio.run(run())


def test_a_model_that_is_dropped_or_handed_over_writes_too(tmp_path):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    llm = load(path, folder)
    llm.generate(TEXT, **RUN)
    store = llm.engine.store
    del llm
    store._join()
    with load(path, folder) as lender:
        assert lender.generate(TEXT, **RUN).usage.cached_tokens > 100

        async def lend():
            async with AsyncLLM(lender, **RUN) as borrower:
                await borrower.generate(TEXT[::-1])

        asyncio.run(lend())
        lender.generate("some " + TEXT, **RUN)
    with load(path, folder) as later:
        for text in (TEXT, TEXT[::-1], "some " + TEXT):
            assert later.generate(text, **RUN).usage.cached_tokens > 100


def test_an_event_loops_model_that_is_not_closed_writes_when_python_ends(tmp_path, monkeypatch):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    monkeypatch.setattr(PrefixStore, "rest", lambda _: None)  # nothing is written before

    async def run():
        llm = AsyncLLM(load(path, folder), **RUN)
        await llm.generate(TEXT)
        return llm

    llm = asyncio.run(run())
    assert list(stored_files(folder)) == []
    llm.engine._exit()
    with load(path, folder) as later:
        assert later.generate(TEXT, **RUN).usage.cached_tokens > 100


def test_models_that_are_not_closed_write_by_one_function_at_the_end(tmp_path, monkeypatch):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    monkeypatch.setattr(PrefixStore, "rest", lambda _: None)
    loads = [load(path, folder)]
    before = atexit._ncallbacks()
    loads += [load(path, folder) for _ in range(3)]
    assert atexit._ncallbacks() == before
    loads[2].generate(TEXT, **RUN)
    owner._flush_at_exit()
    assert loads[3].generate(TEXT, **RUN).usage.cached_tokens > 100
    for llm in loads:
        llm.close()


@pytest.mark.skipif(os.name != "posix", reason="others' rights are POSIX's")
def test_the_folder_is_its_owners_alone(tmp_path):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "new" / "cache"
    with load(path, folder) as llm:
        llm.generate(TEXT, **RUN)
    paths = [folder, *folder.rglob("*")]
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {True: 0o700, False: 0o600}
    folder.chmod(0o777)
    with pytest.raises(InputError, match="others can write into"):
        load(path, folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners are POSIX's")
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    user = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(InputError, match="belongs to another user"):
        LLM("no such model", cache_dir=tmp_path)


def test_what_is_in_a_folder_besides_blocks_stays(tmp_path):
    path, folder = llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    mine = folder / "ab" / "cd"
    mine.mkdir(parents=True)
    (mine / "letter.kv").write_text("Dear Sir")
    with load(path, folder, cache_size=1 << 20) as llm:
        llm.generate(TEXT, **RUN)
    [model] = stored_models(folder)
    assert (model.blocks, model.read_again) == (len([*stored_files(folder)]), 0)
    assert clear_folder(folder) == (model.blocks, model.bytes)
    assert [*folder.rglob("*.*")] == [mine / "letter.kv"]
    with load(path, folder) as llm:
        assert llm.generate(TEXT, **RUN).usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        ({"cache_dir": 5}, "cache_dir must be a folder's name"),
        ({"cache_dir": ""}, "cache_dir must be a folder's name"),
        ({"cache_dir": __file__}, "cannot be a folder"),
        ({"cache_dir": "x", "prefix_cache": False}, "prefix cache, which is off"),
        ({"cache_size": 10**9}, "cache_size is of the folder cache_dir"),
        ({"cache_dir": "x", "cache_size": 5}, "cache_size must be"),
    ],
)
def test_bad_settings_are_refused_before_the_model_is_loaded(
    tmp_path, monkeypatch, setup, sentence
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        LLM("no such model", **setup)
