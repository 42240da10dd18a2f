"""LFM2.5's encoders, made of transformers' LFM2 by hand.

transformers 5.24 has the causal model alone; the publisher's classes change its masks and the
padding of its convolutions.
"""

from types import SimpleNamespace
from typing import Any

from support.families.recurrent import RECURRENT

CHANGED = {
    "lfm2-encoder": RECURRENT["lfm2"]._replace(kind="AutoModel"), "lfm2-masked": RECURRENT["lfm2"],
}  # fmt: skip
"""The rows of models of transformers that are changed by hand; the latter has a head."""


def see_both_sides(model: Any) -> Any:
    """Change a causal LFM2, so that each token sees the whole text; return it."""
    if not hasattr(model, "lm_head"):
        return _change_body(model)
    _change_body(model.model)

    def forward(self: Any, ids: Any) -> Any:
        return SimpleNamespace(logits=self.lm_head(self.model(ids).last_hidden_state))

    model.__class__ = type("Lfm2BidirectionalForMaskedLM", (type(model),), {"forward": forward})
    return model


def _change_body(model: Any) -> Any:
    causal = type(model)

    def forward(self: Any, ids: Any, attention_mask: Any = None) -> Any:
        import torch

        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        hides = (1.0 - mask[:, None, None, :].float()) * -1e30
        masks = {"full_attention": hides.expand(-1, 1, ids.shape[1], -1), "conv": None}
        return causal.forward(self, ids, attention_mask=masks, use_cache=False)

    model.__class__ = type("Lfm2BidirectionalModel", (causal,), {"forward": forward})
    for layer in model.layers:
        if layer.is_attention_layer:
            layer.self_attn.is_causal = False
        else:
            layer.conv.forward = _make_forward(layer.conv)
    return model


def _make_forward(conv: Any) -> Any:
    """Return the forward of a short convolution with as many zeros before as after a text."""
    from torch.nn.functional import conv1d

    def forward(hidden_states: Any, **_: Any) -> Any:
        b, c, x = conv.in_proj(hidden_states).transpose(-1, -2).chunk(3, dim=-2)
        weight, bias = conv.conv.weight, conv.conv.bias
        y = c * conv1d(b * x, weight, bias, padding=weight.shape[-1] // 2, groups=x.shape[1])
        return conv.out_proj(y.transpose(-1, -2))

    return forward
