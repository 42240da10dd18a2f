"""A page on its reader's GPU: Chromium's compiler of shaders, and SwiftShader's driver."""

import json
import shutil
from itertools import takewhile
from urllib.parse import urlencode

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.folder import document, write_page_folder
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.trace import Trace
from cutaway.trace.web.bundle import ALONE, page_files
from support.browser import (
    RUNS,
    SOFTWARE_GPU,
    Page,
    serve_folder,
    start_chromium,
    wait_for_model,
)
from support.random_llama import write_tiny_llama
from support.wasm import NEEDS, cores

pytest.importorskip("ziglang", reason=NEEDS)
GPU = "google swiftshader"
CHECKED = f"Your GPU computes ({GPU}): the same bits as a processor, checked on this device."
DECLINED = (
    f"Your processor computes, not your GPU: what the browser offers as a GPU ({GPU}) is a program "
    "on the processor, slower than WebAssembly."
)
ANYWAY = "Use the GPU all the same"
MINUTE = 60_000  # in ms: software drivers compile slowly
PATIENCE_S = 600  # all texts are checked at once, also by a slow one
PROMPTS = ("The sky is", "Once upon a time", "Mr. Darcy")
HOW = {"max_tokens": 10, "temperature": 0.9, "ignore_eos": True}
DEFAULT_LIMITS = {"maxStorageBufferBindingSize": 1 << 27, "maxBufferSize": 1 << 28}
"""Of WebGPU: every browser has as many."""
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
WATCHED = """
Object.assign(self, { asked: [], devices: [], posted: 0 });
{
  const { requestDevice } = GPUAdapter.prototype, post = self.postMessage;
  let device;
  GPUAdapter.prototype.requestDevice = async function (how) {
    self.asked.push(how);
    return (device = await requestDevice.call(this, how));
  };
  self.postMessage = (message) => {
    self.posted += 1;
    if (message.device) self.devices.push(message.device);
    const isStep = message.records?.some(({ kind }) => kind === "step");
    if (isStep && --self.stepsLeft === 0) device.destroy();
    post.call(self, message);
  };
}
"""
"""Put before the worker's script: it notes what is asked of the GPU and what is said of it, and the
device is lost after the last of `stepsLeft` tokens."""


@pytest.fixture(scope="module")
def gpu_context():
    """A context of a browser with WebGPU; its pages share what was kept."""
    with start_chromium(*SOFTWARE_GPU) as browser:
        yield browser.new_context()


def open_ready(context, url):
    """Open a page; wait until its model answers, and the line names the device that computes."""
    page = Page(context, url)
    wait_for_model(page, 10 * MINUTE).tab.locator("device-line [aria-busy=false]").wait_for()
    return page


def use_gpu(page):
    """Let the GPU compute that was declined or lost, checked with all texts, now or before."""
    ready = page.tab.locator("device-line [aria-busy=false]").get_by_text("Your GPU computes")
    page.tab.get_by_role("button", name=ANYWAY).click()
    ready.wait_for(timeout=10 * MINUTE)
    if CHECKED not in page.tab.locator("device-line").inner_text():  # there was no time for all
        page.tab.get_by_role("button", name="Check again").click()
    wait_for_line(page, CHECKED)


@pytest.fixture
def open_gpu(gpu_context):
    opened = []

    def open_one(url):
        opened.append(open_ready(gpu_context, url))
        use_gpu(opened[-1])
        return opened[-1]

    yield open_one
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_llama(
        folder / "tiny.gguf", format="Q8_0", head_dim=32, context=128,
        metadata={"tokenizer.chat_template": TEMPLATE},
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(path):
    return LLM(path, threads=1, progress=False)


@pytest.fixture(scope="module")
def folder(path, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "page"
    model = LoadedModel(path, Setup(), weights=False)
    assert write_page_folder(model, out, context=128, cores=cores()) == []
    return out


@pytest.fixture(scope="module")
def watched(folder, tmp_path_factory):
    """The address of a page whose worker notes what it asks and says."""
    copy = tmp_path_factory.mktemp("watched") / "page"
    shutil.copytree(folder, copy)
    [worker] = (copy / "static").rglob("worker.js")
    text = worker.read_text("utf-8")
    assert text.count("CHECK_SECONDS = 10;") == 1
    patient = text.replace("CHECK_SECONDS = 10;", f"CHECK_SECONDS = {PATIENCE_S};")
    worker.write_text(WATCHED + patient, "utf-8")
    with serve_folder(copy) as address:
        yield address


@pytest.fixture(scope="module")
def only_page(gpu_context, watched):
    address = urlencode({"kind": "completion", "seed": 3, "settings": json.dumps(HOW)})
    page = open_ready(gpu_context, f"{watched}#{address}")
    yield page
    page.close()


@pytest.fixture
def page(only_page):
    """One page for all tests, each with runs of its own, on the GPU: to be ready takes a minute."""
    if only_page.tab.get_by_role("button", name=ANYWAY).is_visible():
        use_gpu(only_page)
    return only_page


def wait_for_line(page, words):
    page.tab.locator("device-line").get_by_text(words).wait_for(timeout=10 * MINUTE)


def replay(trace_file, path, capsys):
    assert main(["trace", "replay", str(trace_file), "-m", str(path)]) == 0
    assert "no bit differs" in capsys.readouterr().out


def test_a_program_of_the_processor_is_declined_and_nothing_fetched_for_it(
    gpu_context, hosted, folder, alone
):
    context = gpu_context.browser.new_context()  # in which no reader has chosen
    page = open_ready(context, hosted(folder))
    wait_for_line(page, DECLINED)
    asked = [{"prompt": "ab a", "settings": HOW, "seed": "3"}]
    assert page.tab.evaluate(RUNS, asked) == [alone.generate("ab a", seed=3, **HOW).fingerprint]
    names = {url.rsplit("/")[-1] for url in page.requests}
    assert not names & {"gpu.json", "gpu.bin", "probe.json", "probe.bin"}
    page.close()
    context.close()


def test_the_line_says_what_was_not_checked(gpu_context, hosted, folder):
    context = gpu_context.browser.new_context()
    page = open_ready(context, hosted(folder))
    wait_for_line(page, DECLINED)
    device = {"gpu": GPU, "checked": {"right": 3, "all": 6, "rows": 4, "longest": 256}}
    page.tab.locator("device-line").evaluate("(line, device) => line.store.set({ device })", device)
    wait_for_line(
        page,
        f"Your GPU computes ({GPU}): the same bits as a processor in 3 of 6 texts, and there was "
        'no time for more: until "Check again" has computed them, it reads at most 4 tokens at a '
        "time, and your processor goes on with texts of more than 256.",
    )
    page.close()
    context.close()


@pytest.mark.slow
def test_the_gpu_stays_for_short_texts_where_there_was_time_for_those_only(
    gpu_context, hosted, folder, alone, tmp_path
):
    """What a slow GPU is: checked with one text, and not beyond 9 tokens."""
    shutil.copytree(folder, tmp_path / "slow")
    [worker] = (tmp_path / "slow/static").rglob("worker.js")
    text = worker.read_text("utf-8")
    for before, after in (
        ("CHECK_SECONDS = 10", "CHECK_SECONDS = 0"),
        ("this.program.chunk : Infinity", "9 : Infinity"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    worker.write_text(text, "utf-8")
    context = gpu_context.browser.new_context()
    address = urlencode({"kind": "completion", "seed": 3, "settings": json.dumps(HOW)})
    page = open_ready(context, f"{hosted(tmp_path / 'slow')}#{address}")
    page.tab.get_by_role("button", name=ANYWAY).click()
    wait_for_line(page, "your processor goes on with texts of more than 9")
    tiers = []
    for prompt in ("ab a", "ab a" * 4, "ab"):  # grows too long, is too long, and grows so again
        page.write(prompt)
        run = page.download_run(tmp_path / "run.jsonl")
        assert run.end.fingerprint == alone.generate(prompt, seed=3, **HOW).fingerprint
        tiers.append(run.head.tier[:4])
    assert tiers == ["webg", "wasm", "webg"]
    wait_for_line(page, "your processor goes on with texts of more than 9")
    assert page.tab.get_by_role("button", name="Check again").is_visible()
    page.close()
    context.close()


def test_it_asks_for_no_more_than_every_browser_has_and_says_what_it_takes(page, folder):
    asked, told = page.tab.workers[0].evaluate("() => [self.asked, self.devices]")
    how = asked[0]
    assert how.keys() == {"requiredLimits"}
    assert all(how["requiredLimits"][name] <= most for name, most in DEFAULT_LIMITS.items())
    assert how["requiredLimits"].keys() == DEFAULT_LIMITS.keys()
    document = json.loads((folder / "model/gpu.json").read_text())
    kernels, texts = len(document["pipelines"]), len(document["texts_to_check"])
    declined, *stages = takewhile(lambda device: "stage" in device or device["gpu"] is None, told)
    assert {one["memory"] for one in stages} == {sum(size for size, *_ in document["buffers"])}
    compiled, checked = (
        [text for one in stages if (text := one["stage"]).endswith(ending)]
        for ending in ("compiled", f"in about {PATIENCE_S} s")
    )
    assert [one["stage"] for one in stages] == [
        "its arithmetic is being checked", *compiled, "the model is being copied", *checked,
    ]  # fmt: skip
    assert compiled == [f"{i + 1} of {kernels} kernels are compiled" for i in range(kernels)]
    assert checked[0] == f"0 of {texts} texts had the bits of a processor, in about {PATIENCE_S} s"
    assert (declined["isDeclined"], told[-1]) == (True, {"gpu": GPU})


def test_texts_and_branches_are_those_of_the_processor(page, path, alone, tmp_path, capsys):
    page.write("ab a")
    trace = page.download_run(tmp_path / "page.jsonl")
    assert (trace.head.backend, trace.head.tier) == ("gpu", "webgpu int")
    assert trace.end.fingerprint == alone.generate("ab a", seed=3, **HOW).fingerprint
    page.fork(3)
    assert page.download_run(tmp_path / "fork.jsonl").steps[3].source == "forced"
    for name in ("page.jsonl", "fork.jsonl"):
        replay(tmp_path / name, path, capsys)


def test_a_chat_is_that_of_the_processor(page, alone, tmp_path):
    messages = []
    page.tab.get_by_role("tab", name="Chat").click()
    for question in ("a b", "b"):
        page.tab.get_by_label("Your message").fill(question)
        page.tab.get_by_role("button", name="Send", exact=True).click()
        page.wait_for_runs()
        trace = page.download_run(tmp_path / "chat.jsonl")
        messages.append({"role": "user", "content": question})
        here = alone.chat(messages, seed=3, **HOW)
        assert (trace.head.backend, trace.end.fingerprint) == ("gpu", here.fingerprint)
        messages.append({"role": "assistant", "content": trace.text})
    assert trace.end.usage["cached_tokens"] > 20


def test_a_trace_of_a_server_is_looked_into_asked_what_if_and_branched(
    page, path, alone, tmp_path, capsys
):
    """Whatever the page computes of a step must have the hash of the trace's row."""
    how = {**HOW, "max_tokens": 9}
    here = alone.generate("b ab", seed=8, trace=tmp_path / "server.jsonl", **how)
    page.open_file(tmp_path / "server.jsonl")
    assert page.download_run(tmp_path / "same.jsonl").end.fingerprint == here.fingerprint
    page.press("Home", *["ArrowRight"] * 4)
    page.tab.get_by_role("tab", name="What if").click()
    box = page.tab.locator("what-if")
    box.get_by_role("slider", name="temperature").fill("2")
    box.get_by_text("is drawn").wait_for()
    hot = {**how, "temperature": 2}
    forced = here.token_ids[:4]
    drawn = alone.generate("b ab", seed=8, forced=forced, trace=tmp_path / "hot.jsonl", **hot)
    name = Trace.read(tmp_path / "hot.jsonl").name_of(drawn.token_ids[4]).strip()
    assert name in box.locator("tbody tr.chosen th").inner_text()
    page.tab.get_by_role("tab", name="Step").click()
    page.fork(2)
    fork = page.download_run(tmp_path / "fork.jsonl")
    assert fork.head.backend == "gpu"
    replay(tmp_path / "fork.jsonl", path, capsys)
    page.tab.get_by_role("tab", name="Inside").click()
    page.tab.get_by_text("recomputed bit for bit").wait_for()


def test_practice_is_open_and_the_gpu_can_be_checked_again(page):
    page.tab.get_by_role("tab", name="Practice", exact=True).click()
    page.tab.locator("practice-lesson").get_by_role("button", name="Exercise 1,").wait_for()
    before = page.tab.workers[0].evaluate("() => self.devices.length")
    page.tab.get_by_role("button", name="Check again").click()
    wait_for_line(page, CHECKED)  # not of before the click, which changes the line at once
    *stages, end = page.tab.workers[0].evaluate("(at) => self.devices.slice(at)", before)
    assert stages and all("texts" in one["stage"] for one in stages)
    assert end == {"gpu": GPU}


def test_a_second_visit_fetches_no_weights_and_checks_one_text(page, gpu_context, watched):
    """The browser keeps the weights, the reader's choice, and which texts were checked."""

    def fetched(visit):
        return [url for url in visit.requests if "/weights-" in url]

    second = open_ready(gpu_context, watched)
    wait_for_line(second, CHECKED)
    stages = second.tab.workers[0].evaluate("() => self.devices.map(({ stage }) => stage)")
    assert [stage for stage in stages if stage and "texts" in stage] == [
        f"0 of 5 texts had the bits of a processor, in about {PATIENCE_S} s"
    ]
    assert (len(fetched(page)), fetched(second)) == (1, [])
    second.close()


def count_messages(page):
    """Write a text; return how many messages the worker sent to the page's own thread."""
    [worker] = page.tab.workers
    before = worker.evaluate("() => self.posted")
    page.write("ab a")
    return worker.evaluate("() => self.posted") - before


def test_the_processor_goes_on_where_the_gpu_is_lost_amid_a_text(page, alone, tmp_path):
    """To the page's own thread both are the same: a message for each token."""
    here = alone.generate("ab a", seed=3, **HOW).fingerprint
    on_gpu = count_messages(page)
    page.tab.workers[0].evaluate("() => void (self.stepsLeft = 4)")
    page.write("ab a")
    wait_for_line(page, f"Your processor computes, not your GPU: the GPU {GPU} was")
    assert page.download_run(tmp_path / "lost.jsonl").end.fingerprint == here
    assert count_messages(page) == on_gpu == HOW["max_tokens"] + 3  # the head, the end, and "done"
    again = page.download_run(tmp_path / "again.jsonl")
    assert (again.head.tier[:4], again.end.fingerprint) == ("wasm", here)
    use_gpu(page)
    page.write("ab a")
    again = page.download_run(tmp_path / "back.jsonl")
    assert (again.head.tier[:6], again.end.fingerprint) == ("webgpu", here)


def test_a_reader_chooses_the_processor(page, alone, tmp_path):
    page.tab.get_by_role("button", name="Use the processor").click()
    wait_for_line(page, "Your processor computes, not your GPU: you chose it.")
    page.write("ab a")
    trace = page.download_run(tmp_path / "page.jsonl")
    here = alone.generate("ab a", seed=3, **HOW).fingerprint
    assert (trace.head.tier[:4], trace.end.fingerprint) == ("wasm", here)


@pytest.mark.slow
def test_other_bits_are_refused_and_the_processor_computes(
    gpu_context, hosted, folder, alone, tmp_path
):
    """What a driver may do: a kernel whose products are a bit off."""
    shutil.copytree(folder, tmp_path / "wrong")
    path = tmp_path / "wrong/model/gpu.json"
    text = path.read_text("utf-8")
    assert "var y = sum;" in text
    path.write_text(text.replace("var y = sum;", "var y = sum * 1.0000001;"), "utf-8")
    index = document(tmp_path / "wrong", page_files(ALONE))  # with the file's new hash
    (tmp_path / "wrong/index.html").write_text(index, "utf-8")
    page = open_ready(gpu_context, hosted(tmp_path / "wrong"))
    page.tab.get_by_role("button", name=ANYWAY).click()
    wait_for_line(page, "not your GPU: it computes other bits than the CPU in a text of 1")
    asked = [{"prompt": "ab a", "settings": HOW, "seed": "3"}]
    assert page.tab.evaluate(RUNS, asked) == [alone.generate("ab a", seed=3, **HOW).fingerprint]
    page.close()


def check_seeds(page, llm, seeds, **settings):
    """Three prompts, of so many seeds each, have native fingerprints, all by the GPU."""
    settings |= {"temperature": 0.9}
    asked = [
        {"prompt": text, "settings": settings, "seed": str(seed)}
        for text in PROMPTS for seed in range(seeds)
    ]  # fmt: skip
    here = [
        llm.generate(one["prompt"], seed=int(one["seed"]), **settings).fingerprint for one in asked
    ]
    assert page.tab.evaluate(RUNS, asked) == here
    wait_for_line(page, CHECKED)


@pytest.mark.slow
def test_texts_of_toy_writer(open_gpu, hosted, toy_folder, toy_alone):
    check_seeds(open_gpu(hosted(toy_folder)), toy_alone, 10, max_tokens=6)


@pytest.mark.slow
@pytest.mark.model
def test_texts_of_layers_of_smollm2(open_gpu, hosted, smollm2_path, tmp_path):
    """SmolLM2's sizes, but 2 of its 30 layers: software takes half a minute for a token."""
    model = LoadedModel(smollm2_path, Setup(), weights=False)
    with model.open_file() as file:
        file.metadata = {**file.metadata, "llama.block_count": 2}
        file.tensors = {
            name: tensor for name, tensor in file.tensors.items()
            if name.startswith(("blk.0.", "blk.1.")) or not name.startswith("blk.")
        }  # fmt: skip
        write_gguf(tmp_path / "layers.gguf", file)
    with LLM(tmp_path / "layers.gguf", threads=1, context=128, progress=False) as llm:
        write_page_folder(llm.model, tmp_path / "page", context=128, cores=cores())
        page = open_gpu(hosted(tmp_path / "page"))
        check_seeds(page, llm, 10, max_tokens=4, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "granite4-h-moe", "qwen3_5_moe", "deepseek_v2"])
def test_families(open_gpu, hosted, tmp_path, family):
    """Sliding windows, two kinds of states, experts, latents."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    from support import random_models

    random_models.save(family, tmp_path / "model")
    model = LoadedModel(tmp_path / "model", Setup(), weights=False)
    write_page_folder(model, tmp_path / "page", context=128, cores=cores())
    page = open_gpu(hosted(tmp_path / "page"))
    with LLM(tmp_path / "model", threads=1, context=128, progress=False) as llm:
        check_seeds(page, llm, 1, max_tokens=8, ignore_eos=True)
