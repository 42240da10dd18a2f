"""Writes an encoder's body as ONNX, for engines on ONNX Runtime.

    python bench/peers/export_onnx.py FOLDER OUT

OUT gets model.onnx and the tokenizer's files of FOLDER. Needs torch, transformers and onnx.
"""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def export(folder: Path, out: Path) -> None:
    """The last layer's rows, of any number of texts of any length."""
    torch, library = import_module("torch"), import_module("transformers")

    class Rows(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = library.AutoModel.from_pretrained(folder).eval()

        def forward(self, *ids):  # type: ignore[no-untyped-def]
            return self.model(**dict(zip(NAMES, ids, strict=True))).last_hidden_state

    ids = torch.ones(2, 8, dtype=torch.long)
    out.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        shutil.copy(path, out)
    config = json.loads((out / "tokenizer_config.json").read_text())
    most = json.loads((out / "config.json").read_text())["max_position_embeddings"]
    config |= {"max_length": most, "model_max_length": most}
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    torch.onnx.export(
        Rows(), (ids, ids, torch.zeros_like(ids)), out / "model.onnx", dynamo=False,
        input_names=[*NAMES], output_names=["rows"], opset_version=17,
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in (*NAMES, "rows")},
    )  # fmt: skip


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
