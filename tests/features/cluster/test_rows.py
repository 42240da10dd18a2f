"""A row of a dataset, written without Ray: its columns, its seed, and its own mistakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.features.cluster.rows import COLUMNS, BulkJob, digest
from support.adapters import adapter_of

OPTIONS = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True}
IDS = st.one_of(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1))


@pytest.fixture(scope="module")
def llm(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        yield llm


def written(llm, rows, **job):
    job = BulkJob(None, options=OPTIONS | job.pop("options", {}), **job)
    found = dict(job.write(llm, rows))
    assert sorted(found) == list(range(len(rows)))
    return [found[place] for place in range(len(rows))]


def test_a_row_is_what_one_model_writes_with_its_seed(llm):
    rows = [("a", "abc"), (7, [1, 9, 4]), ("chat", [{"role": "user", "content": "ab", "x": None}])]
    prompts = ["abc", [1, 9, 4], llm.chat_prompt([{"role": "user", "content": "ab"}])]
    for row, prompt in zip(written(llm, rows, token_ids=True), prompts, strict=True):
        alone = llm.generate(prompt, seed=row["seed"], **OPTIONS)
        assert row["text"] == alone.text and row["fingerprint"] == alone.fingerprint
        assert row["token_ids"] == list(alone.token_ids)
        assert (row["finish_reason"], row["error"]) == ("max_tokens", None)
        assert row["system_fingerprint"] == llm.model.system_fingerprint


def test_rows_of_an_adapter_say_whose_bits_they_are(tiny_path, tmp_path):
    lora = adapter_of(tiny_path, tmp_path / "poet.gguf")
    with LLM(tiny_path, adapters={"poet": lora}) as llm:
        [row] = written(llm, [("a", "abc")], options={"adapter": "poet"})
    with LLM(tiny_path, lora=lora) as alone:
        done = alone.generate("abc", seed=row["seed"], **OPTIONS)
        told = done.fingerprint, alone.model.system_fingerprint
    assert (row["fingerprint"], row["system_fingerprint"]) == told


@given(st.lists(IDS, unique=True, min_size=2, max_size=6), st.data())
def test_what_a_row_becomes_does_not_depend_on_the_others(llm, ids, data):
    rows = [(name, "ab") for name in ids]
    order = data.draw(st.permutations(rows))
    some = order[: data.draw(st.integers(1, len(order)))]
    apart = dict(zip(ids, written(llm, rows), strict=True))
    assert written(llm, some) == [apart[name] for name, _ in some]


@given(st.lists(st.one_of(IDS, IDS.map(str)), unique_by=lambda x: (type(x), x), min_size=2))
def test_each_id_has_a_seed_of_its_own_that_follows_from_it(ids):
    seeds = [BulkJob(None).seed(name) for name in ids]
    assert len(set(seeds)) == len(ids) and all(0 <= seed < 2**53 for seed in seeds)
    assert seeds == [BulkJob(None, options={"seed": None}).seed(name) for name in ids]
    assert not set(seeds) & {BulkJob(None, options={"seed": 1}).seed(name) for name in ids}


def test_a_mistake_is_told_in_its_row_and_the_others_go_on(llm):
    rows = [("a", "abc"), ("b", None), (1.5, "abc"), (None, "abc"), ("c", [1] * 600), ("d", [[]]),
            ("e", [{"role": "nobody's"}]), (True, "abc"), ("f", "abc")]  # fmt: skip
    found = written(llm, rows)
    good, bad = [found[0], found[-1]], found[1:-1]
    assert all(row["error"] is None and row["text"] for row in good)
    assert all(row["text"] is row["fingerprint"] is None for row in bad)
    for row, sentence in zip(bad, (
        "prompt must be a string", "id must be a text or a whole number, not 1.5", "not None",
        "prompt has 600 tokens", "prompt must be a string", "messages", "not True",
    ), strict=True):  # fmt: skip
        assert sentence in row["error"]


def test_an_error_of_the_engine_is_told_too(llm):
    def fail(tokens, logits):
        raise RuntimeError("mine")

    [row] = written(llm, [("a", "abc")], options={"processors": (fail,)})
    assert "RuntimeError: mine" in row["error"]


def test_the_columns(llm):
    [row] = written(llm, [("a", "abc")], before="my_")
    assert tuple(row) == COLUMNS
    assert BulkJob(None, before="my_").added == {name: f"my_{name}" for name in COLUMNS}
    assert list(BulkJob(None, token_ids=True).added) == [*COLUMNS, "token_ids"]


def test_a_message_is_the_same_with_fields_that_only_others_have():
    assert digest([{"role": "a", "b": None}]) == digest([{"role": "a"}])
    assert len({digest(prompt) for prompt in (None, "", "1", [1], [[1]], ["1"])}) == 6


def test_what_the_model_cannot_load_is_refused(tiny_path):
    with pytest.raises(InputError, match="context"):
        BulkJob(str(tiny_path), load={"context": 1}).open()
    for keyword in ("threads", "owner", "progress"):
        with pytest.raises(InputError, match=f"load: {keyword} is none of adapters, backend"):
            BulkJob(None, load={keyword: None}).check_load()
