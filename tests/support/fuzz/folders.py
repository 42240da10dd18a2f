"""Folders of models and drafters, as a zip of their files."""

import json
import struct
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from cutaway import LLM
from support import tiny_rwkv, tiny_tokenizers
from support.fuzz.format import Format
from support.fuzz.models import TEMPLATE, TEXT, use_model
from support.fuzz.mutation import mutate_bytes, mutate_json, mutate_json_by_type
from support.random_dflash import (
    HIDDEN,
    SPECULATORS,
    drafter_tensors,
    with_vocabulary,
    write_drafter,
)
from support.random_llama import VOCAB, write_tiny_llama

LIST, TARGET = "rwkv_vocab_v20230424.txt", "target.gguf"
_LITERALS = (
    b"'a'", b"b'a'", b"''", b"{[1]}", b"{[]: 1}", b"{}", b"1e999", b"-'a'", b"'\\ud800'", b"None",
    b"9" * 5000, b"[" * 3000, b"'" + b"a" * 3000 + b"'",
)  # fmt: skip


class Folder(Format):
    """Folders of transformers, as a zip of their files."""

    name, inputs = "folder", 25

    def make(self) -> None:
        """Write a llama, a Mixtral and a BERT with tokenizers of four kinds, and an RWKV-7."""
        kinds = [*tiny_tokenizers.KINDS.values()][:4]
        for number, kind in enumerate(kinds):
            files = _llama() if number % 2 == 0 else _mixtral()
            self._write(f"{number}", files, kind())
        self._write("bert", _bert(), tiny_tokenizers.wordpiece())
        self._zip("rwkv7", _rwkv7())

    def _write(self, name: str, files: dict[str, bytes], tokenizer: Any) -> None:
        settings = {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "add_bos_token": True,
            "chat_template": TEMPLATE,
        }
        files["tokenizer.json"] = tokenizer.to_str().encode()
        files["tokenizer_config.json"] = json.dumps(settings).encode()
        files["generation_config.json"] = json.dumps(
            {"eos_token_id": [2, 3], "temperature": 0.7}
        ).encode()
        self._zip(name, files)

    def _zip(self, name: str, files: dict[str, bytes]) -> None:
        (self.folder / "seeds" / f"{name}.zip").write_bytes(zip_files(files))

    def draw(self, rng: Random) -> bytes:
        """Change values of JSON, of a tensor file's header or of a list, or rows, or bytes."""
        files = self.sound_files(rng)
        if rng.random() < 0.2:
            files["model.safetensors"] = _with_fewer_rows(rng, files["model.safetensors"])
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            name = rng.choice(
                [name for name in files for _ in range(6 if name == "config.json" else 2)]
            )
            raw = files[name]
            if rng.random() < 0.1:
                files[name] = mutate_bytes(rng, raw)
            elif name.endswith(".json"):
                files[name] = _mutate_json(rng, raw)
            elif name == LIST:
                files[name] = _list(rng, raw)
            else:
                files[name] = _tensors(rng, raw)
        if rng.random() < 0.03:
            del files[rng.choice((*files,))]
        return zip_files(files)

    def sound_files(self, rng: Random) -> dict[str, bytes]:
        """Return the files of a random sound folder."""
        with ZipFile(rng.choice(self.seeds)) as seed:
            return {name: seed.read(name) for name in seed.namelist()}

    def use(self, data: bytes) -> None:
        """Open the folder, and generate text or embed."""
        use_model(self.unzip(data), threads=1)

    def unzip(self, data: bytes) -> Path:
        """Write the files of a zip, and return their folder."""
        folder = self.scratch("folder")
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        with ZipFile(BytesIO(data)) as files:
            files.extractall(folder)
        return folder


class Drafter(Folder):
    """Folders of block drafters, for a tiny llama."""

    name, inputs = "drafter", 60

    def make(self) -> None:
        """Write a DFlash, a DSpark, and one of vLLM's speculators with a vocabulary of its own."""
        write_tiny_llama(self.folder / TARGET, hidden=HIDDEN, layers=4, heads=4, head_dim=16)
        ids = np.arange(5, VOCAB, 2)
        for name, config in (("dflash", {}), ("dspark", {}), ("speculators", SPECULATORS)):
            tensors = drafter_tensors(2, markov=name != "dflash")
            if config:
                tensors = with_vocabulary(tensors, ids)
            kind = "dflash" if name == "dflash" else "dspark"
            at = write_drafter(self.folder / f"folder-{name}", tensors, kind, **config)
            self._zip(name, {path.name: path.read_bytes() for path in sorted(at.iterdir())})

    def use(self, data: bytes) -> None:
        """Generate a text with the drafter."""
        drafter = self.unzip(data)
        with LLM(self.folder / TARGET, progress=False, threads=1) as llm:
            llm.generate(TEXT, max_tokens=12, ignore_eos=True, speculate=f"dspark:{drafter}")


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _mutate_json(rng: Random, raw: bytes) -> bytes:
    """Return JSON with a few odd values, or with others of their types; other bytes unchanged."""
    mutate = mutate_json if rng.random() < 0.6 else mutate_json_by_type
    try:
        return _json(mutate(rng, json.loads(raw)))
    except ValueError:
        return raw


def zip_files(files: dict[str, bytes]) -> bytes:
    """Return a zip; equal files give equal bytes."""
    out = BytesIO()
    with ZipFile(out, "w") as zip:
        for name, raw in files.items():
            zip.writestr(ZipInfo(name), raw, ZIP_DEFLATED, 1)
    return out.getvalue()


def _tensors(rng: Random, raw: bytes) -> bytes:
    """Return a safetensors file with a changed header, or with damaged weights."""
    (length,) = struct.unpack_from("<Q", raw)
    head, data = raw[8 : 8 + length], raw[8 + length :]
    try:
        entries = json.loads(head)
    except ValueError:
        return raw
    if rng.random() < 0.7:
        odd: tuple[Any, ...] = (
            "BF16",
            "F16",
            "F32",
            "I32",
            "F8_E4M3",
            "BOOL",
            [0],
            [],
            [0, 2**63],
            [1, 64],
            -1,
            None,
            2**64,
            {},
        )
        head = _json(mutate_json(rng, entries, odd))
    else:
        data = mutate_bytes(rng, data)
    return struct.pack("<Q", len(head)) + head + data


def _with_fewer_rows(rng: Random, raw: bytes) -> bytes:
    """Return a sound safetensors file in which a tensor has lost rows."""
    (length,) = struct.unpack_from("<Q", raw)
    entries, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    parts = {name: data[slice(*entry["data_offsets"])] for name, entry in entries.items()}
    name = rng.choice((*entries,))
    rows, *inner = entries[name]["shape"]
    fewer = rng.choice((1, rows // 2, rows - 1))
    parts[name] = parts[name][: len(parts[name]) // rows * fewer]
    entries[name]["shape"] = [fewer, *inner]
    at = 0
    for name, part in parts.items():
        entries[name]["data_offsets"] = [at, at := at + len(part)]
    head = _json(entries)
    return struct.pack("<Q", len(head)) + head + b"".join(parts.values())


def _list(rng: Random, raw: bytes) -> bytes:
    """Return a list of tokens in which a line has another id, token or length."""
    lines = raw.split(b"\n")
    parts = [rng.choice(lines).partition(b" ")[0], rng.choice(_LITERALS), rng.choice((b"1", b"0"))]
    at = rng.randrange(len(lines))
    lines[at] = b" ".join(parts) if rng.random() < 0.7 else rng.choice(lines)
    return b"\n".join(lines)


def safetensors(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """Return a file of small whole numbers in these shapes."""
    rng, head, data = np.random.default_rng(5), dict[str, Any](), b""
    for name, shape in shapes.items():
        raw = rng.integers(-2, 3, shape).astype(np.float16).tobytes()
        head[name] = {
            "dtype": "F16",
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    packed = _json(head)
    return struct.pack("<Q", len(packed)) + packed + data


_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1,
    "max_position_embeddings": 128, "vocab_size": 400,
}  # fmt: skip


def _attention() -> dict[str, tuple[int, ...]]:
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": (400, 32), "model.norm.weight": (32,),
        "lm_head.weight": (400, 32),
        layer + "input_layernorm.weight": (32,), layer + "post_attention_layernorm.weight": (32,),
        layer + "self_attn.q_proj.weight": (32, 32), layer + "self_attn.k_proj.weight": (16, 32),
        layer + "self_attn.v_proj.weight": (16, 32), layer + "self_attn.o_proj.weight": (32, 32),
    }  # fmt: skip


def _llama() -> dict[str, bytes]:
    config = _SIZES | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }  # fmt: skip
    mlp = "model.layers.0.mlp."
    shapes = _attention() | {
        mlp + "gate_proj.weight": (48, 32), mlp + "up_proj.weight": (48, 32),
        mlp + "down_proj.weight": (32, 48),
    }  # fmt: skip
    return {"config.json": _json(config), "model.safetensors": safetensors(shapes)}


def _mixtral() -> dict[str, bytes]:
    config = _SIZES | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 4, "num_experts_per_tok": 2,
        "tie_word_embeddings": False, "sliding_window": None, "hidden_act": "silu",
    }  # fmt: skip
    moe = "model.layers.0.block_sparse_moe."
    shapes = _attention() | {moe + "gate.weight": (4, 32)}
    for i in range(4):
        expert = f"{moe}experts.{i}."
        shapes |= {
            expert + "w1.weight": (48, 32),
            expert + "w2.weight": (32, 48),
            expert + "w3.weight": (48, 32),
        }
    return {"config.json": _json(config), "model.safetensors": safetensors(shapes)}


def _bert() -> dict[str, bytes]:
    config = _SIZES | {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }  # fmt: skip
    layer = "encoder.layer.0."
    matrices = {
        "embeddings.word_embeddings": (400, 32), "embeddings.position_embeddings": (128, 32),
        "embeddings.token_type_embeddings": (2, 32), layer + "attention.self.query": (32, 32),
        layer + "attention.self.key": (32, 32), layer + "attention.self.value": (32, 32),
        layer + "attention.output.dense": (32, 32), layer + "intermediate.dense": (48, 32),
        layer + "output.dense": (32, 48),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.weight": shape for name, shape in matrices.items()
    }
    shapes |= {f"{name}.bias": shape[:1] for name, shape in matrices.items() if "layer" in name}
    for name in ("embeddings.", layer + "attention.output.", layer + "output."):
        shapes |= {f"{name}LayerNorm.{part}": (32,) for part in ("weight", "bias")}
    return {"config.json": _json(config), "model.safetensors": safetensors(shapes)}


def _rwkv7() -> dict[str, bytes]:
    """Return the files of a model with RWKV's own list of tokens."""
    config = tiny_rwkv.CONFIGS["rwkv7"]
    tokens = [*(bytes([n]) for n in range(256)), b" the", b"ab", "é".encode(), b"\n\n"]
    lines = [b"%d %a %d\n" % (i, token, len(token)) for i, token in enumerate(tokens, 1)]
    specials = {"0": {"content": "<|end|>"}, "300": {"content": "\n\n"}}
    settings = {"bos_token": "<|end|>", "eos_token": "\n\n", "added_tokens_decoder": specials}
    return {
        "config.json": _json(config),
        "model.safetensors": safetensors(tiny_rwkv.shapes_of(config)),
        "tokenizer_config.json": _json(settings | {"chat_template": TEMPLATE}),
        LIST: b"".join(lines),
    }
