"""The oracle's figures by their definitions, and each wrong account found by name."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.errors import CutawayError, InputError
from cutaway.features.evidence.oracle import EngineAnswer, oracle, read_answers, write_answers
from cutaway.features.evidence.oracle.engines import ask, ask_echo, kind_of
from cutaway.features.evidence.oracle.reading import check_settings, read, rows_of
from cutaway.rerun.asking import Server
from support.pretended import pretend
from support.random_llama import VOCAB, write_tiny_llama
from support.served import TEMPLATE, serve

SAID = {"temperature": 0.8, "top_p": 0.7}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    default = "{% if messages[0].role != 'system' %}<s>system: be brief</s>{% endif %}" + TEMPLATE
    return write_tiny_llama(
        tmp_path_factory.mktemp("oracle") / "tiny.gguf", hidden=64, layers=2, context=512,
        metadata={"tokenizer.chat_template": default},
    )  # fmt: skip


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, progress=False) as opened:
        yield opened


def written(llm, messages=False, n=40, **settings):
    """Two answers of the model itself, with what a faithful engine would tell of them."""
    answers = []
    for seed in (1, 2):
        asked = [{"role": "user", "content": f"ab ba {seed}"}]
        ids = llm.chat_ids(asked) if messages else llm.tokenize(f"ab ba {seed}")
        done = llm.generate(ids, max_tokens=n, ignore_eos=True, seed=seed, **settings)
        made = tuple(step.token_id for step in done.steps)
        answers.append(EngineAnswer(tuple(ids), made, (0.0,) * n, tuple(asked) if messages else ()))
    return told(llm, answers, **settings)


def told(llm, answers, kind="final", **settings):
    params = check_settings(llm, settings)
    found = []
    for each in answers:
        readings = read(rows_of(llm, each), each, params)
        found.append(replace(each, logprobs=tuple(one.logprob(kind) for one in readings)))
    return found


def by_definition(row, temperature, top_p):
    """(raw, tempered, final, mass): of every token, as the published definitions have them."""
    wide = row.astype(np.float64)
    raw = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    heated = wide / temperature
    tempered = heated - np.log(np.exp(heated - heated.max()).sum()) - heated.max()
    p = np.exp(tempered)
    best = np.argsort(-p, kind="stable")
    kept = best[: int(np.argmax(np.cumsum(p[best]) >= top_p)) + 1]
    final = np.full(len(p), -np.inf)
    mass = p[kept].sum()
    final[kept] = tempered[kept] - np.log(mass)
    return raw, tempered, final, mass


def test_the_figures_are_those_of_the_definitions(llm):
    [one, _] = written(llm, temperature=1.3, top_p=1)
    rows = rows_of(llm, one)
    for at, found in enumerate(read(rows, one, check_settings(llm, SAID))):
        i = one.token_ids[at]
        raw, tempered, final, mass = by_definition(rows[at], 0.8, 0.7)
        assert (found.token_id, found.rank) == (i, 1 + int((rows[at] > rows[at][i]).sum()))
        assert found.raw == pytest.approx(raw[i], abs=1e-6)
        assert found.tempered == pytest.approx(tempered[i], abs=1e-6)
        assert found.mass == pytest.approx(mass, abs=1e-6)
        assert (found.final is None) == (final[i] == -np.inf)
        assert found.final is None or found.final == pytest.approx(final[i], abs=1e-6)


def test_rows_in_pieces_are_the_same_bits(llm):
    [one, _] = written(llm, **SAID)
    whole = rows_of(llm, one)
    assert (np.concatenate([rows_of(llm, one, at, 16) for at in (0, 16, 32)]) == whole).all()


@pytest.mark.parametrize("kind", ["raw", "tempered", "final"])
def test_which_of_the_three_was_told(llm, kind):
    answers = told(llm, written(llm, **SAID), kind, **SAID)
    found = oracle(llm, answers, **SAID)
    assert (found.verdict, found.kind, found.after) == (("same",), kind, 0)
    assert found.importance_error == 0
    assert found.log_mass < -0.05
    document = found.to_dict()
    assert document["distances"][kind]["mean_abs"] == 0
    assert document["told_like"] == [kind]


def test_nothing_is_applied_that_was_not_said(llm):
    found = oracle(llm, written(llm, temperature=1, top_p=1))
    assert found.fit.same_kinds == ["raw", "tempered", "final"]
    assert found.verdict == ("same",)


def test_another_temperature(llm):
    found = oracle(llm, written(llm, temperature=0.55, top_p=0.7), **SAID)
    assert found.verdict == ("temperature",)
    assert found.findings[0].evidence["temperature"] == 0.55
    assert found.after == 0


def test_another_order_of_the_chain(llm):
    said = {"temperature": 1.8, "top_p": 0.6}
    found = oracle(llm, written(llm, **said, preset="llama.cpp"), **said)
    assert found.verdict == ("order",)
    assert "llama.cpp" in found.sentence() or "mlx-lm" in found.sentence()
    assert found.after == 0


def test_a_changed_token(llm):
    answers = written(llm, **SAID)
    ids = answers[1].token_ids
    wrong = next(i for i in range(3, VOCAB) if i != ids[9])
    answers[1] = replace(answers[1], token_ids=(*ids[:9], wrong, *ids[10:]))
    found = oracle(llm, answers, **SAID)
    assert found.verdict == ("token",)
    [figures] = found.findings[0].evidence["tokens"]
    assert (figures["answer"], figures["token"], figures["id"]) == (1, 9, ids[9])
    assert found.after == 0


def test_another_template(llm):
    answers = written(llm, messages=True, **SAID)
    bare = [
        replace(a, prompt_token_ids=tuple(llm.tokenize(a.messages[0]["content"]))) for a in answers
    ]
    as_read = told(llm, bare, **SAID)
    said = [
        replace(a, prompt_token_ids=b.prompt_token_ids)
        for a, b in zip(as_read, answers, strict=True)
    ]
    found = oracle(llm, said, **SAID)
    assert found.verdict == ("template",)
    assert "words alone" in found.sentence()
    assert found.after == 0


def test_a_prompt_that_an_engine_told_itself(llm):
    [one, _] = written(llm, messages=True, **SAID)
    other = replace(
        one, prompt_token_ids=(*one.prompt_token_ids[:5], 260, *one.prompt_token_ids[5:])
    )
    found = oracle(llm, told(llm, [other], **SAID), **SAID)
    assert found.verdict == ("template",)
    assert found.findings[0].evidence["token"] == 5


def test_other_weights_are_named_where_they_are_given(llm, path):
    with LLM(path, quantize="q4_0", progress=False) as quantised:
        answers = told(quantised, written(llm, **SAID), "tempered", **SAID)
    others = {f: lambda f=f: LLM(path, quantize=f, progress=False) for f in ("q8_0", "q4_0")}
    found = oracle(llm, answers, other_weights=others, **SAID)
    assert found.verdict == ("quantisation",)
    assert found.sentence().startswith("another quantisation of the weights: q4_0, not tiny")
    assert found.after == 0


@pytest.mark.parametrize("said", [0, 1])
def test_raw_figures_leave_the_temperature_to_the_tokens(llm, said):
    answers = told(llm, written(llm, n=150, temperature=2.5, top_p=1), "raw")
    found = oracle(llm, answers, temperature=said, top_p=1)
    assert found.verdict == ("temperature",)
    assert oracle(llm, answers, temperature=2.5, top_p=1).verdict == ("same",)


def test_another_model_is_told_as_such(llm):
    answers = [replace(a, logprobs=(-15.0,) * len(a.logprobs)) for a in written(llm, **SAID)]
    assert "other" in oracle(llm, answers, **SAID).verdict


def tensors_of(path):
    """The tensors of a safetensors file, by the format's own definition."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    kinds = {"F32": "<f4", "I64": "<i8"}
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[start + begin : start + end], kinds[entry["dtype"]])
            found[name] = array.reshape(entry["shape"])
    return found


def test_whole_rows(llm, tmp_path):
    answers = written(llm, **SAID)
    oracle(llm, answers, rows=tmp_path / "rows.safetensors", **SAID)
    tensors = tensors_of(tmp_path / "rows.safetensors")
    assert (tensors["answers.1.logits"] == rows_of(llm, answers[1])).all()
    assert tensors["answers.0.token_ids"].tolist() == [*answers[0].token_ids]


def test_a_file_comes_back(llm, tmp_path):
    answers = written(llm, messages=True, n=4, **SAID)
    write_answers(tmp_path / "told.jsonl", answers)
    assert read_answers(tmp_path / "told.jsonl", llm) == answers


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[]", "line 2 must be an object with prompt_token_ids, "),
        ("{}", "line 2: token_ids must be a list that is not empty"),
        ('{"prompt":"a","token_ids":[5],"logprobs":[-1,-2]}', "1 token_ids and 2 logprobs"),
        ('{"prompt":"a","token_ids":[9999],"logprobs":[-1]}', "9999 is no token of tiny"),
        ('{"prompt":"a","token_ids":[5],"logprobs":[0.5]}', "natural logarithm of at most 0"),
        ('{"token_ids":[5],"logprobs":[-1]}', "line 2 has no prompt"),
        ("{", "line 2 is not JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_by_its_number(llm, tmp_path, line, sentence):
    file = tmp_path / "told.jsonl"
    file.write_text('{"prompt":"a","token_ids":[5],"logprobs":[-1]}\n' + line)
    with pytest.raises(InputError, match=sentence):
        read_answers(file, llm)


def test_settings_and_figures_are_asked_for(llm):
    [one, _] = written(llm, n=3, **SAID)
    with pytest.raises(InputError, match="max_tokens is no setting of the sampler"):
        oracle(llm, [one], max_tokens=3)
    with pytest.raises(InputError, match="told no log-probabilities"):
        oracle(llm, [replace(one, logprobs=(None,) * 3)])
    with pytest.raises(InputError, match="give the model more context"):
        oracle(llm, [replace(one, prompt_token_ids=(1,) * 600)])


# -- each server is asked in its own form; our own server's figures are the model's, to the bit ----


PROMPT = [1, 260, 261]
AB = [260, 261]  # "a" and "b"
TOLD = [-0.5, -1.25]

MODELS = {"/v1/models": {"data": [{"id": "m"}]}}
LEGACY = {"tokens": ["a", "bytes:\\x62"], "token_logprobs": TOLD}
FORMS = {
    "vllm": (
        {
            "/version": {"version": "0.11"},
            "/v1/completions": {"choices": [
                {"token_ids": AB, "logprobs": {"token_logprobs": TOLD}},
            ]},
        },
        "/v1/completions",
    ),
    "sglang": (
        {
            "/get_model_info": {"model_path": "m"},
            "/generate": {"meta_info": {
                "output_token_logprobs": [[-0.5, 260, "a"], [-1.25, 261, "b"]],
            }},
        },
        "/generate",
    ),
    "llama-server": (
        {
            "/props": {"total_slots": 1},
            "/completion": {"completion_probabilities": [
                {"id": 260, "logprob": -0.5}, {"id": 261, "logprob": -1.25},
            ]},
        },
        "/completion",
    ),
    "ollama": (
        {
            "/api/tags": {"models": []},
            "/api/generate": {"logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.25},
            ]},
        },
        "/api/generate",
    ),
    "openai": ({"/v1/completions": {"choices": [{"logprobs": LEGACY}]}}, "/v1/completions"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMS)
def test_each_server_in_its_own_form(tiny, kind):
    answers, path = FORMS[kind]
    with pretend(MODELS | answers) as (server, asked):
        assert kind_of(server) == kind
        [told] = ask(server, tiny, [PROMPT], max_tokens=2, temperature=0.5)
    assert (told.prompt_token_ids, told.token_ids, told.logprobs) == (
        tuple(PROMPT), tuple(AB), tuple(TOLD),
    )  # fmt: skip
    assert [where for where, _ in asked] == [path]
    assert "0.5" in json.dumps(asked[0][1])


OTHERS = (
    None, [], {}, "x", 7, -1, 0.5, 2**80, True, [None], [[]], ["x"], [{}], {"x": 1}, "\ud800",
)  # fmt: skip


def places(value, path=()):
    """The way to everything inside."""
    yield path
    if isinstance(value, dict | list):
        for name, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inside, (*path, name))


def replaced(document, path, value):
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = replaced(document[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("kind", FORMS)
def test_an_answer_of_another_form_is_one_sentence(tiny, kind):
    """Every value in it is replaced by others; what is told all the same is of the model."""
    honest, path = FORMS[kind]
    answers, refused = dict(MODELS | honest), 0
    with pretend(answers) as (server, _):
        for where in places(honest[path]):
            for other in OTHERS:
                answers[path] = replaced(honest[path], where, other)
                try:
                    [told] = ask(server, tiny, [PROMPT], max_tokens=2)
                except CutawayError as error:
                    assert len(str(error)) < 400
                    refused += 1
                    continue
                assert all(type(i) is int and 0 <= i < 264 for i in told.token_ids)
                assert all(p is None or -1e30 <= p <= 1e-3 for p in told.logprobs)
                assert len(told.token_ids) == len(told.logprobs)
    assert refused > 80


def test_what_a_server_lacks_is_said(tiny):
    nothing = {"/v1/completions": {"choices": [{"text": "ab", "logprobs": None}]}}
    with pretend(MODELS | nothing) as (server, _):
        with pytest.raises(InputError, match="told no log-probabilities of its tokens"):
            ask(server, tiny, [PROMPT])
        with pytest.raises(InputError, match=r"does not tell the log-probabilities of a prompt"):
            ask_echo(server, tiny, PROMPT)
        with pytest.raises(InputError, match="xtc_threshold is not sent to a server"):
            ask(server, tiny, [PROMPT], xtc_threshold=0.2)
    with pytest.raises(CutawayError, match="no answer"):
        ask(server, tiny, [PROMPT])
    with pytest.raises(InputError, match="url must begin with http"):
        Server("localhost:8000")


def test_our_own_server_tells_the_bits_of_the_model(tiny):
    with serve(tiny) as served:
        server = Server(served.url)
        assert kind_of(server) == "cutaway"
        told = ask(server, tiny, [PROMPT], max_tokens=9, temperature=0.8, top_p=0.9)
        told += ask(
            server, tiny, [[{"role": "user", "content": "ab"}]], max_tokens=9, temperature=0.8,
            top_p=0.9,
        )  # fmt: skip
        told.append(ask_echo(server, tiny, [*PROMPT, *AB]))
    assert told[-1].token_ids == (*PROMPT[1:], *AB)
    found = oracle(tiny, told, temperature=0.8, top_p=0.9)
    assert (found.kind, found.fit.best) == ("raw", 0)


def test_the_command(tiny_path, tmp_path, capsys):
    line = {"prompt_token_ids": PROMPT, "token_ids": AB, "logprobs": TOLD}
    file = tmp_path / "told.jsonl"
    file.write_text(json.dumps(line))
    words = ["oracle", str(file), "-m", str(tiny_path), "--temperature", "0.5"]
    assert main([*words, "--rows", str(tmp_path / "rows.safetensors")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("verdict: ")
    assert "2 tokens in 1 answers; it tells " in out
    assert (tmp_path / "rows.safetensors").exists()
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["temperature"] == 0.5
    assert [one["token_id"] for one in document["answers"][0]["readings"]] == AB


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x.jsonl"], "cannot read x.jsonl"),
        (["x.jsonl", "--prompt", "a"], "--prompt and --echo are for a server"),
        (["http://localhost:1"], "--prompt: say what to ask"),
        (["transformers:nowhere", "--echo", "a"], "--echo is for a server"),
        (["x.jsonl", "--top-p", "3"], "--top-p must be above 0"),
    ],
)
def test_what_the_command_refuses(tiny_path, capsys, words, sentence):
    assert main(["oracle", *words, "-m", str(tiny_path)]) == 2
    assert sentence in capsys.readouterr().err


def test_an_answer_of_the_same_model_is_exit_code_0(tiny_path, tiny, tmp_path, capsys):
    with serve(tiny) as served:
        words = [
            "oracle",
            served.url,
            "-m",
            str(tiny_path),
            "--prompt",
            "ab ba",
            "--max-tokens",
            "5",
        ]
        assert main([*words, "--save", str(tmp_path / "told.jsonl"), "-q"]) == 0
    assert "verdict: same" in capsys.readouterr().out
    assert main(["oracle", str(tmp_path / "told.jsonl"), "-m", str(tiny_path), "-q"]) == 0
