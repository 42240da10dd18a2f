"""``cutaway generate --input``: what a line may hold, what its record says, and every line once."""

import io
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import InputError
from cutaway.cli.bulk import Lines, Records
from support import held_steps
from support.bulk_runs import PYTHON, essence, index_by_line, records


def test_each_line_is_answered_as_it_is_alone(bulk, llm):
    lines = ["ab", {"prompt": "b", "seed": 9, "id": "x"},
             {"prompt": [1, 9], "id": None, "priority": 3}, {"prompt": "b", "n": 2},
             {"prompt": "a", "logit_bias": {"5": 100}}]  # fmt: skip
    code, found, said = bulk(lines, "--seed", "1", "--max-tokens", "5", "--temperature", "1")
    assert (code, len(found)) == (0, 5)
    of = index_by_line(found)
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
    of = index_by_line(found)
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
    of = index_by_line(found)
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
        b"[" * 1000: "this line is nested deeper than 64 levels; make it flatter",
        b"[" * 100_000: "this line holds more than 32768 lists and objects; give fewer",
        b"1" * 5000: "(5000 characters) is too large",
        b'"\\ud800"': "is half of a surrogate pair; give whole characters",
        b'{"prompt": "a", "prompt": "b"}': "the key 'prompt' is given twice in one object",
        b'{"prompt": "a", "trace": "no/such/run.jsonl"}': "a line of a batch file cannot be traced",
        b'{"prompt": "a", "logit_bias": {"1": 2, "01": 3}}': "token id must be a whole number",
    }  # fmt: skip
    code, found, said = bulk([*lines, b"", b" \r", "ab"], "--max-tokens", "2")
    of = index_by_line(found)
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
    of = index_by_line([json.loads(line) for line in done.stdout.splitlines()])
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


# -- interrupted: every line is answered once, whatever happens ------------------------------------


def test_lines_with_a_record_are_not_repeated(bulk, tmp_path):
    code, first, _ = bulk(["ab", "b", "a", "aa"], "--max-tokens", "3")
    kept = [record for record in first if record["line"] != 2]
    texts = "".join(json.dumps(record) + "\n" for record in kept)
    (tmp_path / "out.jsonl").write_text(texts)
    code, second, said = bulk(None, "--max-tokens", "3")
    assert code == 0 and "1 line in" in said
    assert said.startswith("3 of 4 lines have their record already\n")
    assert second[:3] == kept and second[3]["line"] == 2
    before = (tmp_path / "out.jsonl").stat()
    code, third, said = bulk(None, "--max-tokens", "3")
    assert (code, third, said) == (0, second, "4 of 4 lines have their record already\n")
    assert bulk(None, "--max-tokens", "3", "-q")[2] == ""
    assert (tmp_path / "out.jsonl").stat().st_mtime_ns == before.st_mtime_ns


def test_a_record_cut_off_anywhere_is_written_again(bulk, tmp_path):
    path, args = tmp_path / "out.jsonl", ["--max-tokens", "1", "--seed", "1"]
    _, whole, _ = bulk(["ab", "b"], *args)
    first, second = path.read_bytes().splitlines(keepends=True)
    for cut in [*range(1, 120, 7), *range(85, 110), len(second) - 1]:
        path.write_bytes(first + second[:cut])
        code, found, _ = bulk(None, *args)
        assert code == 0
        assert [essence(r) for r in found] == [essence(r) for r in whole]


NOT_OURS = [
    b"hello", b"hello\n", b"{}\n", b"[]\n", b'"ab"\n', b'{"line": 1}\n', b"\n", b'{"line": true}\n',
    b'{"line": 1, "request_sha256": "zz', b'{"line": 77, "', b'{"line": 0, "', b'{"line": ab',
    b'{"line": 1, "x', b"\0" * 10, b"[" * 100_000 + b"\n", b'{"id', b'{"line": 1 ',
]  # fmt: skip


@pytest.mark.parametrize("content", NOT_OURS, ids=range(len(NOT_OURS)))
@pytest.mark.parametrize("begun", [False, True])
def test_a_file_of_another_kind_is_refused_untouched(bulk, tmp_path, content, begun):
    path = tmp_path / "out.jsonl"
    if begun:
        bulk(["ab", "b"], "--max-tokens", "1")
        content = path.read_bytes().splitlines(keepends=True)[0] + content
    path.write_bytes(content)
    code, said = bulk(["ab", "b"], "--max-tokens", "1", read=False)[::2]
    assert code == 2
    assert not (begun and "line 1 " in said)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("lines", "args"),
    [(["ab", "c"], []), (["b", "ab"], []), (["ab"], []), ([], []), (["", "ab", "b"], []),
     (None, ["--seed", "2"]), (None, ["--top-k", "1"])],
)  # fmt: skip
def test_records_of_another_request_are_refused(bulk, tmp_path, lines, args):
    bulk(["ab", "b"], "--seed", "1", "--max-tokens", "1")
    before = (tmp_path / "out.jsonl").read_bytes()
    code, _, said = bulk(lines, *(args or ["--seed", "1"]), "--max-tokens", "1")
    assert code == 2
    assert "is a record of another input, model or options" in said
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_second_record_of_a_line_is_refused(bulk, tmp_path):
    bulk(["ab"], "--max-tokens", "1")
    path = tmp_path / "out.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    assert bulk(None, "--max-tokens", "1")[0] == 2


@given(
    lines=st.lists(st.sampled_from([b"", b" ", b"a", b"bb", b"\xff"]), max_size=6),
    order=st.randoms(), cut=st.integers(0, 400), ends=st.booleans(),
)  # fmt: skip
def test_what_is_left_is_what_has_no_whole_record(tmp_path_factory, lines, order, cut, ends):
    path = tmp_path_factory.mktemp("r") / "out"
    text = b"\n".join(lines) + b"\n" * ends
    real = [n for n, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    order.shuffle(real)
    asked = Lines(io.BytesIO(text), "salt")
    assert (list(asked.left()), asked.count) == (sorted(real), len(real))
    with Records(str(path), asked) as out:
        for number in real:
            out.write(asked.head(number) | {"error": None if number % 2 else "bad"})
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    again = Lines(io.BytesIO(text), "salt")
    with Records(str(path), again):
        pass
    kept = whole[:cut].count(b"\n")
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:kept])
    assert list(again.left()) == sorted(real[kept:])
    assert (again.done, again.failed) == (kept, sum(n % 2 == 0 for n in real[:kept]))


def test_two_runs_do_not_write_one_file(tmp_path):
    asked, path = Lines(io.BytesIO(b"a\n"), ""), str(tmp_path / "out")
    with Records(path, asked), pytest.raises(InputError, match="another process writes to it"):
        Records(path, asked)


# -- interruptions ------------------------------------------------------------------------------


def many_lines(count):
    return [{"prompt": "ab" * (i % 5 + 1), "id": i, "max_tokens": 5 + i % 90} for i in range(count)]


def generate_args(tiny, tmp_path):
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    return ["generate", "-m", tiny, *files, "--seed", "5", "--ignore-eos"]


def size(path):
    return path.stat().st_size if path.exists() else 0


def grown(child, path, more):
    """Wait until the file is bigger, or the child has ended."""
    wanted = size(path) + more
    while size(path) < wanted and child.poll() is None:
        time.sleep(0.0005)


KILLED = """\
import resource, signal, sys
from cutaway.cli.main import main
sys.dont_write_bytecode = True  # no file but the records
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main())
"""
"""The command that the system kills, without a word, where a file would grow beyond so many bytes.

A signal of the test's would come at a moment that nobody knows, or after the end.
"""


def test_a_kill_at_any_byte_loses_and_repeats_no_line(tiny, llm, tmp_path):
    lines, luck, kills = many_lines(40), random.Random(1), 0
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    while True:
        limit = size(tmp_path / "out") + luck.randrange(1, 80_000)
        command = [sys.executable, "-c", KILLED, str(limit), *generate_args(tiny, tmp_path)]
        done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGXFSZ, done.stderr
        assert size(tmp_path / "out") == limit
        kills += 1
    assert kills >= 3
    of = index_by_line(records(tmp_path / "out"))
    assert set(of) == set(range(1, len(lines) + 1))
    for number, line in enumerate(lines, 1):
        own = {"max_tokens": line["max_tokens"], "seed": 5, "ignore_eos": True}
        alone = json.loads(json.dumps(llm.generate(line["prompt"], **own).to_dict()))
        assert of[number]["id"] == line["id"]
        assert essence(of[number]) == essence(alone)


def test_ctrl_c_keeps_what_is_written_and_says_how_to_resume(tiny, tmp_path):
    lines = many_lines(2000)
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = generate_args(tiny, tmp_path)
    with held_steps.run(100, *args, stderr=subprocess.PIPE) as child:
        grown(child, tmp_path / "out", 1)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate()
    done = len(index_by_line(records(tmp_path / "out")))
    assert child.returncode == 130
    assert (
        f"interrupted: {done} of 2000 lines are done in {tmp_path / 'out'}; run the"
        in said.decode()
    )
    assert f"{done} line" in said.decode()
    assert b"Traceback" not in said and 0 < done < 2000
