"""Interventions as data: what can be written, what is refused; JSON and text lose nothing.

Control vectors are as repeng writes them, and are added after their layers.
"""

import json
import pickle
from contextlib import suppress
from itertools import pairwise

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, FormatError, InputError
from cutaway.cli.main import main
from cutaway.engine import RunParams, StopParams
from cutaway.engine.interventions import (
    BoundInterventions,
    Intervention,
    PlacedIntervention,
    add,
    blind,
    check_interventions,
    knock_out,
    parse_intervention,
    patch,
    scale,
)  # fmt: skip
from cutaway.engine.interventions.intervention import (
    LAST,
    check_spans,
    control_vector,
    from_position,
    spans_text,
)
from support.engine_mock import MockRequest, make_engine, read_written
from support.mock_backend import NOT_SEEN, VOCAB, narrow
from support.random_llama import write_tiny_llama

PLACES = st.one_of(
    st.integers(0, 99).map(lambda n: f"L{n}"),
    st.tuples(st.integers(0, 99), st.sampled_from(["attn", "mlp", "H0", "H12"])).map(
        lambda pair: f"L{pair[0]}.{pair[1]}"
    ),
)
NUMBERS = st.floats(-1e6, 1e6, width=32)
VECTORS = st.lists(NUMBERS, min_size=1, max_size=8)
SETS = st.sets(st.integers(0, 60), min_size=1)
STEPS = st.none() | st.integers(0, 500)
INTERVENTIONS = st.one_of(
    st.builds(scale, PLACES, NUMBERS, positions=st.none() | SETS, from_step=STEPS),
    st.builds(add, PLACES, VECTORS, NUMBERS, positions=st.none() | SETS, from_step=STEPS),
    st.builds(patch, PLACES, VECTORS, positions=st.none() | SETS, from_step=STEPS),
    st.builds(knock_out, SETS, from_step=STEPS),
)


ADDED = add("L1", [1.0]).to_json()


@given(SETS)
def test_spans_are_the_positions(positions):
    spans = check_spans("positions", positions)
    assert {p for first, last in spans for p in range(first, last + 1)} == positions
    assert check_spans("positions", spans_text(spans)) == spans == check_spans("positions", spans)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(spans))


@given(SETS, st.integers(0, 70))
def test_what_lies_behind(positions, start):
    spans = from_position(check_spans("positions", positions), start)
    found = {p for first, last in spans for p in range(first, last + 1)}
    assert found == {p for p in positions if p >= start}


@given(INTERVENTIONS)
def test_nothing_is_lost_on_the_way_through_json_and_pickle(change):
    line = json.loads(json.dumps(change.to_json()))
    assert Intervention.from_json(line) == change == pickle.loads(pickle.dumps(change))
    assert check_interventions([line, change]) == (change, change)


@given(
    st.builds(
        scale, PLACES, NUMBERS | st.sampled_from([0, 1, 0.1, 1e-7]),
        positions=st.none() | SETS, from_step=STEPS,
    )
    | st.builds(knock_out, SETS, from_step=STEPS)
)  # fmt: skip
def test_the_text_of_a_change_is_that_change(change):
    assert parse_intervention(str(change)) == change
    assert check_interventions([f"  {change} "]) == (change,)


@pytest.mark.parametrize(
    "text",
    ["", "L9", "L9 x", "L9 x y", "L9 * 2", "L9.H x 0", "L09 x 0", "L9.mlp x nan", "L9 x inf",
     "L9 x 1e39", "knock_out", "knock_out x", "knock_out 7-3", "knock_out 3-", "knock_out 3,,4",
     "L9 x 0 at", "l9 x 0",
     "L9 x 0 from", "L9 x 0 from -1", "L9 x 0 at 5 from x", "L9.attn.H2 x 0", "M9 x 0", "L-1 x 0",
     "knock_out 99999999999", "L9 x 0 at 3 4", "\x00", "L9 x 0\nL8 x 0", "L٩ x 0", 5, None],
)  # fmt: skip
def test_what_is_no_change(text):
    with pytest.raises(InputError, match=r"^intervention|^positions") as caught:
        parse_intervention(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_change_or_an_input_error(text):
    with suppress(InputError):
        assert isinstance(parse_intervention(text), Intervention)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale("L1", "2"), "must be a number"),
        (lambda: scale("L1", True), "must be a number"),
        (lambda: scale("L1", 1, positions=[]), "at least one"),
        (lambda: scale("L1", 1, positions=[-1]), "between 0"),
        (lambda: scale("L1", 1, positions=[LAST + 1]), "between 0"),
        (lambda: scale("L1", 1, from_step=-1), "from_step"),
        (lambda: add("L1", []), "takes a vector"),
        (lambda: add("L1", [[1.0]]), "2 deep"),
        (lambda: add("L1", ["x"]), "list of numbers"),
        (lambda: add("L1", [np.nan]), "finite"),
        (lambda: add("L1", [1e39]), "finite"),
        (lambda: Intervention("scale", "L1", 1.0, b"1234"), "takes no vector"),
        (lambda: Intervention("add", "L1", 1.0, b"123"), "takes a vector"),
        (lambda: Intervention("other", "L1"), "one of scale, add, patch, knock_out"),
        (lambda: Intervention("knock_out", "L1", positions=((1, 1),)), "no place"),
        (lambda: Intervention("knock_out"), "no place"),
        (lambda: check_interventions("L1 x 0"), "must be a list"),
        (lambda: check_interventions(5), "must be a list"),
        (lambda: check_interventions([5]), "object with kind"),
        (lambda: check_interventions([{"kind": "scale", "other": 1}]), "object with kind"),
        (lambda: check_interventions([scale("L1", 1)] * 1025), "more than 1024"),
        (lambda: check_interventions([add("L1", np.zeros(1 << 20))] * 3), "bytes are more"),
        (lambda: Intervention.from_json({"kind": "add", "where": "L1", "vector": "§"}), "base64"),
        (lambda: Intervention.from_json({"kind": "add", "where": "L1", "vector": 5}), "base64"),
        (lambda: Intervention.from_json(ADDED | {"sha256": "0" * 64}), "sha256 is not"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("text", ["blind 3-7", " blind 3-7 from 2 "])
def test_blind_is_the_earlier_name_of_knock_out(text):
    found = parse_intervention(text)
    assert found == parse_intervention(text.replace("blind", "knock_out"))
    earlier = found.to_json() | {"kind": "blind", "text": text.strip()}
    assert Intervention.from_json(earlier) == found
    assert blind("3-7") == knock_out("3-7")


# -- control vectors -------------------------------------------------------------------------------


IN_FILES = {layer: np.random.default_rng(layer).normal(size=32) for layer in (1, 2)}
HOW = {"max_tokens": 8, "seed": 1}


def write(path, vectors=IN_FILES, architecture="controlvector", name="direction.{}"):
    """As repeng's export_gguf does."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", len(vectors))
    for layer, vector in vectors.items():
        writer.add_tensor(name.format(layer), vector.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=3)


def test_a_file_is_what_is_added_after_each_layer(path, tmp_path):
    made = control_vector(write(tmp_path / "v.gguf", dict(reversed(IN_FILES.items()))), 2.5)
    assert made == tuple(add(f"L{layer}", IN_FILES[layer], 2.5) for layer in (1, 2))
    with LLM(path) as llm:
        plain = llm.generate("ab", **HOW)
        none = llm.generate("ab", interventions=control_vector(tmp_path / "v.gguf", 0), **HOW)
        some = llm.generate("ab", interventions=made, **HOW)
        assert plain.fingerprint == none.fingerprint != some.fingerprint
        wide = control_vector(write(tmp_path / "w.gguf", {1: np.ones(31)}))
        with pytest.raises(InputError, match="L1 has 32 numbers, not 31"):
            llm.generate("ab", interventions=wide)
        deep = control_vector(write(tmp_path / "d.gguf", {3: np.ones(32)}))
        with pytest.raises(InputError, match="no L3"):
            llm.generate("ab", interventions=deep)


def test_on_the_command_line(path, tmp_path, capsys):
    file, run = write(tmp_path / "v.gguf"), ["generate", "ab", "-m", str(path), "-q", "--json"]
    run += ["--seed", "1", "--max-tokens", "8"]
    found = []
    for more in ([], [f"{file}"], [f"{file}:1"], [f"{file}:0"]):
        assert main([*run, *(x for one in more for x in ("--control-vector", one))]) == 0
        found.append(capsys.readouterr().out.split('"fingerprint": "')[1][:16])
    assert found[0] == found[3] != found[1] == found[2]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [({"architecture": "llama"}, "no control vector"), ({"name": "blk.{}"}, "no control vector"),
     ({"vectors": {}}, "no control vector")],
)  # fmt: skip
def test_what_is_none(tmp_path, how, sentence):
    with pytest.raises(InputError, match=sentence):
        control_vector(write(tmp_path / "v.gguf", **how))


def test_no_file(tmp_path):
    (tmp_path / "v.gguf").write_text("nothing")
    with pytest.raises(FormatError, match="not a GGUF file"):
        control_vector(tmp_path / "v.gguf")
    with pytest.raises(InputError, match=r"w\.gguf"):
        control_vector(tmp_path / "w.gguf")


# -- interventions ---------------------------------------------------------------------------------

# Changed texts beside others: each writes what it would have written alone, whatever is shared.


BLOCK = 4
BEGIN = [*b"abbaabab" * 4]
TEXTS = st.tuples(st.integers(1, len(BEGIN)), st.sampled_from(["", "a", "b"])).map(
    lambda pair: (*BEGIN[: pair[0]], *pair[1].encode())
)
SPANS = st.sampled_from([((0, 99),), ((5, 5),), ((9, 99),), ((2, 3), (30, 31)), ()])
PLACED = st.builds(
    lambda factor, spans: PlacedIntervention(scale("L0", factor), "token", 0, 1, spans),
    st.sampled_from([1, 3, -2]), SPANS,
)  # fmt: skip
KNOCKED_OUT = st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 30)).map(
    lambda t: (t[0], t[0] + t[1], t[2])
)
BOUND = st.none() | st.builds(
    BoundInterventions,
    st.lists(PLACED, max_size=2).map(tuple),
    st.lists(KNOCKED_OUT, max_size=2).map(tuple),
)
REQUESTS = st.builds(
    MockRequest,
    TEXTS,
    stops=st.builds(StopParams, max_tokens=st.integers(1, 9)),
    run=st.builds(
        RunParams, kv_cache=st.booleans(),
        speculate=st.sampled_from(["off", "ngram", "jacobi", "draft"]), priority=st.integers(0, 1),
    ),
    interventions=BOUND,
)  # fmt: skip


def by_definition(request: MockRequest) -> list[int]:
    """Token by token: what each row stores, and what the last one sees of it."""
    given, tokens = request.interventions, [*request.prompt]
    placed, hidden = (given.activations, given.knocked_out) if given else ((), ())
    for _ in range(request.stops.max_tokens):
        stored = [float(token) for token in tokens]
        for one in placed:
            for first, last in one.spans:
                for p in range(first, min(last + 1, len(tokens))):
                    stored[p] *= one.intervention.number
        row = len(tokens) - 1
        for first, last, start in hidden:
            for p in range(first, min(last + 1, row)):
                if row >= start:
                    stored[p] = NOT_SEEN
        tokens.append(int(narrow(tuple(map(int, stored))).argmax()))
        if tokens[-1] == VOCAB - 1:
            break
    return tokens[len(request.prompt) :]


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=5), rows=st.integers(5, 40),
    kv_blocks=st.integers(24, 60), cache=st.booleans(), window=st.sampled_from([0, 5]),
    before=st.integers(0, 3),
)  # fmt: skip
def test_each_text_is_its_own(requests, rows, kv_blocks, cache, window, before):
    engine = make_engine(
        narrow, block=BLOCK, kv_blocks=kv_blocks, rows=rows, prefix_cache=cache, window=window,
        max_num_seqs=5, draft=narrow,
    )  # fmt: skip
    sequences, events = [], []
    for request in requests:
        sequences.append(request.add_to(engine))
        for _ in range(before):
            events += engine.step()
    while not engine.is_idle:
        events += engine.step()
    for request, sequence in zip(requests, sequences, strict=True):
        assert [*read_written(sequence, events).token_ids] == by_definition(request)
    assert engine.blocks.free == engine.blocks.count


def bound(first: int, factor: float = 3) -> BoundInterventions:
    change = Intervention("scale", "L0", factor)
    return BoundInterventions((PlacedIntervention(change, "token", 0, 1, ((first, 99),)),), ())


def cached(engine, interventions) -> int:
    request = MockRequest(tuple(BEGIN), stops=StopParams(max_tokens=1), interventions=interventions)
    return request.finish(engine).sequence.num_cached_tokens


def test_what_lies_before_the_first_change_is_shared_and_nothing_behind():
    engine = make_engine(narrow, block=BLOCK)
    whole = (len(BEGIN) - 1) // BLOCK * BLOCK
    assert [cached(engine, None), cached(engine, None)] == [0, whole]
    assert [cached(engine, bound(0)), cached(engine, bound(0))] == [0, whole]
    assert [cached(engine, bound(10)), cached(engine, bound(10))] == [8, whole]
    assert cached(engine, bound(10, 2)) == cached(engine, bound(11)) == 8
    assert cached(engine, BoundInterventions((), ((6, 9, 0),))) == 4  # from row 7 on
    assert cached(engine, BoundInterventions((), ((6, 9, 20),))) == 20
    assert cached(engine, None) == whole


def test_rows_before_the_first_change_run_with_the_others():
    engine = make_engine(narrow, block=BLOCK, rows=16, prefix_cache=False)
    stops = StopParams(max_tokens=2, ignore_eos=True)
    MockRequest(tuple(BEGIN[:8]), stops=stops).add_to(engine)
    MockRequest(tuple(BEGIN[:22]), stops=stops, interventions=bound(20)).add_to(engine)
    while not engine.is_idle:
        engine.step()
    assert engine.backend.runs == [16, 1, 14, 1]
