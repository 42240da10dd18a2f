"""``cutaway generate --input``: what a line may hold, what its record says, what is refused."""

import json
import os
import pty
import subprocess
import sys
from hashlib import sha256

import pytest

from support.bulk_runs import PYTHON, by_line, essence


def test_each_line_is_answered_as_it_is_alone(bulk, llm):
    lines = ["ab", {"prompt": "b", "seed": 9, "id": "x"},
             {"prompt": [1, 9], "id": None, "priority": 3}, {"prompt": "b", "n": 2},
             {"prompt": "a", "logit_bias": {"5": 100}}]  # fmt: skip
    code, found, said = bulk(lines, "--seed", "1", "--max-tokens", "5", "--temperature", "1")
    assert (code, len(found)) == (0, 5)
    of = by_line(found)
    options = {"seed": 1, "max_tokens": 5, "temperature": 1}
    for number, prompt, own in [
        (1, "ab", {}), (2, "b", {"seed": 9}), (3, [1, 9], {}), (5, "a", {"logit_bias": {5: 100}}),
    ]:  # fmt: skip
        alone = llm.generate(prompt, **options | own).to_dict()
        assert essence(of[number]) == essence(json.loads(json.dumps(alone)))
        assert set(of[number]) - set(alone) - {"id"} == {"line", "request_sha256"}
    both = llm.generate("b", n=2, **options)
    assert [essence(s) for s in of[4]["samples"]] == [
        essence(json.loads(json.dumps(c.to_dict()))) for c in both
    ]
    assert of[2]["id"] == "x" and of[3]["id"] is None and "id" not in of[1]
    assert "5 lines in" in said and said.count("\n") == 1  # no progress where nobody looks


def test_without_a_seed_each_line_has_its_own(bulk):
    _, found, _ = bulk(["ab"] * 4, "--max-tokens", "1")
    assert len({record["seed"] for record in found}) == 4
    assert {record["params_source"]["seed"] for record in found} == {"chosen"}


def test_messages_use_the_chat_template(bulk, llm):
    messages = [{"role": "user", "content": "ab"}]
    begun = {"messages": [*messages, {"role": "assistant", "content": "b"}]}
    goes_on = {**begun, "continue_final_message": True}
    _, found, _ = bulk([{"messages": messages}, goes_on], "--max-tokens", "1")
    of = by_line(found)
    assert of[1]["prompt_token_ids"] == llm.chat_prompt(messages)
    assert of[2]["prompt_token_ids"] == llm.chat_prompt(**goes_on)


def test_a_line_may_have_a_grammar(bulk):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    lines = [{"prompt": "a", "json_schema": schema, "json_compact": True},
             {"prompt": "a", "regex": "x{7}"}, {"prompt": "a", "choice": ["yy"]},
             {"prompt": "a", "grammar": 'root ::= "z" "z"'}, {"prompt": "a", "regex": "(a"},
             {"prompt": "a", "json_schema": {"format": "iri", "type": "string"}}]  # fmt: skip
    code, found, _ = bulk(lines, "--max-tokens", "40")
    of = by_line(found)
    assert code == 1 and json.loads(of[1]["text"]).keys() == {"a"} and " " not in of[1]["text"]
    assert [of[i]["text"] for i in (2, 3, 4)] == ["xxxxxxx", "yy", "zz"]
    assert of[5]["error"].startswith("regex: ") and of[6]["error"].startswith("json_schema: ")


def test_bad_lines_say_why_and_the_others_are_answered(bulk):
    lines = {
        b"nope": "this line is not JSON: expecting value at column 1",
        b"\xff": "this line is not UTF-8 at column 1",
        b"5": "must be a string",
        b"{}": "must be a string, or an object", b'{"prompt": "a", "messages": []}': "must be",
        b'{"messages": 5}': "messages must be a list", b'{"messages": []}': "messages is empty",
        b'{"prompt": null}': "prompt must be", b'{"prompt": "a", "tmperature": 1}': "did you mean",
        b'{"prompt": "a", "logit_bias": {"x": 1}}': "token id must be a whole number",
        b'{"prompt": "' + b"a" * 500 + b'"}': "prompt has", b"[1, 9]": "must be a string",
        b'{"prompt": "a", "id": NaN}': "NaN is not JSON; give a finite number",
        b"[" * 100_000: "this line is nested deeper than 64 levels; make it flatter",
        b"1" * 5000: "(5000 characters) is too large",
        b'"\\ud800"': "is half of a surrogate pair; give whole characters",
        b'{"prompt": "a", "prompt": "b"}': "the key 'prompt' is given twice in one object",
        b'{"prompt": "a", "trace": "no/such/run.jsonl"}': "a line of a batch file cannot be traced",
        b'{"prompt": "a", "logit_bias": {"1": 2, "01": 3}}': "token id must be a whole number",
    }  # fmt: skip
    code, found, said = bulk([*lines, b"", b" \r", "ab"], "--max-tokens", "2")
    of = by_line(found)
    assert code == 1
    assert (
        f"cutaway: error: {len(lines)} of {len(lines) + 1} lines failed; their records in" in said
    )
    for number, sentence in enumerate(lines.values(), 1):
        assert sentence in of[number]["error"]
    assert of[len(lines) + 3]["error"] is None
    assert len(of) == len(lines) + 1
    assert bulk(None, "--max-tokens", "2")[0] == 1  # nothing is left to do, and they failed still


def test_a_bad_line_keeps_its_id(bulk):
    _, found, _ = bulk([{"id": [1, {"a": "ü"}], "prompt": 5}])
    assert found[0]["id"] == [1, {"a": "ü"}]
    assert "prompt must be" in found[0]["error"]


def test_the_hash_is_of_the_request(bulk, tiny):
    _, found, _ = bulk(["ab"], "--seed", "1", "--max-tokens", "1")
    salt = json.dumps({"model": tiny, "options": {"max_tokens": 1, "seed": 1}})
    assert found[0]["request_sha256"] == sha256(f'{salt}\n"ab"'.encode()).hexdigest()


@pytest.mark.parametrize(
    ("before", "after"),
    [(["--context", "16"], ["--context", "32"]), (["--backend", "reference"], [])],
)
def test_what_else_a_text_depends_on_is_in_the_hash(bulk, before, after):
    bulk(["ab"], "--max-tokens", "2", *before)
    code, _, said = bulk(None, "--max-tokens", "2", *after)
    assert code == 2
    assert "record of another input, model or options" in said
    assert bulk(None, "--max-tokens", "2", *before, "--threads", "1", "--kv-tokens", "64")[0] == 0


def test_price_and_quiet(bulk):
    _, found, said = bulk(["ab"], "--max-tokens", "2", "--price", "1,2", "-q")
    assert found[0]["cost"]["output"] == pytest.approx(4e-6)
    assert said == ""
    assert "cost 0.0000" in bulk(["ab"], "--price", "1,2", "--max-tokens", "2", output="other")[2]


# -- files and arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["x", "--input", "a", "--output", "b"], "not both"),
        (["--input", "a"], "belong together"),
        (["--output", "a"], "belong together"),
        (["x", "--output", "a"], "give a prompt, or --input and --output, not both"),
        (["--input", "no such", "--output", "b"], "cannot read no such: No such file"),
        (["--input", "/", "--output", "b"], "cannot read /: Is a directory"),
        (["--input", "/dev/null", "--output", "/"], "cannot write /: Is a directory"),
        (["--input", "/dev/null", "--output", "/no/such"], "cannot write /no/such: No such file"),
        (["--input", "/dev/null", "--output", "b", "--top-p", "2"], "--top-p must be"),
    ],
)
def test_bad_arguments_are_one_sentence(tmp_path, monkeypatch, refused, args, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("generate", "-m", "no such model", *args)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_input_has_an_empty_output(bulk):
    assert bulk([]) == (0, [], "")


def test_pipes(tiny):
    files = ["--input", "-", "--output", "-", "--max-tokens", "1"]
    done = subprocess.run(
        [*PYTHON, "-m", tiny, *files], input=b'"ab"\n\n"b"', capture_output=True, check=True
    )
    of = by_line([json.loads(line) for line in done.stdout.splitlines()])
    assert set(of) == {1, 3}
    assert done.stderr.count(b"\n") == 1 and b"\r" not in done.stderr


def test_a_terminal_sees_a_bar(tiny, tmp_path):
    (tmp_path / "in").write_text('"ab"\n' * 30)
    ours, theirs = pty.openpty()
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    with os.fdopen(ours, "rb") as seen:
        args = [*PYTHON, "-m", tiny, *files, "--max-tokens", "2"]
        with subprocess.Popen(args, stderr=theirs) as child:
            os.close(theirs)
            line, closing = seen.readline(), seen.readline()
    assert child.returncode == 0
    assert b"\r  generating " in line and b"30 of 30 lines, " in line and b"tokens/s" in line
    assert b"30 lines in" in closing


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_full_disk_is_one_sentence(tiny, tmp_path, cutaway):
    (tmp_path / "in").write_text('"ab"\n')
    files = ["--input", tmp_path / "in", "--output", "/dev/full", "--max-tokens", "1"]
    sentence = "cutaway: error: cannot write /dev/full: No space left on device\n"
    assert cutaway("generate", "-m", tiny, *files) == (1, "", sentence)
