"""The llama family: llama, smollm, mistral and their many descendants."""

from cutaway.model.config import ModelConfig
from cutaway.model.graph import Graph, Tensor


def llama(g: Graph, c: ModelConfig) -> Tensor:
    """Pre-norm decoder with rotary positions, grouped heads and a gated MLP.

    Touvron et al. 2023, arXiv 2302.13971. Returns the logits, (L, vocab).
    """

    def rope(x: Tensor) -> Tensor:
        return g.rope(
            x, head_dim=c.head_dim, rope_dim=c.rope_dim, base=c.rope_base, stretch=c.rope_stretch,
            factors="rope_freqs" if g.has("rope_freqs.weight") else None,
        )  # fmt: skip

    x = g.embed("token_embd")  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        q = rope(g.linear(h, f"{p}attn_q"))  # (M, heads·head_dim)
        k = rope(g.linear(h, f"{p}attn_k"))  # (M, kv_heads·head_dim)
        v = g.linear(h, f"{p}attn_v")
        a = g.attend(q, k, v, layer=layer, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim)
        x = g.add(x, g.linear(a, f"{p}attn_output"))

        h = g.rms_norm(x, f"{p}ffn_norm", c.norm_eps)
        up = g.silu_mul(g.linear(h, f"{p}ffn_gate"), g.linear(h, f"{p}ffn_up"))
        x = g.add(x, g.linear(up, f"{p}ffn_down"))  # (M, hidden)

    x = g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps)
    return g.linear(x, "output" if g.has("output.weight") else "token_embd")
