"""A prefix whose hashes are right, and whose keys and values are another text's."""

import numpy as np
import pytest

from cutaway import FormatError, InputError
from cutaway.files.prefix import PrefixReader
from cutaway.methods import prefix as methods
from cutaway.methods.prefix import check_prefix
from support.prefixes import TEXT, flipped, forge, load
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama

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
def saved(model, tmp_path):
    place = tmp_path / "text.prefix"
    with load(model) as llm:
        llm.save_prefix(place, TEXT)
    return place


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_saved_is_the_same_again(model, saved, whole):
    with load(model) as llm, PrefixReader(saved) as file:
        uneven = len({*file.head.block_bytes}) > 1
        for _ in range(4):
            computed = check_prefix(llm, saved, whole=whole)
            assert computed == (file.head.blocks if whole or uneven else 1)


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_with_blocks_of_another_text_is_told(model, saved, tmp_path, whole):
    with load(model) as llm:
        llm.save_prefix(other := tmp_path / "other", OTHER)
        with PrefixReader(other) as file, PrefixReader(saved) as own:
            assert file.head.block_bytes[: own.head.blocks] == own.head.block_bytes

            def of_other(i, block):
                memory = np.empty(len(block), np.uint8)
                file.read(i, [memory])
                return memory.tobytes()

            forge(saved, of_other)
        llm.restore_prefix(saved)  # its own hashes are right
        for _ in range(4):
            with pytest.raises(FormatError, match="has not the keys and values of its text"):
                check_prefix(llm, saved, whole=whole)


def test_one_bit_of_any_block_is_told_by_all(model, saved):
    with PrefixReader(saved) as file:
        blocks = [i for i, nbytes in enumerate(file.head.block_bytes) if nbytes]
    original = saved.read_bytes()
    with load(model) as llm:
        for wrong in blocks:
            saved.write_bytes(original)
            forge(saved, lambda i, block, wrong=wrong: flipped(block) if i == wrong else block)
            with pytest.raises(FormatError, match=f"block {wrong} "):
                check_prefix(llm, saved, whole=True)


def test_each_block_is_chosen_and_told(tmp_path, monkeypatch):
    model, place = write_tiny_llama(tmp_path / "tiny.gguf", context=512), tmp_path / "text.prefix"
    chosen = []
    monkeypatch.setattr(
        methods, "SystemRandom", type("Luck", (), {"randrange": lambda *_: chosen[0]})
    )
    with load(model) as llm:
        llm.save_prefix(place, TEXT)
        count = forge(place, lambda i, block: flipped(block) if i == 2 else block)
        for i in range(count):
            chosen[:] = [i]
            if i != 2:  # the last layer's values, of which no other block is made
                assert check_prefix(llm, place) == 1
                continue
            with pytest.raises(FormatError, match="block 2 "):
                check_prefix(llm, place)


def test_bits_of_numpy_are_not_compared(saved, model):
    with (
        load(model, backend="reference") as llm,
        pytest.raises(InputError, match="its bits are NumPy's"),
    ):
        check_prefix(llm, saved)


def test_another_model_cannot_check_it(saved, tmp_path):
    with (
        load(write_tiny_llama(tmp_path / "other.gguf", context=512, seed=9)) as other,
        pytest.raises(InputError, match="with other weights"),
    ):
        check_prefix(other, saved)
