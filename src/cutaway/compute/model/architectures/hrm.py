"""HRM-Text: two stacks of layers that run in turn over each token, again and again.

``files/huggingface/families/hrm.py`` reads its folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.compute.model.architectures.llama import LayerWiring, llama_layer
from cutaway.compute.model.architectures.parts import embedding, head
from cutaway.compute.model.config import MOST_DEPTH, Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class HrmText(ModelConfig):
    """The config of HRM-Text.

    The first half of the layers is the fast stack, the second half the slow one.

    slow_cycles  how often the slow stack runs
    fast_cycles  how often the fast stack runs before each run of the slow stack
    """

    slow_cycles: int
    fast_cycles: int


def _read_hrm_text(read: MetadataReader, c: ModelConfig) -> HrmText:
    slow, fast = read.size("slow_cycles"), read.size("fast_cycles")
    if c.layers % 2:
        raise FormatError(f"{read.prefix}.block_count is {c.layers}, which are no two equal stacks")
    if (depth := c.layers // 2 * slow * (fast + 1)) > MOST_DEPTH:
        raise FormatError(
            f"{read.prefix}.slow_cycles and fast_cycles make the model {depth} layers deep; up to "
            f"{MOST_DEPTH} are supported"
        )
    attention = "prefix-lm" if read.flag("attention.prefix_lm", False) else c.attention
    if attention == "prefix-lm" and any(c.windows):
        raise FormatError(
            f"{read.prefix}.attention.prefix_lm is true, and layers have windows: a prompt that is "
            "read to both sides is supported without them"
        )
    return c.as_kind(HrmText, attention=attention, slow_cycles=slow, fast_cycles=fast)


def _norm(g: Graph, x: Tensor, _: str, eps: float) -> Tensor:
    return g.rms_norm(x, "", eps)


_WIRING = LayerWiring(norm=_norm, gate=Graph.sigmoid_mul)


def hrm_text(g: Graph, c: HrmText) -> Tensor:
    """Build HRM-Text (Sapient 2026; HRM: Wang et al. 2025, arXiv 2506.21734).

    Both stacks are Llama's layers, with gates and with norms without weights. Each run of a stack
    reads the sum of the fast and the slow state; its normed result becomes its own state.
    """
    x = slow = embedding(g, c)  # (M, hidden)
    fast, stack, depth = g.embed_types("fast_init"), c.layers // 2, 0
    for cycle in range(c.slow_cycles):
        if cycle:
            slow = g.rms_norm(x, "", c.norm_eps, name=f"slow.{cycle}")
        for _ in range(c.fast_cycles):
            x = _run_stack(g, c, g.add(fast, slow), 0, depth)
            depth += stack
            fast = g.rms_norm(x, "", c.norm_eps, name=f"fast.{depth // stack - cycle}")
        x = _run_stack(g, c, g.add(slow, fast), stack, depth)
        depth += stack
    return head(g, c, g.rms_norm(g.logit_rows(x), "", c.norm_eps))


def _run_stack(g: Graph, c: ModelConfig, x: Tensor, first: int, depth: int) -> Tensor:
    """Add a run of a stack: (M, hidden) -> (M, hidden). first: its first layer."""
    for layer, _ in enumerate(g.layers(c.layers // 2, first, depth=depth), first):
        x = llama_layer(g, c, x, layer, c.rope, wiring=_WIRING)
    return x


ROWS: Mapping[str, Architecture] = {"hrm-text": Architecture(hrm_text, extend=_read_hrm_text)}
