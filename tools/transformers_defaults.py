"""The defaults of transformers for keys that a config.json lacks, by model_type, as JSON.

    F=src/cutaway/files/huggingface/families/class_defaults.json
    python tools/transformers_defaults.py > $F

The script needs transformers, without torch. It writes a line per model_type: the defaults of its
class's fields; for a model that reads pictures, those of its text part. It leaves out keys that do
not affect the computation, and sizes without which a folder is broken. A key whose value follows
from others (layer_types, head_dim) is null, as in the class before it computes the value.
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
    """The defaults of a model_type, and of its text part if it has one."""
    outer = CONFIG_MAPPING[name]
    text = outer.sub_configs.get("text_config")
    if text is None:
        return [(name, defaults(outer))]
    if text is AutoConfig:  # which its part for text says: it has a line of its own
        return []
    tied = {f.name: f.default for f in dataclasses.fields(outer) if f.name == "tie_word_embeddings"}
    return [(name, defaults(text) | tied), (text.model_type, defaults(text))]


def defaults(kind: Any) -> dict[str, Any]:
    """A class's defaults: fields, rotary bases and shares, and other names of keys."""
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
    """Rotary positions in the keys of old files, if they are not scaled."""
    whole = made.get("full_attention", made)
    each = [part for part in made.values() if isinstance(part, dict)] or [made]
    kinds = {part.get("rope_type", part.get("type")) for part in each}
    shares = {part.get("partial_rotary_factor") for part in each}
    if kinds != {"default"} or len(shares) > 1:
        return {"rope_parameters": made}
    keys = ("rope_theta", "partial_rotary_factor")
    return {"rope_parameters": None} | {key: whole[key] for key in keys if key in whole}


if __name__ == "__main__":
    main()
