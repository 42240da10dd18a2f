"""A real browser on a real server: Debian's Chromium, driven by Playwright."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.folder import write_page_folder
from cutaway.files.weights.gguf_writer import write_gguf
from support.browser import Page, serve_folder, start_chromium
from support.served import serve
from support.wasm import NEEDS, cores

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def chromium():
    """One browser for a module's tests."""
    with start_chromium("--disable-gpu", "--disable-background-networking") as browser:
        yield browser


@pytest.fixture(scope="module")
def contexts(chromium):
    """A browser's context by its options: with it a page's files are fetched once."""
    begun = {}

    def context(**options):
        key = repr(sorted(options.items()))
        if key not in begun:
            begun[key] = chromium.new_context(**options)
        return begun[key]

    return context


@pytest.fixture
def open_page(contexts):
    """Opens an address; an error of the page, or a request to another origin, fails the test."""
    opened = []

    def open_one(url, width=1400, height=1000, **options):
        viewport = {"width": width, "height": height}
        opened.append(Page(contexts(viewport=viewport, **options), url))
        return opened[-1]

    yield open_one
    for page in opened:
        page.close()


@pytest.fixture(scope="session")
def tiny_server(tiny_path):
    """A server of a small random model."""
    with serve(LLM(tiny_path, threads=1)) as served:
        yield served


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """A server of SmolLM2."""
    with serve(LLM(smollm2_path, threads=1)) as served:
        yield served


@pytest.fixture(scope="session")
def smollm2_alone(smollm2_path):
    """The same model without a server."""
    return LLM(smollm2_path, threads=1, progress=False)


@pytest.fixture
def page(open_page, smollm2):
    """The page on the server of SmolLM2."""
    return open_page(smollm2.url)


@pytest.fixture
def hosted():
    """Serves a folder, and nothing else."""
    with ExitStack() as servers:
        yield lambda folder: servers.enter_context(serve_folder(folder))


@pytest.fixture(scope="session")
def toy_alone():
    """The small model of the package without a server."""
    return LLM("toy-writer", threads=1, progress=False)


@pytest.fixture(scope="session")
def toy_folder(toy_alone, tmp_path_factory):
    """The page that runs toy-writer by itself, which it loads in a tenth of SmolLM2's time."""
    pytest.importorskip("ziglang", reason=NEEDS)
    out = tmp_path_factory.mktemp("toy") / "page"
    model = LoadedModel.open("toy-writer", Setup(), weights=False)
    missing = write_page_folder(model, out, context=512, cores=cores(), run=lambda: toy_alone)
    assert missing == ["the page has no chat: the model has no chat template"]
    return out


@pytest.fixture(scope="session")
def toy_chat_path(tmp_path_factory):
    """The small model of the package with a chat template."""
    path = tmp_path_factory.mktemp("toy") / "toy-chat.gguf"
    with LoadedModel.open("toy-writer", Setup(), weights=False).open_file() as file:
        metadata = {**file.metadata, "tokenizer.chat_template": TEMPLATE}
        parts = {"tensors": file.tensors, "value_types": file.value_types, "raw": file.raw}
        write_gguf(path, SimpleNamespace(metadata=metadata, **parts))
    return path


@pytest.fixture(scope="session")
def toy_chat(toy_chat_path):
    """A server of it."""
    with serve(LLM(toy_chat_path, threads=1, context=512)) as served:
        yield served


@pytest.fixture(scope="session")
def toy_chat_folder(toy_chat_path, tmp_path_factory):
    """The page that runs it by itself."""
    pytest.importorskip("ziglang", reason=NEEDS)
    out = tmp_path_factory.mktemp("toy") / "chat"
    model = LoadedModel(toy_chat_path, Setup(), weights=False)
    assert write_page_folder(model, out, context=512, cores=cores()) == []
    return out


@pytest.fixture(params=["served", "alone"])
def site(request, hosted):
    """Where the page of the small model is, with a server and without one."""
    if request.param == "served":
        return f"{request.getfixturevalue('toy_chat').url}/"
    return hosted(request.getfixturevalue("toy_chat_folder"))


@pytest.fixture(scope="session")
def alone_folder(smollm2_path, smollm2_alone, tmp_path_factory):
    """The page that runs SmolLM2 by itself."""
    pytest.importorskip("ziglang", reason=NEEDS)
    out = tmp_path_factory.mktemp("alone") / "page"
    model = LoadedModel(smollm2_path, Setup(), weights=False)
    write_page_folder(model, out, context=512, cores=cores(), run=lambda: smollm2_alone)
    return out
