"""A page on its reader's GPU: Chromium's compiler of shaders, and SwiftShader's driver."""

import json
import shutil
from urllib.parse import urlencode

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.folder import document, write_page_folder
from cutaway.trace.web.bundle import ALONE, page_files
from support.browser import CHROMIUM, HOW_TO_HAVE_CHROMIUM, RUNS, Page, wait_for_model
from support.random_llama import write_tiny_llama
from support.wasm import NEEDS, cores

pytest.importorskip("ziglang", reason=NEEDS)
OPTIONS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
CHECKED = "Your GPU computes (google swiftshader): the same bits as a processor"
MINUTE = 60_000  # in ms: software drivers compile slowly
LOSES = """
const { requestDevice } = GPUAdapter.prototype;
GPUAdapter.prototype.requestDevice = async function (...how) {
  const device = await requestDevice.apply(this, how), post = self.postMessage;
  self.postMessage = (message) => {
    const isStep = message.records?.some(({ kind }) => kind === "step");
    if (isStep && --self.stepsLeft === 0) device.destroy();
    post.call(self, message);
  };
  return device;
};
"""
"""Put before the worker's script: the device is lost after the last of `stepsLeft` tokens."""


@pytest.fixture(scope="module")
def gpu_context():
    """A context of a browser with WebGPU; its pages share what was kept."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip(f"there is no Chromium here: {HOW_TO_HAVE_CHROMIUM}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser.new_context()
        browser.close()


@pytest.fixture
def open_gpu(gpu_context):
    opened = []

    def open_one(url):
        opened.append(Page(gpu_context, url))
        wait_for_model(opened[-1], 5 * MINUTE).tab.set_default_timeout(MINUTE)
        return opened[-1]

    yield open_one
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_llama(folder / "tiny.gguf", format="Q8_0", head_dim=32, context=64)


@pytest.fixture(scope="module")
def alone(path):
    return LLM(path, threads=1, progress=False)


@pytest.fixture(scope="module")
def folder(path, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "page"
    model = LoadedModel(path, Setup(), weights=False)
    missing = write_page_folder(model, out, context=64, cores=cores())
    assert not any("GPU" in sentence for sentence in missing)
    return out


def wait_for_line(page, words):
    page.tab.locator("device-line").get_by_text(words).wait_for()


PROMPTS = ("The sky is", "Once upon a time", "Mr. Darcy")
HOW = {"max_tokens": 10, "temperature": 0.9, "ignore_eos": True}


def test_texts_on_the_gpu_are_those_of_the_processor(
    open_gpu, hosted, folder, path, alone, tmp_path, capsys
):
    """Written, looked into, branched, replayed; checked again; and the GPU is lost amid one."""
    here = alone.generate("ab a", seed=3, **HOW).fingerprint
    shutil.copytree(folder, tmp_path / "page")
    [worker] = (tmp_path / "page/static").rglob("worker.js")
    worker.write_text(LOSES + worker.read_text())
    address = urlencode({"kind": "completion", "seed": 3, "settings": json.dumps(HOW)})
    page = open_gpu(f"{hosted(tmp_path / 'page')}#{address}")
    wait_for_line(page, CHECKED)

    page.write("ab a")
    trace = page.download_run(tmp_path / "page.jsonl")
    assert (trace.head.backend, trace.head.tier) == ("gpu", "webgpu int")
    assert trace.end.fingerprint == here
    page.fork(3)
    page.download_run(tmp_path / "fork.jsonl")
    for name in ("page.jsonl", "fork.jsonl"):
        assert main(["trace", "replay", str(tmp_path / name), "-m", str(path)]) == 0
        assert "no bit differs" in capsys.readouterr().out
    page.tab.get_by_role("tab", name="Inside").click()
    page.tab.locator("inside-panel svg").first.wait_for()

    page.tab.get_by_role("button", name="Check again").click()
    wait_for_line(page, CHECKED)
    assert page.tab.evaluate("async () => (await (await caches.open('cutaway-gpu')).keys()).length")

    page.tab.workers[0].evaluate("() => void (self.stepsLeft = 4)")
    page.write("ab a")
    wait_for_line(page, "Your processor computes, not your GPU: the GPU google swiftshader was")
    lost = page.download_run(tmp_path / "lost.jsonl")
    assert lost.end.fingerprint == here
    page.write("ab a")
    again = page.download_run(tmp_path / "again.jsonl")
    assert (again.head.tier[:4], again.end.fingerprint) == ("wasm", here)


@pytest.mark.slow
def test_other_bits_are_refused_and_the_processor_computes(
    open_gpu, hosted, folder, alone, tmp_path
):
    """What a driver may do: a kernel whose products are a bit off."""
    shutil.copytree(folder, tmp_path / "wrong")
    path = tmp_path / "wrong/model/gpu.json"
    text = path.read_text("utf-8")
    assert "var y = sum;" in text
    path.write_text(text.replace("var y = sum;", "var y = sum * 1.0000001;"), "utf-8")
    index = document(tmp_path / "wrong", page_files(ALONE))  # with the file's new hash
    (tmp_path / "wrong/index.html").write_text(index, "utf-8")
    page = open_gpu(hosted(tmp_path / "wrong"))
    wait_for_line(page, "not your GPU: it computes other bits than the CPU in a text of 1")
    asked = [{"prompt": "ab a", "settings": HOW, "seed": "3"}]
    assert page.tab.evaluate(RUNS, asked) == [alone.generate("ab a", seed=3, **HOW).fingerprint]


@pytest.mark.slow
def test_texts_of_toy_writer(open_gpu, hosted, toy_folder, toy_alone):
    page = open_gpu(hosted(toy_folder))
    wait_for_line(page, CHECKED)
    settings = {"max_tokens": 6, "temperature": 0.9}
    asked = [
        {"prompt": text, "settings": settings, "seed": str(seed)}
        for text in PROMPTS for seed in range(10)
    ]  # fmt: skip
    here = [
        toy_alone.generate(one["prompt"], seed=int(one["seed"]), **settings).fingerprint
        for one in asked
    ]
    assert page.tab.evaluate(RUNS, asked) == here
