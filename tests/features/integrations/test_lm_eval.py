"""lm-eval with our model in its process. Slow: it is not among what the tests install."""

import json
import os
import subprocess
import sys
from math import exp, log
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.features.measure.ab_command import read_questions
from support.page_sections import blocks
from support.random_hrm import write_tiny_hrm
from support.server_processes import server

lm_eval = pytest.importorskip("lm_eval", reason="pip install 'cutaway[lm-eval]', to try lm-eval")
pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"
ALL = ["capitals", "rolling", "written"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The tasks' own data, read anew, and nothing from the network."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(DATA)


@pytest.fixture(scope="module")
def tiny(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        yield llm


def model(llm, **options):
    from cutaway.features.integrations.lm_eval import CutawayLM

    return CutawayLM(llm, **options)


def evaluate(lm, tasks, **options):
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=".", include_defaults=False)
    return lm_eval.simple_evaluate(
        model=lm, tasks=tasks, task_manager=manager, bootstrap_iters=0, **options
    )


def answers(done, task):
    """Of each document, its data and what the model said."""
    for sample in done["samples"][task]:
        yield sample["doc"], [response for (response,) in sample["resps"]]


def whole(doc) -> str:
    """The text of which ``rolling`` asks."""
    return f"{doc['question']} {doc['choices'][doc['answer']]}."


def ask(*args):
    """A request as lm-eval makes it."""
    return SimpleNamespace(args=args)


@pytest.mark.model
def test_scores_are_those_of_the_llm(smollm2_path):
    with LLM(smollm2_path, progress=False) as llm:
        done = evaluate(model(llm), ["capitals", "rolling"])
        right, right_by_length, bits, size = 0, 0, 0.0, 0
        for doc, said in answers(done, "capitals"):
            own = llm.score(doc["question"], [f" {choice}" for choice in doc["choices"]])
            assert said == [(one.total, one.is_greedy) for one in own]
            totals = [one.total for one in own]
            each = [t / len(c) for t, c in zip(totals, doc["choices"], strict=True)]
            right += totals.index(max(totals)) == doc["answer"]
            right_by_length += each.index(max(each)) == doc["answer"]
        for doc, said in answers(done, "rolling"):
            total = llm.likelihood(whole(doc)).total
            assert said == [total]
            bits, size = bits - total / log(2), size + len(whole(doc).encode())
    found = done["results"]["capitals"]
    assert (found["acc,none"], found["acc_norm,none"]) == (right / 14, right_by_length / 14)
    assert 7 < right < 14  # a model that knows some of it
    assert done["results"]["rolling"]["bits_per_byte,none"] == pytest.approx(bits / size)
    assert done["config"]["model_name"] == llm.name


def test_texts_are_those_of_the_llm(tiny):
    done = evaluate(model(tiny), ["written"])
    for doc, said in answers(done, "written"):
        own = tiny.generate(doc["question"], temperature=0, max_tokens=12, stop=["\n", "."])
        assert said == [own.text]


def test_a_text_longer_than_the_context_is_read_in_lm_eval_s_windows(tiny_path):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    text = "ab ba a b " * 9
    with LLM(tiny_path, context=16, progress=False) as llm:
        lm = model(llm, max_gen_toks=4, add_bos_token=False)
        [found] = lm.loglikelihood_rolling([ask(text)])
        cut = get_rolling_token_windows(lm.tok_encode(text), lm.prefix_token_id, lm.max_length, 1)
        parts = [*llm.score_each(map(make_disjoint_window, cut))]
        assert len(parts) > 2
        assert found == pytest.approx(sum(part.total for part in parts), abs=1e-12)
        assert found == llm.likelihood(text).total


def test_a_window_s_context_is_no_prompt_to_read_to_both_sides(tmp_path):
    with LLM(write_tiny_hrm(tmp_path / "tiny.gguf"), context=16, progress=False) as llm:
        [total] = model(llm, add_bos_token=False).loglikelihood_rolling([ask("ab ba a b " * 9)])
        assert total == llm.likelihood("ab ba a b " * 9).total


def test_what_is_too_long_is_cut_at_its_beginning_and_that_is_said(tiny_path, caplog):
    prompt = "ab ba a b " * 9
    with LLM(tiny_path, context=16, progress=False) as llm:
        lm = model(llm, max_gen_toks=4)
        [found] = lm.loglikelihood([ask(prompt, "ab")])
        assert "1 of 1 prompts were cut" in caplog.text
        ids = lm.tok_encode(prompt + "ab")[-17:]
        answer = len(lm.tok_encode(prompt + "ab")) - len(lm.tok_encode(prompt.rstrip()))
        [own] = llm.score(ids[:-answer], [ids[-answer:]])
        assert found == (own.total, own.is_greedy)
        caplog.clear()
        [text] = lm.generate_until([ask(prompt, {"until": []})])
        assert text == llm.generate(lm.tok_encode(prompt)[-12:], temperature=0, max_tokens=4).text
        assert "1 of 1 prompts were cut" in caplog.text
        caplog.clear()
        lm.loglikelihood([ask("ab", "ab"), ask("", "ab")])
        assert caplog.text == ""


def test_drawn_texts_have_a_seed_each(tiny):
    given = {"until": [], "do_sample": True, "max_gen_toks": 6}
    found = model(tiny, seed=5).generate_until([ask("ab", given)] * 3)
    drawn = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 6}
    assert found == [tiny.generate("ab", seed=5 + i, **drawn).text for i in range(3)]
    assert len({*found}) > 1


def test_a_stop_that_is_a_control_token_is_one(tiny):
    lm = model(tiny)
    assert lm._stops(["<s>", "ab", ""]) == {"stop": ["ab"], "stop_token_ids": [1]}


def test_conversations_are_as_the_llm_has_them(tiny):
    lm = model(tiny)
    said = [{"role": "user", "content": "ab"}]
    assert lm.tok_encode(lm.apply_chat_template(said)) == tiny.chat_prompt(said)
    said.append({"role": "assistant", "content": "ba"})
    begun = lm.apply_chat_template(said, add_generation_prompt=False)
    assert begun.endswith("assistant: ba")
    assert lm.chat_template(True) == tiny.template.source
    done = evaluate(lm, ["written"], apply_chat_template=True)
    for doc, said in answers(done, "written"):
        prompt = tiny.chat_prompt([{"role": "user", "content": doc["question"]}])
        assert said == [tiny.generate(prompt, temperature=0, max_tokens=12, stop=["\n", "."]).text]


def test_the_cache_of_lm_eval_answers_without_the_model(tiny_path, tmp_path):
    with LLM(tiny_path, progress=False) as llm:
        lm = model(llm)
        first = evaluate(lm, ALL, use_cache=str(tmp_path / "said"))
    again = evaluate(lm, ALL, use_cache=str(tmp_path / "said"))  # the model is closed
    assert again["results"] == first["results"]


@pytest.mark.parametrize("words", ["smollm", "llama-bpe"])  # the second begins texts with BOS
def test_the_same_as_transformers_on_the_same_folder_in_float32(tmp_path, words):
    """Our native backend keeps keys and values in 11 bits; the reference computes in float32."""
    pytest.importorskip("torch", reason="pip install 'cutaway[test-transformers]'")
    pytest.importorskip("accelerate", reason="lm-eval's own model of transformers needs accelerate")
    from lm_eval.models.huggingface import HFLM

    from support.random_models import save
    from support.tiny_tokenizers import KINDS

    save("llama", tmp_path, tokenizer=KINDS[words])
    named = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    hf = HFLM(pretrained=str(tmp_path), dtype="float32", device="cpu", batch_size=4)
    theirs = evaluate(hf, ALL)
    for backend, error in (("cpu", 1e-3), ("reference", 1e-5)):
        with LLM(tmp_path, backend=backend, progress=False) as llm:
            ours = evaluate(model(llm), ALL)
        assert ours["results"]["capitals"]["acc,none"] == theirs["results"]["capitals"]["acc,none"]
        assert [*answers(ours, "written")] == [*answers(theirs, "written")]
        pairs = zip(answers(ours, "capitals"), answers(theirs, "capitals"), strict=True)
        for (_, our), (_, their) in pairs:
            assert [greedy for _, greedy in our] == [greedy for _, greedy in their]
            assert [score for score, _ in our] == pytest.approx([s for s, _ in their], rel=error)
        pairs = zip(answers(ours, "rolling"), answers(theirs, "rolling"), strict=True)
        for (_, our), (_, their) in pairs:
            assert our == pytest.approx(their, rel=error)


def commanded(arguments):
    words = ["run", "--model", "cutaway", "--tasks", "capitals", "--include_path", "."]
    words += ["--model_args", arguments, "--batch_size", "16"]
    command = [sys.executable, "-m", "cutaway.features.integrations.lm_eval", *words]
    return subprocess.run(
        command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, text=True, capture_output=True,
        timeout=300, check=False,
    )  # fmt: skip


def test_what_the_command_cannot_open_is_told_without_a_traceback(tiny):
    done = commanded("model=nothing.gguf")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "cutaway: error: model file 'nothing.gguf' does not exist" in done.stderr


def test_the_command(tiny, tiny_path):
    done = commanded(f"model={tiny_path},threads=1")
    assert done.returncode == 0, done.stderr
    found = evaluate(model(tiny), ["capitals"])["results"]["capitals"]["acc,none"]
    assert f"{found:.4f}" in next(line for line in done.stdout.splitlines() if "|acc " in line)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_gen_toks": 0}, "max_gen_toks must be"),
        ({"seed": -1}, "seed must be"),
        ({"threads": 2}, "threads: the model is loaded already"),
    ],
)
def test_bad_arguments_are_refused_by_name(tiny, options, said):
    with pytest.raises(InputError, match=said):
        model(tiny, **options)


def test_an_unknown_argument_is_refused_by_name(tiny):
    with pytest.raises(InputError, match="nope is neither a setting"):
        type(model(tiny))("model.gguf", nope=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"max_gen_toks": 512}, "max_gen_toks: 512 leaves no room"), ({"top_p": 3}, "top_p"),
     ({"num_beams": 2}, "num_beams")],
)  # fmt: skip
def test_bad_keywords_of_a_task_are_refused_by_name(tiny, given, said):
    with pytest.raises(InputError, match=said):
        model(tiny).generate_until([ask("ab", {"until": [], **given})])


def test_an_answer_without_tokens_is_refused(tiny):
    with pytest.raises(InputError, match="has no tokens"):
        model(tiny).loglikelihood([ask("ab", "")])


def test_a_likelihood_is_a_perplexity(tiny):
    [total] = model(tiny, add_bos_token=False).loglikelihood_rolling([ask("ab ba")])
    own = tiny.likelihood("ab ba")
    assert exp(-total / len(own.token_ids)) == own.perplexity
    [with_bos] = model(tiny).loglikelihood_rolling([ask("ab ba")])  # which lm-eval scores, too
    assert with_bos == tiny.likelihood([1, 1, *own.token_ids]).total < total


@pytest.mark.model
def test_the_page_s_example(capsys):
    [example] = blocks("integrations.md", "lm-eval", "python", "")
    exec(compile(example, "integrations.md", "exec"), {})
    assert 0.5 < float(capsys.readouterr().out.splitlines()[-1]) < 1


@pytest.fixture
def smollm2_server():
    """Where ``cutaway serve`` serves SmolLM2, and the same model in this process."""
    with server("smollm2") as (_, url), LLM("smollm2", progress=False) as llm:
        yield url, llm


@pytest.mark.model
def test_by_a_server_and_its_tokens(smollm2_server):
    """Numbers are sent with all their digits, and summed one after the other by lm-eval."""
    pytest.importorskip("tenacity", reason="pip install 'lm-eval[api]', to ask a server")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    url, llm = smollm2_server
    lm = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model="smollm2", tokenizer_backend="remote", batch_size=4
    )
    assert lm.eot_token_id in llm.tokenizer.end_ids
    assert lm.prefix_token_id == llm.tokenizer.bos_id
    done = evaluate(lm, ["capitals", "written"])
    for doc, said in answers(done, "capitals"):
        own = llm.score(doc["question"], [f" {choice}" for choice in doc["choices"]])
        assert [greedy for _, greedy in said] == [one.is_greedy for one in own]
        assert [total for total, _ in said] == pytest.approx([one.total for one in own], rel=1e-12)
    for doc, said in answers(done, "written"):
        own = llm.generate(doc["question"], temperature=0, max_tokens=12, stop=["\n", "."])
        assert said == [own.text]
    [(empty, _)] = lm.loglikelihood([ask("", "Paris")])
    [own] = llm.score([lm.prefix_token_id], [llm.tokenize("Paris")])
    assert empty == pytest.approx(own.total, rel=1e-12)


def test_two_ways_answer_a_task_with_common_luck(tiny_path, capsys):
    """Its stop strings and metric; one that does not write is refused."""
    words = ["--b", "temperature=0.9", "-m", str(tiny_path), "--samples", "2", "--limit", "3", "-q"]
    assert main(["ab", "lm-eval:written.yaml", *words, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    texts = [text for one in done["answers"] for text in one["texts"]]
    assert len(texts) == 12
    assert not any(stop in text for text in texts for stop in ("\n", "."))
    assert main(["ab", "lm-eval:capitals.yaml", *words]) == 2
    assert "multiple_choice writes nothing" in capsys.readouterr().err
    assert main(["ab", "lm-eval:none.yaml", *words]) == 2
    assert "is not one task that can be read" in capsys.readouterr().err


def test_a_task_s_question_is_right_by_its_own_metric():
    [question] = read_questions("lm-eval:written.yaml", 1)
    wanted = json.loads((DATA / "capitals.jsonl").read_text().splitlines()[0])
    right = wanted["choices"][wanted["answer"]]
    assert question.prompt == wanted["question"]
    assert question.options == {"stop": ["\n", "."], "max_tokens": 12}
    assert [question.score(f" {right} "), question.score("another")] == [1, 0]
