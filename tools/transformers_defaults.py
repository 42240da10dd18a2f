"""What transformers takes for each key that a config.json lacks, by model_type, as JSON.

    F=src/cutaway/files/huggingface/families/class_defaults.json
    python tools/transformers_defaults.py > $F

It wants transformers, without torch. A line per model_type: the defaults of its class's fields, of
a model that reads pictures those of its part for text. Keys that say nothing of what is computed
are left out, and sizes without which a folder is broken. Keys whose value follows from others
(layer_types, head_dim) are null, as the class has them before it computes them.
"""

import dataclasses
import json
import re
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from cutaway.files.huggingface.families import FAMILIES

BROKEN_WITHOUT = {
    "vocab_size", "hidden_size", "n_embd", "dim", "num_hidden_layers", "n_layer", "n_layers"
}  # fmt: skip
UNREAD = re.compile(
    r".*(_token_id|dropout.*|pdrop|initializer.*|_cache.*|aux_loss_coef|_router_logits|cutoff_factor"
    r"|pretraining_tp|chunk_size|residual_in_fp32|rescale_prenorm_residual|_kernels|_dtype|_cache"
    r"|logits_to_keep|time_step_.*|z_loss_.*)|summary_.*|sparse_pred.*|mtp_.*|legacy"
    r"|reorder_and_upcast_attn|deterministic_flash_attn|gradient_checkpointing"
)
READ = {"attention_chunk_size", "conv_L_cache"}  # although it looks like one of those
BASE = {field.name for field in dataclasses.fields(PreTrainedConfig)}


def main() -> None:
    """Print the table."""
    lines = []
    for name in sorted(FAMILIES):
        if name in CONFIG_MAPPING:
            lines += [f"{json.dumps(key)}: {json.dumps(values)}" for key, values in tables(name)]
    print("{\n" + ",\n".join(dict.fromkeys(lines)) + "\n}")


def tables(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Of a model_type, and of its part for text where it has one."""
    outer = CONFIG_MAPPING[name]
    text = outer.sub_configs.get("text_config")
    if text is None:
        return [(name, defaults(outer))]
    if text is AutoConfig:  # which its part for text says: it has a line of its own
        return []
    tied = {f.name: f.default for f in dataclasses.fields(outer) if f.name == "tie_word_embeddings"}
    return [(name, defaults(text) | tied), (text.model_type, defaults(text))]


def defaults(kind: Any) -> dict[str, Any]:
    """Of a class: its fields, its bases and shares of rotary positions, its keys' other names."""
    values = {
        field.name: value_of(field) for field in dataclasses.fields(kind)
        if field.name not in BASE | BROKEN_WITHOUT
        and (field.name in READ or not UNREAD.fullmatch(field.name))
    }  # fmt: skip
    made = getattr(kind(), "rope_parameters", None)
    if made:
        values |= {"rope_theta": kind.default_theta} | rope(made)
    aliases = {k: v for k, v in kind.attribute_map.items() if {k, v} & {*values}}
    return values | ({"attribute_map": aliases} if aliases else {})


def value_of(field: Any) -> Any:
    """A field's default."""
    made = field.default_factory
    return made() if made is not dataclasses.MISSING else field.default


def rope(made: dict[str, Any]) -> dict[str, Any]:
    """As old files have it, in keys of their own, where it is not scaled."""
    whole = made.get("full_attention", made)
    each = [part for part in made.values() if isinstance(part, dict)] or [made]
    if any(part.get("rope_type", part.get("type")) != "default" for part in each):
        return {"rope_parameters": made}
    keys = ("rope_theta", "partial_rotary_factor")
    return {"rope_parameters": None} | {key: whole[key] for key in keys if key in whole}


if __name__ == "__main__":
    main()
