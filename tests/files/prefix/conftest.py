"""A tiny model in a folder of its own, and a prefix that it saved."""

import pytest

from support.prefixes import TEXT, load
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder ü")
    metadata = {"tokenizer.chat_template": TEMPLATE}
    return write_tiny_llama(folder / "tiny.gguf", context=512, metadata=metadata)


@pytest.fixture(scope="module")
def saved(path):
    place = path.with_name("some text.prefix")
    load(path).save_prefix(place, TEXT)
    return place
