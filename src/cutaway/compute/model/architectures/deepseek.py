"""DeepSeek V2 and V3: a latent in place of keys and values (arXiv 2405.04434, 2412.19437)."""

from cutaway.compute.model.architectures.parts import embedding, feed_forward, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.errors import FormatError

_EPS = 1e-6  # of the norms within attention, whatever the others' is


def deepseek2(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with latent attention, and experts behind the first layers. Returns the logits."""
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        x = deepseek2_layer(g, c, x, layer)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def deepseek2_layer(g: Graph, c: ModelConfig, x: Tensor, layer: int) -> Tensor:
    """One of them: (M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
    x = g.add(x, _latent_attention(g, c, h, layer))
    h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
    for m in feed_forward(g, c, h, layer):
        x = g.add(x, m)
    return x


def _latent_attention(g: Graph, c: ModelConfig, h: Tensor, layer: int) -> Tensor:
    """Attention to latents: (M, hidden) -> (M, hidden).

    A head's key is K·latent beside the rotated numbers that all heads share, its value V·latent.
    Since q · K·latent = Kᵀq · latent, K goes into the query and V behind the attention, and all
    heads share one key, of which the latent is the value. Prompts and decoding alike.
    """
    if c.latent is None:
        raise FormatError("the model file lacks the metadata key attention.kv_lora_rank")
    p, (rank, rotated, keys, _) = f"blk.{layer}.", c.latent
    q = _queries(g, h, p)  # (M, heads·(keys + rotated))
    absorbed = g.heads_linear(g.pick(q, keys + rotated, 0, keys), f"{p}attn_k_b")
    q = g.join(g.pick(q, keys + rotated, keys, keys + rotated), absorbed, c.heads)

    latent = g.linear(h, f"{p}attn_kv_a_mqa", (0, rank))
    shared = g.linear(h, f"{p}attn_kv_a_mqa", (rank, rank + rotated))
    k = g.join(shared, g.rms_norm(latent, f"{p}attn_kv_a_norm", _EPS), 1)  # (M, rotated + rank)

    q, k = (g.rope(each, c.rope, head_dim=c.head_dim) for each in (q, k))
    a = g.attend_latent(
        q, k, layer=layer, heads=c.heads, first=rotated, scale=c.attention_scale
    )  # (M, heads·rank)
    return g.linear(g.heads_linear(a, f"{p}attn_v_b"), f"{p}attn_output")


def _queries(g: Graph, h: Tensor, p: str) -> Tensor:
    """Through one matrix, or two with a norm between them."""
    if g.has(f"{p}attn_q.weight"):
        return g.linear(h, f"{p}attn_q")
    narrow = g.rms_norm(g.linear(h, f"{p}attn_q_a"), f"{p}attn_q_a_norm", _EPS)
    return g.linear(narrow, f"{p}attn_q_b")
