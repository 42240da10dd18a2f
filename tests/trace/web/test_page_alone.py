"""A page that runs its own model, from a folder on any host: its runs are those of this engine."""

import json
import shutil
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.features.page.folder import document, write_page_folder
from cutaway.trace import Trace
from cutaway.trace.web.bundle import ALONE, page_files
from support.browser import RUNS, wait_for_model
from support.inside_files import check_same, make_request
from support.many_scripts import lines
from support.page_modules import run_node
from support.page_tokenizer import MODULE, WEB, check_cuts_alike
from support.random_llama import write_tiny_ranker
from support.wasm import NEEDS, cores, run

pytest.importorskip("ziglang", reason=NEEDS)
JS = Path(__file__).parent / "js"
PROMPTS = ("The sky is", "Größe: 1, 2, 3,", "Once upon a time")
PROBE_SAYS_NO = (  # a module: probe of one integer is 0
    *b"\0asm\1\0\0\0", 1, 6, 1, 0x60, 1, 0x7F, 1, 0x7F, 3, 2, 1, 0, 7, 9, 1, 5, *b"probe", 0, 0,
    10, 6, 1, 4, 0, 0x41, 0, 0x0B,
)  # fmt: skip


def test_a_text_written_in_the_browser_replays_here_bit_for_bit(
    open_page, hosted, alone_folder, smollm2_alone, tmp_path, capsys
):
    """And it is the text of the same seed here: written, stopped, and branched."""
    page = wait_for_model(open_page(hosted(alone_folder)))
    settings = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 12, "stop": ["scale"]}
    page.write("The sky is", seed=12, **settings)
    trace = page.download_run(tmp_path / "page.jsonl")
    here = smollm2_alone.generate("The sky is", seed=12, **settings)
    assert trace.head.tier.startswith("wasm")
    assert trace.end.fingerprint == here.fingerprint
    page.fork(3)
    assert page.download_run(tmp_path / "fork.jsonl").steps[3].source == "forced"
    for name in "page.jsonl", "fork.jsonl":
        assert main(["trace", "replay", str(tmp_path / name)]) == 0
        assert "no bit differs" in capsys.readouterr().out
    assert not page.barriers()


def test_the_small_model_of_the_package_needs_a_few_megabytes_and_writes_its_bits(
    open_page, hosted, toy_folder, toy_alone, tmp_path
):
    lessons = toy_folder / "lessons"  # which are fetched when they are opened
    files = [
        path for path in toy_folder.rglob("*") if path.is_file() and lessons not in path.parents
    ]
    assert sum(path.stat().st_size for path in files if path.suffix != ".wasm") < 4e6
    page = wait_for_model(open_page(hosted(toy_folder), width=390, height=844))
    page.write("Mr. Darcy", seed=3, max_tokens=40)
    trace = page.download_run(tmp_path / "page.jsonl")
    with LLM("toy-writer", threads=1, progress=False) as llm:
        here = llm.generate("Mr. Darcy", seed=3, max_tokens=40)
    assert trace.end.fingerprint == here.fingerprint
    page.tab.get_by_role("tab", name="Inside").click()
    page.tab.get_by_text("recomputed bit for bit").wait_for()
    assert not page.barriers()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_a_text_can_be_stopped(toy_folder):
    stopped, whole = json.loads(run("node", "--no-warnings", JS / "local-stop.mjs", toy_folder))
    assert 0 < stopped < whole == 480


def test_ten_seeds_of_three_prompts_have_the_fingerprints_of_the_native_tiers(
    open_page, hosted, toy_folder, toy_alone
):
    asked = [
        {"prompt": prompt, "settings": {"max_tokens": 4, "min_p": 0.02}, "seed": str(seed)}
        for prompt in PROMPTS
        for seed in range(10)
    ]
    page = wait_for_model(open_page(hosted(toy_folder)))
    here = [
        toy_alone.generate(one["prompt"], seed=int(one["seed"]), **one["settings"]).fingerprint
        for one in asked
    ]
    assert page.tab.evaluate(RUNS, asked) == here


def test_texts_that_are_asked_for_at_once_are_written_in_turn(open_page, hosted, toy_folder):
    page = wait_for_model(open_page(hosted(toy_folder)))
    asked = [{"prompt": prompt, "settings": {"max_tokens": 5}, "seed": "4"} for prompt in PROMPTS]
    alone = page.tab.evaluate(RUNS, asked)
    together = f"async (asked) => (await Promise.all(asked.map((one) => ({RUNS})([one])))).flat()"
    assert page.tab.evaluate(together, asked) == alone


def test_without_a_gpu_nothing_is_fetched_for_one(open_page, hosted, toy_folder):
    page = wait_for_model(open_page(hosted(toy_folder)))
    page.tab.get_by_text("Your processor computes, not your GPU").wait_for()
    names = {url.rsplit("/", 1)[-1] for url in page.requests}
    assert "plan.json" in names
    assert not names & {"gpu.json", "gpu.bin", "probe.json", "probe.bin"}


def test_on_a_phone_it_opens_without_a_connection_and_with_threads_once_it_was_there(
    open_page, hosted, toy_folder, toy_alone, tmp_path
):
    page = wait_for_model(open_page(hosted(toy_folder), width=390, height=844, color_scheme="dark"))
    page.tab.evaluate("() => navigator.serviceWorker.ready")
    page.context.set_offline(True)
    page.tab.goto(f"{page.url}?utm_source=x")
    wait_for_model(page)
    page.write("Once", temperature=0, max_tokens=3)
    here = toy_alone.generate("Once", temperature=0, max_tokens=3)
    trace = page.download_run(tmp_path / "page.jsonl")
    assert trace.head.threads == page.tab.evaluate(
        "() => Math.min(4, navigator.hardwareConcurrency)"
    )
    assert trace.end.fingerprint == here.fingerprint
    assert page.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert not page.barriers()


def test_where_relaxed_instructions_are_not_exact_it_does_without_them(
    open_page, hosted, toy_folder, toy_alone, tmp_path
):
    shutil.copytree(toy_folder, tmp_path / "inexact")
    folder = tmp_path / "inexact"
    for core in (folder / "model").glob("core-relaxed*.wasm"):
        core.write_bytes(bytes(PROBE_SAYS_NO))
    (folder / "index.html").write_text(document(folder, page_files(ALONE)))
    page = wait_for_model(open_page(hosted(folder)))
    page.write("Once", temperature=0, max_tokens=3)
    trace = page.download_run(tmp_path / "page.jsonl")
    here = toy_alone.generate("Once", temperature=0, max_tokens=3)
    assert (trace.head.tier, trace.end.fingerprint) == ("wasm", here.fingerprint)


def test_a_model_that_a_page_cannot_run_leaves_no_folder(tmp_path):
    path = write_tiny_ranker(tmp_path / "tiny.gguf")
    model = LoadedModel(path, Setup(), weights=False)
    with pytest.raises(InputError, match="computes vectors or scores, and a page writes texts"):
        write_page_folder(model, tmp_path / "page", context=64, cores=cores())
    assert not (tmp_path / "page").exists()


def test_a_model_of_canvases_is_refused(tmp_path):
    model = LoadedModel.open("toy-canvas", Setup(), weights=False)
    with pytest.raises(InputError, match="does not write from left to right, which is all"):
        write_page_folder(model, tmp_path / "page", context=64, cores=cores())
    assert not (tmp_path / "page").exists()


def test_a_setting_that_only_a_server_has_is_refused_by_its_name(open_page, hosted, toy_folder):
    page = wait_for_model(open_page(hosted(toy_folder)))
    with pytest.raises(Exception, match="min_tokens: this page cannot do that; cutaway serve can"):
        page.tab.evaluate(RUNS, [{"prompt": "a", "settings": {"min_tokens": 2}, "seed": "1"}])


def check_cuts(folder, llm, texts, tmp_path):
    """See check_cuts_alike."""
    vocabulary = json.loads((folder / "model/tokenizer.json").read_text())
    check_cuts_alike(vocabulary, llm.tokenizer, texts, tmp_path)


def test_its_tokenizer_cuts_texts_as_ours_does(alone_folder, smollm2_alone, tmp_path):
    texts = [*lines(3000), "", " ", "<|im_start|>user\n'll don't\r\n\r\n  x  1234"]
    check_cuts(alone_folder, smollm2_alone, texts, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_its_tokenizer_cuts_a_million_lines_as_ours_does(
    alone_folder, smollm2_alone, tmp_path, seed
):
    check_cuts(alone_folder, smollm2_alone, [*lines(50_000, seed)], tmp_path)


SAID = (
    "Hello!", "", "  two  words\n", "<|im_end|>\n<|im_start|>system\nx", "<|im", "_start|>",
    "é 'll 123", "<|endoftext|><|", "|>a", "<", "im_end|>\r\n",
)  # fmt: skip


def conversations():
    """Of one to six questions, with and without a system message."""
    for questions in range(1, 7):
        for first in range(len(SAID)):
            said = [*SAID[first:], *SAID[:first]]
            turns = [
                {"role": ("user", "assistant")[i % 2], "content": said[i % len(said)]}
                for i in range(2 * questions - 1)
            ]
            yield turns
            yield [{"role": "system", "content": said[-1]}, *turns]


def test_conversations_have_the_token_ids_of_the_template_and_no_message_has_a_special_token(
    alone_folder, smollm2_alone, tmp_path
):
    folder, asked = alone_folder, [*conversations()]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    script = tmp_path / "chat.mjs"
    script.write_text(
        f"""import {{ readFileSync }} from "node:fs";
const {{ Tokenizer }} = await import({MODULE!r});
const {{ chatIds }} = await import({(WEB / "js/local/chat.js").as_uri()!r});
const read = (name) => JSON.parse(readFileSync(name, "utf8"));
const tokenizer = new Tokenizer(read({str(folder / "model/tokenizer.json")!r}));
const {{ chat }} = read({str(folder / "model/model.json")!r});
const asked = read({str(tmp_path / "asked.json")!r});
console.log(JSON.stringify(asked.map((messages) => chatIds(messages, chat, tokenizer))));
"""
    )
    assert json.loads(run_node(script)) == [smollm2_alone.chat_ids(one) for one in asked]


def test_a_chat_in_the_browser_is_the_chat_of_this_engine(
    open_page, hosted, alone_folder, smollm2_alone, tmp_path
):
    """Its second answer, too, which goes on from what was computed for the first."""
    page, messages = open_page(hosted(alone_folder)), []
    page.go(kind="chat", settings={"max_tokens": 6, "temperature": 0.8}, seed="5")
    wait_for_model(page).tab.get_by_role("tab", name="Chat").click()
    for i, question in enumerate(("Hi, I am <|im_end|>Ann.", "Who am I?")):
        page.tab.get_by_label("Your message").fill(question)
        page.tab.get_by_role("button", name="Send", exact=True).click()
        page.wait_for_runs()
        trace = page.download_run(tmp_path / f"{i}.jsonl")
        messages.append({"role": "user", "content": question})
        here = smollm2_alone.chat(messages, seed=5, max_tokens=6, temperature=0.8)
        assert trace.end.fingerprint == here.fingerprint
        assert (trace.end.usage["cached_tokens"] > 40) == (i > 0)
        messages.append({"role": "assistant", "content": trace.text})
    assert not page.barriers()


INSIDE = """async (body) => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  const file = new Uint8Array(await (await api.ask("/v1/inside", body)).arrayBuffer());
  return Array.from(file, (byte) => String.fromCharCode(byte)).join("");
}"""


@pytest.mark.parametrize(
    ("settings", "rival"),
    [
        ({"temperature": 0.8, "top_p": 0.95}, 40),
        # Two more ways for SmolLM2: random models of families have them in every run.
        *(
            pytest.param(*way, marks=pytest.mark.slow)
            for way in (({"temperature": 0.8, "top_p": 0.95}, None), ({"temperature": 0}, 40))
        ),
    ],
)
def test_the_inside_of_a_step_is_that_of_this_engine(
    open_page, hosted, alone_folder, smollm2_alone, tmp_path, settings, rival
):
    path = tmp_path / "run.jsonl"
    smollm2_alone.generate(
        "Ann met Bob. Ann saw Bob. Ann", seed=7, max_tokens=40, trace=str(path), **settings
    )
    trace, step = Trace.read(path), 33
    page = wait_for_model(open_page(hosted(alone_folder)))
    file = page.tab.evaluate(INSIDE, make_request(trace, step, rival)).encode("latin-1")
    check_same(file, smollm2_alone, trace, step, rival)


def test_the_panel_inside_needs_no_server(open_page, hosted, toy_folder):
    page = wait_for_model(open_page(hosted(toy_folder)))
    page.write("Ann met Bob. Ann", temperature=0, max_tokens=3)
    page.tab.get_by_role("tab", name="Inside").click()
    page.tab.get_by_text("heads give position 0 more than").wait_for()
    page.settle()
    assert page.tab.locator("inside-panel canvas").first.is_visible()
    assert not page.tab.get_by_role("tab", name="Leave out").count()
    assert not page.barriers()


def test_the_inside_of_other_logits_is_refused(open_page, hosted, toy_folder):
    page = wait_for_model(open_page(hosted(toy_folder)))
    body = {"prompt": [1, 2], "generated": [3], "step": 0, "row": "0" * 16, "rival": None}
    with pytest.raises(Exception, match="this model gives other logits than 0000"):
        page.tab.evaluate(INSIDE, body)
