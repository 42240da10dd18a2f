"""No buffer is written while a thread may still read what it held."""

from hypothesis import given
from hypothesis import strategies as st

from cutaway.compute.backends.cpu.compile import Lowered
from cutaway.compute.backends.cpu.emit import Placement


def check(lowered, output):
    placed = Placement(lowered, output)
    holds: dict[int, str] = {}
    unmet: set[int] = set()  # buffers that some thread may still be reading
    for op in lowered:
        for name in op.reads:
            assert holds[placed.where[name]] == name
        targets = {placed.where[name] for name, _, _ in op.writes}
        assert not targets & unmet
        kept = {placed.where[name] for name in op.reads if name != op.in_place}
        assert not targets & kept
        for name, width, is_quantised in op.writes:
            slot = placed.where[name]
            holds[slot] = name
            assert placed.slots[slot][0] >= width
            assert placed.slots[slot][1] == is_quantised
        alone = all(is_quantised for _, _, is_quantised in op.writes)
        unmet = unmet | {placed.where[name] for name in op.reads} if alone else set()
    return placed


def op(reads, writes, in_place=None):
    return Lowered("any", reads, writes, in_place=in_place)


def test_a_buffer_that_was_quantised_is_not_free_for_the_next_op():
    """Found by Gemma's fingerprint: a thread quantised what another already wrote over."""
    lowered = [
        op([], [("x", 64, False)]),
        op(["x"], [("x as int8", 64, True)]),
        op(["x as int8"], [("y", 64, False)]),
        op(["y"], [("z", 64, False)]),
    ]
    placed = check(lowered, "z")
    assert placed.where["x"] != placed.where["y"]


def test_what_becomes_the_output_has_a_buffer_of_its_own():
    lowered = [
        op([], [("x", 96, False)]),
        op(["x"], [("logits", 64, False)]),
        op(["logits"], [("capped", 64, False)], in_place="logits"),
    ]
    placed = check(lowered, "capped")
    assert placed.where["capped"] == placed.where["logits"]
    assert placed.slots[placed.where["capped"]] == (64, False)


@given(st.data())
def test_any_plan(data):
    draw = data.draw
    lowered, floats, acts = [op([], [("t0", 32, False)])], ["t0"], []
    for i in range(1, draw(st.integers(2, 25))):
        kind = draw(st.sampled_from(["float", "both", "quantise", "in place"]))
        if kind == "quantise" and floats:
            x = draw(st.sampled_from(floats))
            acts.append(f"a{i}")
            lowered.append(op([x], [(f"a{i}", 32, True)]))
        elif kind == "in place" and len(floats) > 1:
            x = floats.pop(draw(st.integers(0, len(floats) - 1)))
            a = draw(st.sampled_from(floats))
            lowered.append(op([a], [(f"a{i}x", 32, True)]))  # so that threads have met since x
            lowered.append(op([f"a{i}x"], [(f"m{i}", 32, False)]))
            lowered.append(op([a, x], [(f"t{i}", 32, False)], in_place=x))
            floats.append(f"t{i}")
        else:
            reads = draw(st.lists(st.sampled_from(floats + acts), min_size=1, max_size=3))
            writes = [(f"t{i}", 32 * draw(st.integers(1, 3)), False)]
            if kind == "both":
                writes.append((f"b{i}", 32, True))
                acts.append(f"b{i}")
            lowered.append(op(reads, writes))
            floats.append(f"t{i}")
    lowered.append(op([floats[-1]], [("out", 16, False)]))
    check(lowered, "out")
