"""Small random assistants of Gemma 4, made by transformers and saved as folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.random_models import row, shake

TARGET = "gemma4"
"""The model for which they draft, by its name in ``random_models``."""


def save_assistant(
    folder: Path,
    change: Callable[[dict[str, Any]], None] = lambda _weights: None,
    *,
    kind: str = "Gemma4Assistant",
    tied: dict[str, Any] | None = None,
    **values: Any,
) -> Any:
    """Write an assistant; return transformers' model, in eval mode.

    change: changes the weights, torch tensors by name
    tied: values of the assistant beside those of its layers
    values: values of its layers
    """
    import torch
    import transformers

    torch.manual_seed(3)
    text = "Gemma4UnifiedTextConfig" if "Unified" in kind else "Gemma4TextConfig"
    layers = {
        **row(TARGET).values,
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "final_logit_softcapping": None,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        text_config=getattr(transformers, text)(**{**layers, **values}).to_dict(),
        backbone_hidden_size=row(TARGET).values["hidden_size"], **(tied or {}),
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    shake(model, np.random.default_rng(3))
    if model.masked_embedding is not None:
        size = model.masked_embedding.token_ordering.numel()
        model.masked_embedding.token_ordering.copy_(torch.randperm(size))
    with torch.no_grad():
        change(dict(model.named_parameters()))
    model.save_pretrained(folder)
    return model
