"""Whatever the JSON files of a folder say, it opens or is refused: nothing else."""

import json

import pytest
from hypothesis import strategies as st

from cutaway.errors import CutawayError
from cutaway.files.huggingface import HuggingFaceFolder
from cutaway.text import Tokenizer

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support import diffusion_models, random_models
from support.examples import few_or_many
from support.random_models import FAMILIES, FORMULAS, edit
from support.tiny_tokenizers import KINDS

SCALARS = st.none() | st.booleans() | st.integers(-2, 500) | st.floats() | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
)


MADE = dict.fromkeys((*FAMILIES, *FORMULAS), random_models) | dict.fromkeys(
    diffusion_models.DIFFUSION, diffusion_models
)


@pytest.fixture(scope="module", params=MADE)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    kind = list(KINDS)[list(MADE).index(request.param) % len(KINDS)]
    MADE[request.param].save(request.param, path, tokenizer=KINDS[kind])
    edit(path / "tokenizer_config.json", bos_token="<s>", eos_token="</s>", add_bos_token=True)
    edit(path / "generation_config.json", eos_token_id=[2, 3])
    return path


def places(value, path=()):
    """Every place in a document where a value can be put, outside of long tables."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items)[:7]:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


@few_or_many(25, 300, st.data())
def test_a_changed_value_opens_or_is_refused(folder, data):
    name = data.draw(st.sampled_from(sorted(p.name for p in folder.glob("*.json"))))
    before = (folder / name).read_text()
    made = json.loads(before)
    path = data.draw(st.sampled_from(places(made)[1:]))
    value = data.draw(VALUES)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / name).write_text(json.dumps(made))
    try:
        with HuggingFaceFolder(folder) as file:
            tokenizer = Tokenizer.from_gguf(file.metadata)
            tokenizer.encode("the quick 日本 </s>")
            file.raw("token_embd.weight")
    except CutawayError as error:
        assert "\n" not in str(error)
    finally:
        (folder / name).write_text(before)
