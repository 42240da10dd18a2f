"""Models of every family: folders of transformers, and the same models as GGUF files.

tests/data/tiny_models.json.gz has the config and the shapes of tensors of each row of
`random_models`. ``PYTHONPATH=tests:bench python -m support.fuzz.families`` writes it, with
transformers and torch.
"""

import gzip
import json
from functools import cached_property
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from cutaway.files.huggingface import HuggingFaceFolder
from cutaway.files.weights.gguf_writer import write_gguf
from support import tiny_tokenizers
from support.fuzz.folders import Folder, safetensors, zip_files
from support.fuzz.models import Gguf
from support.random_models import ROWS, save

PATH = Path(__file__).parents[2] / "data/tiny_models.json.gz"


class Families(Folder):
    """Folders of all families."""

    name, inputs = "family", 12

    def make(self) -> None:
        """Write nothing: a folder is made when it is drawn."""

    def sound_files(self, rng: Random) -> dict[str, bytes]:
        """Return the files of a random family's model."""
        return self.files_of(rng.choice(self.names))

    @cached_property
    def names(self) -> list[str]:
        """The names of all models."""
        return sorted(self._models)

    def files_of(self, name: str) -> dict[str, bytes]:
        """Return the files of a model."""
        model = self._models[name]
        shapes = {tensor: tuple(shape) for tensor, shape in model["shapes"].items()}
        return {
            "config.json": json.dumps(model["config"]).encode(),
            "model.safetensors": safetensors(shapes),
            "tokenizer.json": self._tokenizer,
        }

    @cached_property
    def _models(self) -> dict[str, Any]:
        models: dict[str, Any] = json.loads(gzip.decompress(PATH.read_bytes()))
        return models

    @cached_property
    def _tokenizer(self) -> bytes:
        return tiny_tokenizers.byte_level().to_str().encode()


class FamilyFiles(Gguf):
    """GGUF files of all families."""

    name, inputs, kernels = "family-gguf", 8, False

    def make(self) -> None:
        """Write nothing: a file is written when it is first drawn."""

    @cached_property
    def _families(self) -> Families:
        families = Families(self.folder.parent)
        families.write_seeds()
        return families

    def sound_file(self, rng: Random) -> bytes:
        """Return a random family's model."""
        name = rng.choice(self._families.names)
        path = self.folder / "seeds" / f"{name}.gguf"
        if not path.exists():
            files = zip_files(self._families.files_of(name))
            with HuggingFaceFolder(self._families.unzip(files)) as folder:
                write_gguf(path, folder)
        return path.read_bytes()


def _model(name: str) -> dict[str, Any]:
    """Return a row's config, and the shapes of its tensors by their names in files."""
    with TemporaryDirectory() as folder:
        save(name, Path(folder))
        config = json.loads((Path(folder) / "config.json").read_text())
        raw = (Path(folder) / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    header.pop("__metadata__", None)
    return {"config": config, "shapes": {name: entry["shape"] for name, entry in header.items()}}


if __name__ == "__main__":
    models = json.dumps({name: _model(name) for name in ROWS})
    PATH.write_bytes(gzip.compress(models.encode(), mtime=0))
