"""Saved prefixes that another model cannot go on from, and prompts that cannot be saved."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import CutawayError, FormatError, InputError
from cutaway.compute.loading.model import LoadedModel
from cutaway.files.prefix import PrefixReader
from support.block_integrity import check_blocks
from support.prefixes import MORE, RUN, TEXT, load, taken_back
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
    llm.graph.ops[1] = replace(llm.graph.ops[1], attrs={"eps": 0.5, "group": 64})
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
