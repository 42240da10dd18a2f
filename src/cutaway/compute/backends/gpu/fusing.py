"""Finds neighbouring calls that one kernel can compute, so that a step has fewer dispatches.

Knows which calls are fused, and where quant blocks then go; the modules matrices, attention, states
and experts know how their kernels compute a fused call. All results are still written, except
normed keys, which are read from KV blocks.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cutaway.compute import calls
from cutaway.compute.backends.gpu import attention, matrices
from cutaway.compute.backends.gpu.program import Program
from cutaway.compute.calls import Call


class Fusion(NamedTuple):
    """A call, and the calls around it that its kernel also computes.

    norms       the norms of heads' queries or keys, before an attention
    quantising  the call that turns the result into quant blocks
    ending      the elementwise op on the result
    """

    call: Call
    norms: Sequence[calls.Normalise] = ()
    quantising: calls.Normalise | None = None
    ending: calls.Elementwise | None = None


def fuse(plan: Sequence[Call], program: Program) -> Iterator[Fusion]:
    """Yield a plan's calls, fused; program: the caller adds each call to it as it is yielded."""
    replacements = dict[int, int]()  # tensor of quant blocks -> the tensor that has them instead
    at = 0
    while at < len(plan):
        norms = _norms_of_attention(plan, at)
        at += len(norms) + 1
        call = _read_replaced(plan[at - 1], replacements)
        fusion = Fusion(call, norms)
        following = plan[at] if at < len(plan) else None
        if isinstance(following, calls.Normalise) and _can_quantise(program, call, following):
            quantising = _replace_output(program, call, following, replacements)
            fusion = fusion._replace(quantising=quantising)
            at += 1
        elif isinstance(following, calls.Elementwise) and _can_end(program, call, following):
            fusion = fusion._replace(ending=following)
            at += 1
        if isinstance(call, calls.Normalise):
            replacements.pop(call.out.act, None)
        yield fusion


def _norms_of_attention(plan: Sequence[Call], at: int) -> list[calls.Normalise]:
    """Return the norms of heads that begin at a call and that the attention after can compute."""
    norms = list[calls.Normalise]()
    for call in plan[at : at + 3]:
        if isinstance(call, calls.AttendCall) and attention.can_normalise(call, norms):
            return norms
        if not isinstance(call, calls.Normalise):
            break
        norms.append(call)
    return []


def _can_quantise(program: Program, call: Call, following: calls.Normalise) -> bool:
    norm, (floats, act) = following.norm, following.out
    if norm.weight.size or norm.bias.size or floats[0] >= 0 or act < 0:
        return False
    if isinstance(call, calls.AttendCall):
        width = call.shape.heads * call.shape.value_width
        is_whole = call.views[3] == following.x and width == following.width
        return is_whole and not following.late and attention.can_quantise(call)
    if isinstance(call, calls.LinearCall) and matrices.can_quantise(program, call):
        width = program.matrices[call.parts[0].matrix].rows
        is_whole = call.parts[0].out == following.x and width == following.width
        reads_own = call.x.act == _own_tensor(program, width)
        return is_whole and call.late == following.late and not reads_own
    return False


def _replace_output(
    program: Program, call: Call, quantising: calls.Normalise, replacements: dict[int, int]
) -> calls.Normalise:
    """Return the quantising; its blocks go elsewhere if old ones in their place are still read."""
    replacements.pop(quantising.out.act, None)
    if isinstance(call, calls.LinearCall):  # other workgroups read its input until the end
        replacements[quantising.out.act] = _own_tensor(program, quantising.width)
    return quantising._replace(out=_replace_act(quantising.out, replacements))


def _own_tensor(program: Program, width: int) -> int:
    """Return the tensor for quant blocks of results of this width that gates have."""
    return program.share_tensor(f"gated {width}", width, quantised=True).tensor


def _can_end(program: Program, call: Call, following: calls.Elementwise) -> bool:
    """Whether a call's kernel can compute the elementwise op after it on each of its numbers."""
    match call:
        case calls.Normalise(late=late, width=width, out=calls.Places(floats=out, act=act)):
            if out[0] < 0 or act >= 0:
                return False
        case calls.ConvCall(out=out):
            late, width = False, call.weights.width
        case calls.ExpertsCall():
            late, out = call.arguments.late, call.arguments.out
            width = program.matrices[call.experts[0].down.matrix].rows
        case _:
            return False
    reads = out in {following.a, following.b}
    is_plain = late == following.late and width == following.width and not following.spread
    return reads and is_plain


def _read_replaced(call: Call, replacements: dict[int, int]) -> Call:
    """Return the call, changed so that it reads quant blocks where they were written last."""
    if isinstance(call, calls.LinearCall):
        return call._replace(x=_replace_act(call.x, replacements))
    if isinstance(call, calls.ExpertsCall):
        arguments = call.arguments
        x = _replace_act(arguments.x, replacements)
        return call._replace(arguments=arguments._replace(x=x))
    return call


def _replace_act(places: calls.Places, replacements: dict[int, int]) -> calls.Places:
    return places._replace(act=replacements.get(places.act, places.act))
