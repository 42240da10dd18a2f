"""The values that transformers uses for a key that a config.json lacks, by tiny model and key.

``PYTHONPATH=tests python -m support.absent_keys > tests/data/absent_keys.json`` writes the table
with transformers and without torch. Each row of `random_models` has a line: its whole config
("full"), and for each removed key the values of transformers that differ from the rest.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.families.encoders import BODIES, ENCODERS
from support.families.row import Row
from support.random_models import FAMILIES

PATH = Path(__file__).parents[1] / "data" / "absent_keys.json"
TEXT = "text_config"  # of models that read pictures: keys are removed inside it
_UNREAD = (
    "dropout", "_token_id", "initializer", "use_cache", "aux_loss", "output_", "pdrop", "dtype",
    "vision_config", "transformers_version", "architectures", "id2label", "label2id", "time_step",
    "return_dict", "problem_type", "is_encoder_decoder", "chunk_size_feed", "_name_or_path",
    "generation", "summary_", "mtp_", "sparse_pred", "vocab_size",
)  # fmt: skip


def to_json_line(name: str, row: Row) -> str:
    """Return a row's line of JSON."""
    import transformers

    full = _values(getattr(transformers, row.config)(**row.values))
    absent = {key: _differing(remove_key(full, key), read) for key, read in _without_each(full)}
    return f"{json.dumps(name)}: {json.dumps({'full': full, 'absent': absent})}"


def _values(config: Any) -> dict[str, Any]:
    """Return the config's values that these tests read."""
    full: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return _read(full) | ({TEXT: _read(full[TEXT])} if TEXT in full else {})


def _read(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if not any(part in k for part in _UNREAD)}


def _without_each(full: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each key that transformers does not need, and its values without the key."""
    from transformers import CONFIG_MAPPING

    for key in full.get(TEXT, full):
        if key != "model_type":
            try:
                config = CONFIG_MAPPING[full["model_type"]].from_dict(remove_key(full, key))
            except Exception:  # of any kind: the class may fail on the rest
                continue
            yield key, _values(config)


def remove_key(full: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of a config without a key; a part for text, if there is one, loses the key."""
    copy: dict[str, Any] = json.loads(json.dumps(full))
    del copy.get(TEXT, copy)[key]
    return copy


def _differing(less: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    here, there = less.get(TEXT, less), read.get(TEXT, read)
    return {k: v for k, v in there.items() if k not in here or here[k] != v}


def add_removed_keys(less: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the values that transformers uses for removed keys."""
    return less | ({TEXT: less[TEXT] | more} if TEXT in less else more)


if __name__ == "__main__":
    rows = {**FAMILIES, **ENCODERS, **BODIES}
    print("{\n" + ",\n".join(to_json_line(*row) for row in rows.items()) + "\n}")
