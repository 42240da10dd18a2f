"""Every family's tensors have GGUF's names, and GGUF's order of numbers."""

import re

import gguf
import numpy as np
import pytest

from cutaway.files.huggingface import HuggingFaceFolder

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file

from support.random_models import FAMILIES, save

FACTORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


# In gguf's table minicpm3 has one matrix, and bitnet the names of old files; the converter's code
# names and joins tensors of the others.
OTHER_NAMES = ("minicpm3", "bitnet", "gemma3n", "kimi-linear")
CONVERTED = [  # the others have no name in gguf's table
    name for name, row in FAMILIES.items()
    if row.architecture in {*gguf.MODEL_ARCH_NAMES.values()} - {*OTHER_NAMES}
]  # fmt: skip


@pytest.fixture(scope="module", params=CONVERTED)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save(request.param, path)
    return request.param, HuggingFaceFolder(path), load_file(path / "model.safetensors")


def converted(architecture, stored):
    """GGUF's names by the table of llama.cpp's converter -> the files' tensors: one, or experts."""
    key = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(key, 8)
    found = {}
    for name, numbers in of_text(stored):
        expert = re.search(r"(?:experts|norms)\.(\d+)\.", name)
        merged = re.sub(r"\.norms\.\d+", "", re.sub(r"experts\.\d+\.", "experts.", name))
        if "block_sparse_moe.experts" in name:  # what the converter calls mixtral's
            merged = merged.replace("model.", "").replace("block_sparse_moe", "feed_forward")
        if "feed_forward.experts" in name and "_proj" not in name:  # not llama 4's
            merged = merged.replace("model.", "")
        if architecture == "bloom":
            merged = merged.removeprefix("transformer.")
        if "mixer.experts" in name:
            merged = merged.replace("backbone", "model").replace("mixer", "mlp")
        if "in_proj_qkvz" in name:  # one matrix for two of GGUF's
            for one in ("qkv", "gate"):
                layer = re.search(r"layers\.(\d+)", name)[1]
                found[f"blk.{layer}.attn_{one}.weight"] = {0: numbers}
            continue
        new = name if name.startswith("blk.") else names.get_name(merged, (".weight", ".bias"))
        assert new is not None, name
        if "pre_ff_layernorm" in name:  # as other norms are called
            new = f"{new.removesuffix('.weight')}.weight"
        found.setdefault(new, {})[int(expert[1]) if expert else 0] = numbers
    return {new: [numbers[i] for i in sorted(numbers)] for new, numbers in found.items()}


DELTA_SIZES = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
INTERLEAVED = ("llama", "olmo", "arcee", "mistral3", "smollm3", "granite", "granitemoe")
TEXT = {
    "language_model.lm_head": "lm_head", "model.language_model.": "model.",
    ".dt_bias": ".dt_proj.bias",  # Qwen 3.5's, as the converter calls it
    "language_model.model.": "model.", "shared_mlp.output_linear": "mlp.down_proj",
    "e_score_correction_bias": "e_score_correction.bias", ".expert_bias": ".expert_bias.bias",
    ".sinks": ".sinks.weight", ".attention_sink_bias": ".attention_sink_bias.weight",
    "block_sparse_moe.input_linear.weight": "mlp.experts.gate_up_proj",
    "block_sparse_moe.output_linear.weight": "mlp.experts.down_proj",
}  # fmt: skip


def of_text(stored):
    """Without what reads pictures, by the names of models without that; two matrices apart."""
    is_mixture = any("block_sparse_moe.input" in name for name in stored)
    for stored_name, numbers in stored.items():
        name = stored_name
        for old, new in TEXT.items():
            name = name.replace(old, new)
        if re.match(r"(model\.)?(visual|vision_tower|multi_modal_projector)\.", name):
            continue
        if ".mlp.act_fn." in name:  # metadata
            continue
        if is_mixture:  # granite's
            name = name.replace("mlp.down_proj", "mlp.shared_experts.down_proj")
        if name.endswith("gate_up_proj_bias"):
            for i, part in enumerate(("gate", "up")):
                yield name.replace("gate_up_proj_bias", f"{part}_proj.bias"), numbers[:, i::2]
            continue
        name = name.replace("down_proj_bias", "down_proj.bias")
        if "e_score" in name:
            yield name, numbers.reshape(-1)
            continue
        if found := OF_GEMMA4.get(re.sub(r".*layers\.\d+\.", "", name)):
            yield from gemma4_s(re.search(r"layers\.(\d+)", name)[1], found, numbers)
            continue
        if name.endswith("kv_b_proj.weight"):  # of each head 32 rows for keys, 64 for values
            each = numbers.reshape(-1, 96, numbers.shape[1])
            yield name.replace("kv_b", "k_b"), each[:, :32].swapaxes(1, 2)
            yield name.replace("kv_b", "v_b"), each[:, 32:]
            continue
        if "feed_forward.experts" in name and numbers.ndim == 3:  # llama 4's are turned
            is_jamba = any(".mamba." in other for other in stored)
            yield from experts_apart(name, numbers if is_jamba else numbers.swapaxes(1, 2))
            continue
        if ".experts." in name and numbers.ndim == 3:
            yield from experts_apart(
                name, turned(numbers, name) if f"{name}_bias" in stored else numbers
            )
            continue
        if "shared_mlp.input_linear" not in name:
            yield name, numbers
            continue
        for half, part in zip(("gate", "up"), np.split(numbers, 2), strict=True):
            place = "mlp.shared_experts" if is_mixture else "mlp"
            yield name.replace("shared_mlp.input_linear", f"{place}.{half}_proj"), part


OF_GEMMA4 = {
    "layer_scalar": ["layer_output_scale.weight"], "router.scale": ["ffn_gate_inp.scale"],
    "router.per_expert_scale": ["ffn_down_exps.scale"],
    "experts.gate_up_proj": ["ffn_gate_exps.weight", "ffn_up_exps.weight"],
    "experts.down_proj": ["ffn_down_exps.weight"],
}  # fmt: skip


def gemma4_s(layer, names, numbers):
    """By GGUF's names, since the table lacks some of them."""
    parts = np.split(numbers, len(names), axis=1 if len(names) > 1 else 0)
    yield from ((f"blk.{layer}.{new}", part) for new, part in zip(names, parts, strict=True))


def turned(numbers, name):
    """gpt-oss's experts are the other way round, and an output of gate and one of up take turns."""
    numbers = numbers.swapaxes(1, 2)
    turns = [*range(0, numbers.shape[1], 2), *range(1, numbers.shape[1], 2)]
    return numbers[:, turns] if "gate_up" in name else numbers


def experts_apart(name, numbers):
    layer, _, kind = name.partition(".experts.")
    for i, each in enumerate(numbers):
        parts = {"down": each} if kind == "down_proj" else dict(
            zip(("gate", "up"), np.split(each, 2), strict=True))  # fmt: skip
        yield from ((f"{layer}.experts.{i}.{k}_proj.weight", x) for k, x in parts.items())


def stored_as_gguf(family, name, x, heads, kv_heads):
    """What the convention does to one tensor, row by row."""
    architecture = FAMILIES[family].architecture
    base = name.rsplit(".", 1)[0].split(".")[-1]
    if family != "helium" and architecture in INTERLEAVED and base in ("attn_q", "attn_k"):
        count = heads if base == "attn_q" else kv_heads
        size = len(x) // count
        rows = [h * size + half * size // 2 + i
                for h in range(count) for i in range(size // 2) for half in (0, 1)]  # fmt: skip
        return x[rows]
    if family == "falcon-two-norms" and base == "attn_qkv":  # groups of two queries, k and v
        return np.concatenate([x.reshape(2, 4, -1, *x.shape[1:])[:, i].reshape(-1, *x.shape[1:])
                               for i in (slice(0, 2), 2, 3)])  # fmt: skip
    if architecture in ("gptneox", "bloom") and base == "attn_qkv":
        size = len(x) // heads // 3
        rows = [h * 3 * size + part * size + i
                for part in range(3) for h in range(heads) for i in range(size)]  # fmt: skip
        return x[rows]
    if architecture in ("granitehybrid", "nemotron_h", "nemotron_h_moe", "mamba2", "falcon-h1"):
        x = multiplied(FAMILIES[family].values, base, x) if architecture == "falcon-h1" else x
        return of_mamba(family, name, x, heads, np.max(kv_heads))
    if architecture in ("mamba", "jamba") and name.endswith("ssm_a"):
        return -np.exp(x)
    if architecture in ("mamba", "jamba") and base == "ssm_conv1d":
        return x.squeeze(1) if x.ndim == 3 else x
    adds_one = architecture.startswith(("gemma", "nemotron")) and architecture != "gemma4"
    if adds_one and name.endswith("norm.weight"):
        return x + np.float32(1)
    if architecture == "qwen3next":
        return of_qwen3_next(FAMILIES[family].values, name, base, x)
    if architecture in ("qwen35", "qwen35moe"):
        return of_qwen35(FAMILIES[family].values, name, base, x)
    if base == "conv":
        return x.squeeze(1) if x.ndim == 3 else x
    if architecture == "gpt2" and x.ndim == 2 and base not in ("token_embd", "position_embd"):
        return x.T
    return x


def multiplied(values, base, x):
    """A Falcon-H1's matrix by its factors; of ssm_in by those of z, x, B, C and dt."""
    one = {name: values[f"{name}_multiplier"] for name in (
        "key", "attention_in", "attention_out", "ssm_in", "ssm_out")}  # fmt: skip
    gate, down = values["mlp_multipliers"]
    reads = one["attention_in"]
    factors = {
        "attn_q": reads, "attn_k": reads * one["key"], "attn_v": reads,
        "attn_output": one["attention_out"], "ssm_out": one["ssm_out"],
        "ffn_gate": gate, "ffn_down": down,
    }  # fmt: skip
    if base == "ssm_in":
        each = [one["ssm_in"] * factor for factor in values["ssm_multipliers"]]
        return x * np.repeat(np.array(each, np.float32), [128, 128, 48, 48, 4])[:, None]
    return x * np.float32(factors.get(base, 1))


def of_mamba(family, name, x, heads, kv_heads):
    """A row for each head, and for each group of a norm; A is -e^A_log."""
    base = name.removesuffix(".weight").split(".")[-1]
    if base in ("ssm_a", "ssm_d"):
        return (x if base == "ssm_d" else -np.exp(x))[:, None]
    if base == "ssm_norm":
        return x.reshape(1 if family == "mamba2" else 2, -1)
    if base == "ssm_conv1d" and x.ndim == 3:
        return x[:, 0]
    if base not in ("attn_q", "attn_k") or family.startswith(("nemotron", "falcon")):
        return x
    count = heads if base == "attn_q" else kv_heads
    size = len(x) // count
    half = size // 4 if family == "bamba" else size // 2  # of the rows that are rotated
    one = [i + part * half for i in range(half) for part in (0, 1)] + [*range(2 * half, size)]
    return x[[head * size + i for head in range(count) for i in one]]


def of_qwen3_next(values, name, base, x):
    """Norms are stored less 1; q, k, v and the gates of a key head are side by side."""
    k_heads, heads, keys, size = (values[f"linear_{one}"] for one in DELTA_SIZES)
    if base.endswith("norm") and base != "ssm_norm":
        return x + np.float32(1)
    if name.endswith(".ssm_a"):
        return -np.exp(x)
    if base == "ssm_conv1d":
        return x[:, 0]
    if base not in ("attn_qkv", "attn_gate"):
        return x
    several = heads // k_heads * size
    groups = np.split(x, k_heads)
    apart = [np.split(group, np.cumsum([keys, keys, several])) for group in groups]
    parts = [np.concatenate(part) for part in zip(*apart, strict=True)]
    return parts[3] if base == "attn_gate" else np.concatenate(parts[:3])


def of_qwen35(values, name, base, x):
    """Norms are stored less 1; value heads of a key head are apart; A is -e^A_log."""
    k_heads, heads, keys, size = (values[f"linear_{one}"] for one in DELTA_SIZES)
    if base.endswith("norm") and base != "ssm_norm":
        return x + np.float32(1)
    skip = 2 * k_heads * keys if base in ("attn_qkv", "ssm_conv1d") else 0
    if base not in ("attn_qkv", "ssm_conv1d", "attn_gate", "ssm_out"):
        size = 1
    each = heads // k_heads
    order = [*range(skip), *(
        skip + (k_head * each + i) * size + n
        for i in range(each) for k_head in range(k_heads) for n in range(size)
    )]  # fmt: skip
    if base == "ssm_conv1d":
        return x[:, 0][order]
    if name.endswith(".ssm_a"):
        return -np.exp(x)[order]
    if base == "ssm_out":
        return x[:, order]
    return x[order] if base.startswith(("ssm_al", "ssm_be", "ssm_dt", "attn_qkv", "attn_ga")) else x


def test_tensors_are_those_of_the_conversion(folder):
    name, ours, stored = folder
    row = FAMILIES[name]
    wanted = converted(row.architecture, stored)
    assert set(ours.tensors) - FACTORS == set(wanted)
    heads = ours.metadata[f"{row.architecture}.attention.head_count"]
    kv_heads = ours.metadata[f"{row.architecture}.attention.head_count_kv"]
    for new, numbers in wanted.items():
        made = [stored_as_gguf(name, new, x, heads, kv_heads) for x in numbers]
        expected = np.stack(made) if len(made) > 1 else made[0]
        info = ours.tensors[new]
        assert (info.name, info.format, info.shape) == (new, "F32", expected.shape)
        assert np.array_equal(ours.dequantize(new), expected), new
        assert not ours.raw(new)[:].flags.writeable
