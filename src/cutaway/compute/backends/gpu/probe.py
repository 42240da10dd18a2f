"""Tests a device's arithmetic on numbers that are hard to round.

Knows the operations that all kernels are made of, and computes the right results with NumPy. A
driver's compiler may fuse, split or fold operations of WGSL, so each device is tested when it is
opened.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.gpu.device import OP_WORDS, Device
from cutaway.compute.backends.gpu.shaders import Kernel
from cutaway.errors import CutawayError

Words = NDArray[np.uint32]
Triple = tuple[Words, Words, Words]
PER_KIND = 1 << 11  # how many triples there are of each kind


class Operation(NamedTuple):
    """An operation of probe.wgsl, which names it by its index in ``OPERATIONS``.

    right    computes the right results with NumPy, from three arrays of float32
    domain   says for which of the triples the operation is tested
    between  computes an intermediate result, which may be a denormal even if inputs and result are
             none
    """

    name: str
    right: Callable[..., NDArray[np.generic]]
    domain: Callable[..., NDArray[np.bool_]] = lambda x, y, z: np.isfinite(x + y + z)
    between: Callable[..., NDArray[np.float32]] = lambda x, *_: x


def fuse(
    x: NDArray[np.float32], y: NDArray[np.float32], z: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return x · y + z, rounded once: in float64 the product is exact, the sum rounded to odd."""
    product, wide = x.astype(np.float64) * y, z.astype(np.float64)
    total = product + wide
    back = total - product
    error = (product - (total - back)) + (wide - back)
    is_even = total.view(np.uint64) & np.uint64(1) == 0
    beside = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & is_even, beside, total).astype(np.float32)


def _dots(x: NDArray[np.float32], y: NDArray[np.float32], _z: object) -> NDArray[np.int32]:
    a, b = (v.view(np.int8).reshape(-1, 4).astype(np.int32) for v in (x, y))
    total: NDArray[np.int32] = (a * b).sum(1, dtype=np.int32)
    return total


def _halves(x: NDArray[np.float32], *_: object) -> NDArray[np.float32]:
    low = (x.view(np.uint32) & np.uint32(0xFFFF)).astype(np.uint16)
    return low.view(np.float16).astype(np.float32)


OPERATIONS = (
    Operation("fused", fuse),
    Operation("hide(x * y) + z", lambda x, y, z: x * y + z, between=lambda x, y, _: x * y),
    Operation(
        "div", lambda x, y, _: x / y, lambda x, y, _: np.isfinite(x) & np.isfinite(y) & (y != 0)
    ),
    Operation("root", lambda x, *_: np.sqrt(x), lambda x, *_: np.isfinite(x) & (x >= 0)),
    Operation("half_to_float", _halves, lambda x, *_: np.isfinite(_halves(x))),
    Operation(
        "float_to_half",
        lambda x, *_: x.astype(np.float16).view(np.uint16).astype(np.uint32),
        lambda x, *_: np.isfinite(x),
    ),
    Operation("round", lambda x, *_: np.rint(x), lambda x, *_: np.abs(x) < 4e6),
    Operation("dot4I8Packed", _dots, lambda x, *_: np.ones(len(x), np.bool_)),
    Operation("add", lambda x, y, _: x + y),
    Operation("mul", lambda x, y, _: x * y),
)


class ProbeResult(NamedTuple):
    """How many results of an operation were wrong, and how many of these had no denormals."""

    operation: str
    wrong: int
    wrong_normal: int


def hard_triples(per_kind: int = PER_KIND) -> Iterator[Triple]:
    """Yield triples of 8 kinds: any, near 1, cancelling, far apart, halfway, tiny, small, usual."""
    draw = np.random.default_rng(1)

    def words() -> Words:
        return draw.integers(0, 1 << 32, per_kind, dtype=np.uint64).astype(np.uint32)

    def draw_near_one() -> Words:
        return np.uint32(0x3F800000) | (words() & np.uint32(0x80000FFF))

    def exponents(low: int, high: int) -> Words:
        return draw.integers(low, high, per_kind).astype(np.uint32) << np.uint32(23)

    yield words(), words(), words()
    x, y = draw_near_one(), draw_near_one()
    yield x, y, draw_near_one()
    yield x, y, (-(x.view(np.float32) * y.view(np.float32))).view(np.uint32)
    product = x.view(np.float32).astype(np.float64) * y.view(np.float32)
    scale = 2.0 ** draw.integers(1, 40, per_kind)
    far = np.round(product * scale) / scale * 2.0 ** draw.integers(20, 30, per_kind)
    yield x, y, far.astype(np.float32).view(np.uint32)
    whole = ((1 << 23) + (words() & np.uint32(0x7FFFFF))).astype(np.float32)
    odd = np.float32(0.5) * (1 + (words() & np.uint32(1)) * 2).astype(np.float32)
    below = (words() & np.uint32(0xFFFF)).astype(np.float32) * 2.0 ** draw.integers(
        -60, 1, per_kind
    )
    yield whole.view(np.uint32), odd.view(np.uint32), below.astype(np.float32).view(np.uint32)
    sign_and_fraction = np.uint32(0x807FFFFF)
    tiny = words() & np.uint32(0x80FFFFFF), words() & np.uint32(0xBFFFFFFF)
    yield (*tiny, words() & sign_and_fraction)
    small = (words() & sign_and_fraction) | exponents(40, 80)
    smaller = (words() & sign_and_fraction) | exponents(30, 90)
    yield small, smaller, words() & np.uint32(0x80FFFFFF)
    usual = [
        draw.standard_normal(per_kind) * 2.0 ** draw.integers(-12, 6, per_kind) for _ in range(3)
    ]
    a, b, c = (v.astype(np.float32).view(np.uint32) for v in usual)
    yield a, b, c


def all_triples(per_kind: int = PER_KIND) -> Triple:
    """Return the triples of all kinds, one after the other."""
    triples = list(hard_triples(per_kind))
    x, y, z = (np.concatenate([triple[i] for triple in triples]) for i in range(3))
    return x, y, z


def examine(device: Device, per_kind: int = PER_KIND) -> list[ProbeResult]:
    """Compute every operation on all triples on a device; count the wrong results of each."""
    x, y, z = all_triples(per_kind)
    lists = np.concatenate([x, y, z])
    buffers = [
        device.uniform(64), device.uniform(OP_WORDS * len(OPERATIONS)), device.storage(lists.size),
        device.storage(64), device.storage(x.size), device.storage(64), device.storage(64),
        device.storage(64),
    ]  # fmt: skip
    device.write(buffers[2], 0, lists)
    ops = np.zeros((len(OPERATIONS), OP_WORDS), np.uint32)
    ops[:, 0], ops[:, 1] = range(len(OPERATIONS)), x.size
    device.write(buffers[1], 0, ops)
    group, pipeline = device.bind(buffers), device.pipeline(Kernel("probe"))
    findings = []
    for i, operation in enumerate(OPERATIONS):
        device.dispatch(pipeline, group, i, (-(-x.size // 64), 1, 1))
        results = device.read(buffers[4], 0, 4 * x.size).view(np.uint32)
        findings.append(compare(operation, results, (x, y, z)))
    return findings


def answers(operation: Operation, triple: Triple) -> tuple[Words, NDArray[np.uint8]]:
    """Return an operation's right results, as words, and for each triple whether it is tested.

    0: it is not; 1: it is; 2: it is, and one of its numbers is a denormal
    """
    floats = [words.view(np.float32) for words in triple]
    with np.errstate(all="ignore"):
        right = np.ascontiguousarray(operation.right(*floats))
        is_asked, between = operation.domain(*floats), operation.between(*floats)
        if right.dtype == np.float32:
            is_asked = is_asked & np.isfinite(right)
    words = right.view(np.uint32) if right.itemsize == 4 else right.astype(np.uint32)
    numbers = *triple, between.view(np.uint32), words
    is_tiny = np.logical_or.reduce([is_denormal(part) for part in numbers])
    return words, np.where(is_asked, np.where(is_tiny, 2, 1), 0).astype(np.uint8)


def compare(operation: Operation, results: Words, triple: Triple) -> ProbeResult:
    """Count the results that are wrong."""
    words, kinds = answers(operation, triple)
    wrong = (kinds > 0) & (results != words)
    if operation.name == "round":
        wrong &= (results | words) & np.uint32(0x7FFFFFFF) != 0  # the sign of 0 is not relied on
    return ProbeResult(operation.name, int(wrong.sum()), int((wrong & (kinds == 1)).sum()))


def is_denormal(words: Words) -> NDArray[np.bool_]:
    """Return whether each number, given as its bits, is a denormal."""
    exponents, fractions = words & np.uint32(0x7F800000), words & np.uint32(0x7FFFFF)
    is_tiny: NDArray[np.bool_] = (exponents == 0) & (fractions != 0)
    return is_tiny


def choose_fused(device: Device) -> None:
    """Set ``fused`` to the fastest way that rounds a multiply-add once, and set ``flushes``.

    CutawayError if, with each of the ways, some operation has wrong bits.
    """
    for way in device.ways:
        device.fused = way
        findings = examine(device)
        bad = [finding for finding in findings if finding.wrong_normal]
        if not bad:
            device.flushes = any(finding.wrong for finding in findings)
            return
    raise CutawayError(
        f"the GPU {device.name} computes other bits than the CPU in "
        f"{', '.join(finding.operation for finding in bad)}: take another backend"
    )
