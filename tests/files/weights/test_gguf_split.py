"""A GGUF model in parts: read as the whole file is, or refused in a sentence that says why."""

import shutil
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.compute.loading.identity import identify
from cutaway.compute.loading.open import files_of, model_name, open_model, size_of, stat_model
from cutaway.errors import FormatError
from cutaway.files.hub import parts_of, whole_name
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from support.random_llama import write_tiny_llama


class Part(GGUFFile):
    """Some tensors of a file, with the keys of a part."""

    def cut(self, names, metadata):
        self.tensors = MappingProxyType({name: self.tensors[name] for name in names})
        self.metadata = MappingProxyType(metadata)
        return self


def split(source: Path, folder: Path, cuts: list[int], **keys) -> list[Path]:
    """Write the parts of a file, cut before these tensors; keys: what the first part says."""
    with GGUFFile(source) as whole:
        names, metadata = list(whole.tensors), dict(whole.metadata)
    bounds = [0, *cuts, len(names)]
    paths = []
    for i, (first, last) in enumerate(pairwise(bounds)):
        own = {"split.no": i, "split.count": len(cuts) + 1, "split.tensors.count": len(names)}
        own |= metadata | keys if i == 0 else {}
        paths.append(folder / f"tiny-{i + 1:05}-of-{len(cuts) + 1:05}.gguf")
        write_gguf(paths[-1], Part(source).cut(names[first:last], own))
    return paths


@pytest.fixture
def whole(tmp_path):
    return write_tiny_llama(tmp_path / "whole.gguf")


@pytest.fixture
def parts(whole, tmp_path):
    return split(whole, tmp_path, [3, 4])


@given(st.data())
def test_the_parts_are_the_whole(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("split")
    source = write_tiny_llama(folder / "whole.gguf")
    with open_model(source) as whole:
        count = len(whole.tensors)
        cuts = data.draw(st.lists(st.integers(1, count - 1), min_size=1, max_size=4, unique=True))
        paths = split(source, folder, sorted(cuts))
        with open_model(data.draw(st.sampled_from(paths))) as found:
            assert list(found.tensors.items()) == [
                (name, found.tensors[name]) for name in whole.tensors
            ]
            assert dict(found.metadata).keys() == dict(whole.metadata).keys()
            for name in whole.tensors:
                assert np.array_equal(found.raw(name)[:], whole.raw(name)[:])


def test_a_model_in_parts_runs_and_is_named_by_all_of_them(whole, parts):
    greedy = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
    once = LLM(whole).generate("ab", **greedy).token_ids
    assert LLM(parts[1]).generate("ab", **greedy).token_ids == once
    assert model_name(parts[2]) == "tiny"
    assert files_of(parts[1]) == parts
    assert size_of(parts[0]) == sum(path.stat().st_size for path in parts)
    before = identify(parts[0], stat_model(parts[0]))
    raw = bytearray(parts[2].read_bytes())
    raw[-40] ^= 1
    parts[2].write_bytes(raw)
    after = identify(parts[0], stat_model(parts[0]))
    assert after.tokenizer == before.tokenizer
    assert after.weights != before.weights


def refused(path, *words):
    with pytest.raises(InputError) as caught:
        LLM(path)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    refused(parts[0], "of the 3 parts", "tiny-00002-of-00003.gguf is missing", str(parts[0].parent))
    parts[2].unlink()
    refused(parts[0], "tiny-00002-of-00003.gguf and 1 more are missing")


def test_parts_in_another_order_are_refused(parts):
    held = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(held)
    refused(parts[0], "tiny-00002-of-00003.gguf", "part 2 of 3", "split.no (from 0) is 2")


def test_a_part_under_another_name_is_refused(parts, tmp_path):
    alone = tmp_path / "alone.gguf"
    shutil.copy(parts[0], alone)
    refused(alone, "part 1 of 1", "split.count 3")


def test_a_whole_file_under_a_parts_name_is_refused(whole, tmp_path):
    for i in (1, 2):
        shutil.copy(whole, tmp_path / f"x-0000{i}-of-00002.gguf")
    refused(tmp_path / "x-00001-of-00002.gguf", "part 1 of 2", "split.count 1")


def test_parts_of_different_models_are_refused(whole, parts, tmp_path):
    (tmp_path / "other").mkdir()
    other = split(whole, tmp_path / "other", [2, 4])
    shutil.copy(other[1], parts[1])
    refused(parts[0], "different models")
    other = split(whole, tmp_path / "other", [4, 5])
    shutil.copy(other[1], parts[1])
    shutil.copy(other[2], parts[2])
    refused(parts[0], "tensors, and its 3 parts have")


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
@pytest.mark.parametrize("value", ["1", -1, 2**40, 1.5, ["1"]])
def test_keys_that_make_no_sense_are_refused(whole, tmp_path, key, value):
    paths = split(whole, tmp_path, [3], **{key: value})
    with pytest.raises(FormatError):
        open_model(paths[0])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("m.gguf", ["m.gguf"]),
        ("m-00001-of-00001.gguf", ["m-00001-of-00001.gguf"]),
        ("q/m-00002-of-00002.GGUF", ["q/m-00001-of-00002.GGUF", "q/m-00002-of-00002.GGUF"]),
        ("m-00003-of-00002.gguf", ["m-00003-of-00002.gguf"]),
        ("m-00000-of-00002.gguf", ["m-00000-of-00002.gguf"]),
        ("m-1-of-2.gguf", ["m-1-of-2.gguf"]),
    ],
)
def test_the_names_of_parts(name, parts):
    assert parts_of(name) == parts
    assert name in parts


def test_the_name_of_the_whole():
    assert whole_name("m-00003-of-00008.gguf") == "m.gguf"
    assert whole_name("m.gguf") == "m.gguf"
