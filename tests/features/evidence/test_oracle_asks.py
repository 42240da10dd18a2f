"""Each server is asked in its own form; our own server's figures are the model's, to the bit."""

import json

import pytest

from cutaway.cli.main import main
from cutaway.errors import CutawayError, InputError
from cutaway.features.evidence.oracle import oracle
from cutaway.features.evidence.oracle.engines import ask, ask_echo, kind_of
from cutaway.rerun.asking import Server
from support.pretended import pretended
from support.served import serve

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
    with pretended(MODELS | answers) as (server, asked):
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
    with pretended(answers) as (server, _):
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
    with pretended(MODELS | nothing) as (server, _):
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
    assert (found.told, found.fit.best) == ("raw", 0)


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
