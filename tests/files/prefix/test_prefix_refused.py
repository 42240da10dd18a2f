"""Saved prefixes that another model cannot go on from, forged ones, and prompts not to be saved."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import CutawayError, FormatError, InputError
from cutaway.compute.loading.model import LoadedModel
from cutaway.files.prefix import PrefixReader
from cutaway.methods import prefix as methods
from cutaway.methods.prefix import check_prefix
from support.block_integrity import check_blocks
from support.prefixes import MORE, RUN, TEXT, flip_last_bit, forge, load, taken_back
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE


def test_another_model_is_refused(path, saved, tmp_path):
    metadata = {"tokenizer.chat_template": TEMPLATE}
    other = write_tiny_llama(tmp_path / "other.gguf", context=512, metadata=metadata, seed=9)
    with pytest.raises(InputError, match="is of tiny, and this is other with other weights"):
        taken_back(other, saved)


def test_another_arithmetic_layout_or_version_is_refused(path, saved, monkeypatch):
    with pytest.raises(InputError, match="another arithmetic"):
        taken_back(path, saved, backend="reference")
    llm = load(path)
    groups = tuple(group._replace(format="Q8_0") for group in llm.backend.kv.groups)
    monkeypatch.setattr(llm.backend, "kv", llm.backend.kv._replace(groups=groups))
    with pytest.raises(InputError, match=r"another layout of keys and values .*F16.*Q8_0"):
        llm.restore_prefix(saved)
    monkeypatch.setattr("cutaway.compute.loading.model.ARITHMETIC", 99)
    with pytest.raises(InputError, match=r"another arithmetic .*save it again"):
        taken_back(path, saved)


def test_what_the_first_release_saved_is_read(path, tmp_path, monkeypatch):
    by_name = property(lambda model: f"cutaway-0.1.0-{model.backend.name}")
    with monkeypatch.context() as patch:
        patch.setattr(LoadedModel, "arithmetic", by_name)
        old = tmp_path / "old.prefix"
        load(path).save_prefix(old, TEXT)
    taken_back(path, old)


@pytest.mark.parametrize("what", ["weights", "arithmetic", "\x1b[2J"])
def test_what_a_strangers_file_says_steers_no_terminal(path, tmp_path, monkeypatch, what):
    strange, own = "\x1b[2J\n" * 999, LoadedModel.computed_by.fget
    strangers = property(lambda model: own(model) | {what: strange})
    with monkeypatch.context() as patch:
        patch.setattr(LoadedModel, "computed_by", strangers)
        patch.setattr(LoadedModel, "name", strange, raising=False)
        load(path).save_prefix(tmp_path / "strange", TEXT)
    with pytest.raises(InputError) as error:
        taken_back(path, tmp_path / "strange")
    assert str(error.value).isprintable() and len(str(error.value)) < 4000


def test_quantised_weights_are_other_weights(path, saved):
    with pytest.raises(InputError, match="other weights"):
        taken_back(path, saved, quantize="q8_0")


def test_keys_and_values_of_8_bits_go_on_too_and_with_their_like_alone(path, saved, tmp_path):
    place = tmp_path / "q8_0"
    prefix = load(path, kv="q8_0").save_prefix(place, TEXT)
    assert prefix.nbytes < 0.7 * saved.stat().st_size
    llm, restored = taken_back(path, place, kv="q8_0")
    assert restored == prefix
    done = llm.generate(TEXT + MORE, **RUN)
    assert done.usage.cached_tokens > 100
    assert done.fingerprint == load(path, kv="q8_0").generate(TEXT + MORE, **RUN).fingerprint
    for file, kv in ((place, "f16"), (saved, "q8_0")):
        with pytest.raises(InputError, match=r"with other weights|another layout"):
            taken_back(path, file, kv=kv)


def test_another_graph_of_the_same_file_is_refused(path, saved):
    """As longrope's, whose factors depend on the context."""
    llm = load(path)
    llm.graph.ops[1] = replace(llm.graph.ops[1], eps=0.5)
    with pytest.raises(InputError, match="another graph, which follows from context"):
        llm.restore_prefix(saved)
    assert taken_back(path, saved, context=256)[1].cached_tokens > 100  # the same positions


def test_prompts_that_cannot_be_saved(path, tmp_path):
    llm, place = load(path), tmp_path / "none"
    for wrong, sentence in (
        ({}, "a prompt or messages"),
        ({"prompt": TEXT, "messages": []}, "a prompt or messages"),
        ({"prompt": "ab"}, "give a longer one"),
        ({"prompt": TEXT * 20}, "context"),
        ({"prompt": 7}, "prompt must be"),
        ({"prompt": [10**9] * 40}, "prompt"),
        ({"messages": [{"role": "user", "content": TEXT}], "special": True}, "special"),
        ({"prompt": TEXT, "special": 7}, "special"),
    ):
        with pytest.raises(InputError, match=sentence):
            llm.save_prefix(place, **wrong)
    nowhere = (
        tmp_path,
        tmp_path / "no such" / "x",
        tmp_path / ("n" * 300),
        7,
        None,
        "\0",
        "\ud800",
    )
    for strange in nowhere:
        with pytest.raises(InputError, match=r"regular file|no folder|cannot be a|path must be"):
            llm.save_prefix(strange, TEXT)
    with pytest.raises(InputError, match="compute must be true or false"):
        llm.save_prefix(place, TEXT, compute=1)
    assert [*tmp_path.iterdir()] == []
    check_blocks(llm.engine.blocks, [])
    for strange in (*nowhere, path):
        with pytest.raises(InputError):
            llm.restore_prefix(strange)


def test_what_cannot_be_written_or_named_is_found_before_anything_is_computed(
    path, tmp_path, monkeypatch
):
    llm = load(path)
    monkeypatch.setattr("cutaway.methods.prefix._compute", None)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written to; name another folder"):
        llm.save_prefix(tmp_path / "x", TEXT)
    monkeypatch.setattr("os.access", lambda *_: True)
    moved = path.rename(path.with_name("moved"))
    try:
        monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
        with pytest.raises(InputError, match="cannot be read to tell which model it is"):
            llm.save_prefix(tmp_path / "x", TEXT)
    finally:
        moved.rename(path)


def test_without_a_prefix_cache_there_is_nothing_to_save_or_restore(path, saved, tmp_path):
    llm = load(path, prefix_cache=False)
    with pytest.raises(InputError, match="prefix_cache is off"):
        llm.save_prefix(tmp_path / "x", TEXT)
    with pytest.raises(InputError, match="prefix_cache is off"):
        llm.restore_prefix(saved)


def test_a_disk_that_fails_leaves_the_model_as_it_was(path, tmp_path, monkeypatch):
    llm = load(path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(CutawayError, match="cannot be written: No space left"):
        llm.save_prefix(tmp_path / "x", TEXT)
    assert [*tmp_path.iterdir()] == []
    check_blocks(llm.engine.blocks, [])
    assert llm.generate("ab", **RUN).fingerprint == load(path).generate("ab", **RUN).fingerprint


@given(data=st.data())
@settings(max_examples=60)
def test_damage_gives_an_error_and_never_another_text(path, saved, tmp_path_factory, data):
    """What was read before the damaged block may stay: it is right."""
    raw = bytearray(saved.read_bytes())
    with PrefixReader(saved) as file:
        first = file.head.sizes.head
    where = st.one_of(st.integers(0, first - 1), st.integers(first, len(raw) - 1))
    for at in data.draw(st.lists(where, min_size=1, max_size=3, unique=True)):
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    place = tmp_path_factory.getbasetemp() / "flipped.prefix"
    place.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, first]))])
    llm = load(path)
    with pytest.raises(FormatError):
        llm.restore_prefix(place)
    check_blocks(llm.engine.blocks, [])
    assert llm.generate(TEXT + MORE, **RUN).fingerprint == _anew(path)


_known = {}


def _anew(path):
    if path not in _known:
        _known[path] = load(path).generate(TEXT + MORE, **RUN).fingerprint
    return _known[path]


def test_a_closed_model_says_so(path, saved, tmp_path):
    llm = load(path)
    llm.close()
    with pytest.raises(InputError, match="closed"):
        llm.restore_prefix(saved)
    with pytest.raises(InputError, match="closed"):
        llm.save_prefix(tmp_path / "x", TEXT)


# -- hashes that are right over keys and values of another text ------------------------------------


WINDOWS = {"llama.attention.sliding_window": 56, "llama.attention.sliding_window_pattern": 2}
NARROW = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 1}
OTHER = TEXT[::-1]


@pytest.fixture(scope="module", params=["llama", "windows", "narrow", "lfm2", "granite hybrid"])
def model(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("forged") / "tiny.gguf"
    return {
        "llama": lambda: write_tiny_llama(place, context=512),
        "windows": lambda: write_tiny_llama(place, context=512, metadata=WINDOWS),
        "narrow": lambda: write_tiny_llama(place, context=512, metadata=NARROW),
        "lfm2": lambda: write_tiny_lfm2(place),
        "granite hybrid": lambda: write_tiny_granite_hybrid(place),
    }[request.param]()


@pytest.fixture
def of_model(model, tmp_path):
    place = tmp_path / "text.prefix"
    with load(model) as llm:
        llm.save_prefix(place, TEXT)
    return place


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_saved_is_the_same_again(model, of_model, whole):
    with load(model) as llm, PrefixReader(of_model) as file:
        uneven = len({*file.head.block_bytes}) > 1
        for _ in range(4):
            computed = check_prefix(llm, of_model, whole=whole)
            assert computed == (file.head.blocks if whole or uneven else 1)


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_with_blocks_of_another_text_is_told(model, of_model, tmp_path, whole):
    with load(model) as llm:
        llm.save_prefix(other := tmp_path / "other", OTHER)
        with PrefixReader(other) as file, PrefixReader(of_model) as own:
            assert file.head.block_bytes[: own.head.blocks] == own.head.block_bytes

            def of_other(i, block):
                memory = np.empty(len(block), np.uint8)
                file.read(i, [memory])
                return memory.tobytes()

            forge(of_model, of_other)
        llm.restore_prefix(of_model)  # its own hashes are right
        for _ in range(4):
            with pytest.raises(FormatError, match="has not the keys and values of its text"):
                check_prefix(llm, of_model, whole=whole)


def test_one_bit_of_any_block_is_told_by_all(model, of_model):
    with PrefixReader(of_model) as file:
        blocks = [i for i, nbytes in enumerate(file.head.block_bytes) if nbytes]
    original = of_model.read_bytes()
    with load(model) as llm:
        for wrong in blocks:
            of_model.write_bytes(original)
            forge(
                of_model,
                lambda i, block, wrong=wrong: flip_last_bit(block) if i == wrong else block,
            )
            with pytest.raises(FormatError, match=f"block {wrong} "):
                check_prefix(llm, of_model, whole=True)


def test_each_block_is_chosen_and_told(tmp_path, monkeypatch):
    model, place = write_tiny_llama(tmp_path / "tiny.gguf", context=512), tmp_path / "text.prefix"
    chosen = []
    monkeypatch.setattr(
        methods, "SystemRandom", type("Luck", (), {"randrange": lambda *_: chosen[0]})
    )
    with load(model) as llm:
        llm.save_prefix(place, TEXT)
        count = forge(place, lambda i, block: flip_last_bit(block) if i == 2 else block)
        for i in range(count):
            chosen[:] = [i]
            if i != 2:  # the last layer's values, of which no other block is made
                assert check_prefix(llm, place) == 1
                continue
            with pytest.raises(FormatError, match="block 2 "):
                check_prefix(llm, place)


def test_bits_of_numpy_are_not_compared(of_model, model):
    with (
        load(model, backend="reference") as llm,
        pytest.raises(InputError, match="its bits are NumPy's"),
    ):
        check_prefix(llm, of_model)


def test_another_model_cannot_check_it(of_model, tmp_path):
    with (
        load(write_tiny_llama(tmp_path / "other.gguf", context=512, seed=9)) as other,
        pytest.raises(InputError, match="with other weights"),
    ):
        check_prefix(other, of_model)
