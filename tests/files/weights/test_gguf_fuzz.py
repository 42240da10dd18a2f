"""Whatever happens to the bytes of a file, it opens or is refused: nothing else."""

import pytest
from hypothesis import strategies as st

from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile
from support.damage import damage
from support.examples import few_or_many
from support.gguf_bytes import small

SMALL = small()
pieces = st.binary(max_size=9) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\1" + b"\0" * 7])


@st.composite
def damaged(draw):
    """A small file; see ``damage``."""
    return damage(draw, SMALL, pieces)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "fuzz.gguf"


@few_or_many(250, 1000, damaged())
def test_a_damaged_file_opens_or_is_refused(path, raw):
    path.write_bytes(raw)
    try:
        file = GGUFFile(path)
    except FormatError as error:
        message = str(error)
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        return
    with file:
        for name, info in file.tensors.items():
            assert file.raw(name).nbytes == info.nbytes
            assert file.dequantize(name).shape == info.shape
