"""llama.cpp's quantisation of a whole file, by llama-cpp-python, and models of many shapes.

``PYTHONPATH=tests python -m support.llama_quantize`` prints tests/data/mixes.json anew.
"""

import ctypes
import json
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import gguf
import numpy as np

from cutaway.files.weights import GGUFFile, TensorInfo
from cutaway.files.weights.mixes import MIXES

SHARED_MIXES = [mix for mix in MIXES if mix != "mxfp4"]
MIXES_FILE = Path(__file__).parents[1] / "data" / "mixes.json"


def quantise(source, out, mix, weights=None):
    """Write a mix of a GGUF file by llama.cpp. weights: tensor -> all experts' importance."""
    import llama_cpp  # type: ignore[import-not-found]  # where it is installed
    from llama_cpp import llama_cpp as bare

    llama_cpp.llama_log_set(_silent, None)

    class Given(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("n", ctypes.c_size_t))

    settings = bare.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = MIXES[mix].file_type, 2
    matrices = {name: np.ascontiguousarray(w, np.float32) for name, w in (weights or {}).items()}
    entries = (Given * (len(matrices) + 1))(
        *(Given(name.encode(), w.ctypes.data, w.size) for name, w in matrices.items())
    )
    if weights is not None:
        settings.imatrix = ctypes.cast(entries, type(settings.imatrix))
    paths = (str(path).encode() for path in (source, out))
    assert bare.llama_model_quantize(*paths, ctypes.byref(settings)) == 0


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(*_):
    pass


def _model(architecture, layers, heads, kv_heads, *, experts=0, tied=False, fused=False, width=256):
    metadata = {
        "block_count": layers, "context_length": 64, "embedding_length": width,
        "feed_forward_length": width, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
        "vocab_size": 8,
    }  # fmt: skip
    if experts:
        metadata |= {"expert_count": experts, "expert_used_count": 2}
    names = [("token_embd.weight", 1), ("output_norm.weight", 0)]
    names += [] if tied else [("output.weight", 1)]
    for i in range(layers):
        attention = ["attn_qkv"] if fused else ["attn_q", "attn_k", "attn_v"]
        names += [(f"blk.{i}.{part}.weight", 1) for part in [*attention, "attn_output"]]
        names += [(f"blk.{i}.attn_norm.weight", 0)]
        for part in ("ffn_gate", "ffn_up", "ffn_down"):
            names.append((f"blk.{i}.{part}{'_exps' * bool(experts)}.weight", 2 if experts else 1))
        names += [(f"blk.{i}.ffn_gate_inp.weight", 1)] if experts else []
    shapes = {0: (width,), 1: (2, width), 2: (max(experts, 1), 2, width)}
    tensors = {name: TensorInfo(name, "F16", shapes[dims]) for name, dims in names}
    keys = {f"{architecture}.{key}": value for key, value in metadata.items()}
    return {"general.architecture": architecture, **keys}, tensors


def models():
    """Return name -> (metadata, tensors) of models whose matrices get different formats."""
    return {
        "llama": _model("llama", 20, 8, 8),
        "llama, 4 queries to a key": _model("llama", 20, 8, 2, tied=True),
        "llama, 80 layers": _model("llama", 80, 8, 1),
        "llama, 32 in a row": _model("llama", 9, 8, 8, width=288),
        "mixtral": _model("llama", 17, 8, 2, experts=8),
        "qwen 3, experts": _model("qwen3moe", 9, 8, 2, experts=16),
        "qwen 2, 80 layers": _model("qwen2", 80, 8, 8),
        "gpt 2": _model("gpt2", 9, 8, 8, fused=True, tied=True),
    }


def _write(path, metadata, tensors):
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, info in tensors.items():
        kind = np.float32 if len(info.shape) == 1 else np.float16
        writer.add_tensor(name, np.zeros(info.shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def choose_as_llama_cpp(folder, mix, metadata, tensors, *, with_importance):
    """Return matrix -> format, as llama.cpp chooses."""
    source, out = folder / "source.gguf", folder / "out.gguf"
    _write(source, metadata, tensors)
    weights = {
        name: np.ones(np.prod(info.shape[:-2], dtype=int) * info.shape[-1])
        for name, info in tensors.items() if name.startswith("blk.") and len(info.shape) > 1
    }  # fmt: skip
    quantise(source, out, mix, weights if with_importance else None)
    with GGUFFile(out) as file:
        return {name: info.format for name, info in file.tensors.items() if len(info.shape) > 1}


def summarize(formats):
    """Return formats as one line: the commonest, then the layers of each other format."""
    commonest, _ = Counter(formats.values()).most_common(1)[0]
    layers_of: dict[str, list[int]] = {}
    for name in sorted(name for name in formats if formats[name] != commonest):
        parts = name.removesuffix(".weight").split(".")  # blk, 3, attn_v
        layer = int(parts[1]) if parts[0] == "blk" else -1
        layers_of.setdefault(f"{parts[-1]} {formats[name]}", []).append(layer)
    rest = (f"{tensor} {_runs(layers)}".strip() for tensor, layers in layers_of.items())
    return ", ".join([commonest, *rest])


def _runs(layers):
    """Return "0-2 5" for 0, 1, 2 and 5; leave out -1, which is no layer."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        elif layer >= 0:
            runs.append([layer, layer])
    return " ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in runs)


def choose_all(by):
    """Return the formats of all models in all mixes. by: called with mix, metadata, tensors, ..."""
    return {
        name: {
            mix + ", importance" * weighs: summarize(by(mix, *model, with_importance=weighs))
            for mix in SHARED_MIXES for weighs in (False, True)
        }
        for name, model in models().items()
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(choose_all(partial(choose_as_llama_cpp, Path(place))), indent=1))
