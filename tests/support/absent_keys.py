"""What transformers reads in a config.json that lacks a key, by tiny model and key.

``PYTHONPATH=tests python -m support.absent_keys > tests/data/absent_keys.json`` writes it with
transformers and without torch. A line for each row of `random_models`: its whole config ("full"),
and by the key that is taken out what transformers has otherwise than what is left.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.families.encoders import BODIES, ENCODERS
from support.families.row import Row
from support.random_models import FAMILIES

PATH = Path(__file__).parents[1] / "data" / "absent_keys.json"
TEXT = "text_config"  # of models that read pictures: its keys are taken out
_UNREAD = (
    "dropout", "_token_id", "initializer", "use_cache", "aux_loss", "output_", "pdrop", "dtype",
    "vision_config", "transformers_version", "architectures", "id2label", "label2id", "time_step",
    "return_dict", "problem_type", "is_encoder_decoder", "chunk_size_feed", "_name_or_path",
    "generation", "summary_", "mtp_", "sparse_pred", "vocab_size",
)  # fmt: skip


def written(name: str, row: Row) -> str:
    """A row's line, without its name."""
    import transformers

    full = _values(getattr(transformers, row.config)(**row.values))
    absent = {key: _differing(without(full, key), read) for key, read in _without_each(full)}
    return f"{json.dumps(name)}: {json.dumps({'full': full, 'absent': absent})}"


def _values(config: Any) -> dict[str, Any]:
    """What it writes, less what is not read here."""
    full: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return _read(full) | ({TEXT: _read(full[TEXT])} if TEXT in full else {})


def _read(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if not any(part in k for part in _UNREAD)}


def _without_each(full: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key of those that transformers can do without, and what it reads then."""
    from transformers import CONFIG_MAPPING

    for key in full.get(TEXT, full):
        if key != "model_type":
            try:
                config = CONFIG_MAPPING[full["model_type"]].from_dict(without(full, key))
            except Exception:  # of any kind: what the class makes of the rest may not fit
                continue
            yield key, _values(config)


def without(full: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of a config without a key, of its part for text where it has one."""
    copy: dict[str, Any] = json.loads(json.dumps(full))
    del copy.get(TEXT, copy)[key]
    return copy


def _differing(less: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    here, there = less.get(TEXT, less), read.get(TEXT, read)
    return {k: v for k, v in there.items() if k not in here or here[k] != v}


def completed(less: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A config with what transformers reads otherwise."""
    return less | ({TEXT: less[TEXT] | more} if TEXT in less else more)


if __name__ == "__main__":
    rows = {**FAMILIES, **ENCODERS, **BODIES}
    print("{\n" + ",\n".join(written(*row) for row in rows.items()) + "\n}")
