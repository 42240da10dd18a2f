"""The plugin of pytest: what it asserts, what a red test says, fingerprints and the cache."""

import json
import re
from pathlib import Path
from shutil import copytree

import pytest

from cutaway import LLM
from cutaway.errors import InputError
from cutaway.features.integrations.served import ServedModel
from support.pretended import pretend
from support.served import serve

pytest_plugins = ["pytester"]
MODEL = "--cutaway-model"  # with "=", or pytest takes its value for a folder of tests


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Without plugins of others, which are installed where this runs."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def suite(pytester, tiny_path):
    """Runs tests of prompts with the tiny model, in a folder of their own."""

    def run(source, *flags):
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess(
            "-p", "cutaway.features.integrations.prompt_tests", "-q", f"{MODEL}={tiny_path}", *flags
        )

    return run


def said(result):
    return [line[4:] for line in result.outlines if line.startswith("E   ")]


GREEN = """
import pytest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}},
          "required": ["a"], "additionalProperties": False}

def test_text(ask):
    answer = ask("ab", max_tokens=4, ignore_eos=True)
    assert answer.contains(answer.text[:2]).lacks("§").equals(answer.text) is answer
    answer.matches(".").margin(0.0).certain(99.0).probable("a", 0.0)

def test_drawn(ask):
    ask("ab", max_tokens=4, temperature=1.0, seed=3, ignore_eos=True).margin(0.0)

def test_json(ask):
    ask("ab", json_schema=SCHEMA, max_tokens=60).has_json(SCHEMA)

def test_two(ask):
    one, two = ask("ab", max_tokens=3), ask("ab", max_tokens=3)
    assert one.fingerprint == two.fingerprint
"""


def test_what_holds_is_green(suite):
    suite(GREEN).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("assertion", "sentence"),
    [
        ("contains('zq')", r"the text has no 'zq'; nearest at token \d+: .* lost to .* by \d"),
        ("equals('zq')", r"the text is not 'zq'; nearest at token \d+"),
        ("lacks(answer.text[0])", r"the text has .*, from token 1: .* came before .* by \d"),
        ("matches('^§')", r"nothing that matches '\^§'; its least certain token is \d+"),
        ("margin(99)", r"a margin of \d\.\d+, below 99, at token \d+: .* came before"),
        ("certain(0)", r"a mean entropy of \d.* nats, above 0; most at token \d"),
        ("probable('zz', 1.0)", r"P\('zz'\) is \d.*, below 1.0: its least likely token is 'z"),
        ("has_json({})", "the text is no JSON"),
        ("calls('find', x=1)", r"does not call find\({'x': 1}\); its calls: none"),
    ],
)
def test_a_red_test_says_what_was_nearest(suite, assertion, sentence):
    source = f"""
    def test_it(ask):
        answer = ask("ab", max_tokens=5, ignore_eos=True, candidates=400)
        answer.{assertion}
    """
    result = suite(source)
    result.assert_outcomes(failed=1)
    assert re.search(sentence, " ".join(said(result))), said(result)


def test_what_would_draw_it_does(suite, tmp_path):
    """The logit_bias that a red test names makes its text begin as asked."""
    source = """
    import re
    import pytest

    def test_it(ask):
        asked = {"max_tokens": 1, "ignore_eos": True, "temperature": %s, "seed": 5,
                 "top_p": 1.0, "candidates": 400}
        with pytest.raises(AssertionError) as red:
            ask("ab", **asked).contains("zq")
        token, bias = re.search(r"logit_bias={(\\d+): ([\\d.]+)}", str(red.value)).groups()
        ask("ab", **asked, logit_bias={int(token): float(bias)}).contains("z")
    """
    for temperature in (0.0, 1.0):
        suite(source % temperature).assert_outcomes(passed=1)


SAME = """
def test_it(ask):
    ask("ab", max_tokens=%d, ignore_eos=True).same_bits()
"""


def test_fingerprints_are_kept_compared_and_updated(suite, pytester):
    first = suite(SAME % 3)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["*no fingerprint is kept: run pytest --update-fingerprints once*"])
    suite(SAME % 3, "--update-fingerprints").assert_outcomes(passed=1)
    suite(SAME % 3).assert_outcomes(passed=1)
    other = suite(SAME % 4)
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(["*has 4 tokens, and 3 were kept; they agree so far*"])
    [kept] = pytester.path.glob("*.fingerprints.json")
    wrong = json.loads(kept.read_text())
    wrong["test_it"]["1"]["tokens"][1] += 1
    kept.write_text(json.dumps(wrong))
    changed = suite(SAME % 3)
    changed.stdout.fnmatch_lines(["*token 2 was *: * came before *"])


def test_answers_are_cached_by_what_makes_their_bits(suite, pytester):
    counting = """
    def test_it(ask, llm, monkeypatch):
        calls = []
        was = type(llm).generate
        def generate(self, *args, **options):
            calls.append(args)
            return was(self, *args, **options)
        monkeypatch.setattr(type(llm), "generate", generate)
        texts = [ask("ab", max_tokens=3).text, ask("ab", max_tokens=3).text]
        ask("ab", max_tokens=3, seed=1)
        assert texts[0] == texts[1]
        assert len(calls) == %d
    """
    suite(counting % 2).assert_outcomes(passed=1)
    suite(counting % 0).assert_outcomes(passed=1)
    suite(counting % 2, "-p", "no:cacheprovider").assert_outcomes(failed=1)  # none: three calls


CALLS = """
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}}

def test_calls(ask, llm):
    blanks = llm.score([5], [" \\n\\t\\r"])[0].token_ids
    answer = ask(messages=[{"role": "user", "content": "hi"}], tools=[TOOL],
                 tool_choice="required", logit_bias={i: -40.0 for i in blanks}, max_tokens=100)
    answer.calls("f").same_bits()

def test_red(ask):
    ask("ab", max_tokens=5, ignore_eos=True, candidates=400).contains("zq")

def test_parted(ask):
    ask("ab", max_tokens=3, ignore_eos=True).same_bits()
"""


DAMAGED = (
    "", "<<<<<<< ours", "[]", "null", "7", '"x"', "[" * 100_000, '{"test_it": 7}',
    '{"test_it": {"1": []}}', '{"test_it": {"1": {"fingerprint": 7, "tokens": []}}}',
    '{"test_it": {"1": {"fingerprint": "0", "tokens": ["x"]}}}',
)  # fmt: skip


@pytest.mark.parametrize("kept", DAMAGED, ids=lambda kept: kept[:20])
def test_damaged_fingerprints_are_one_sentence(suite, pytester, kept):
    """Also when they are to be written anew: fingerprints of other tests are not thrown away."""
    source = "def test_it(ask):\n    ask('a', max_tokens=1).same_bits()"
    suite(source, "--update-fingerprints")
    [file] = pytester.path.glob("*.fingerprints.json")
    file.write_text(kept)
    for flags in ((), ("--update-fingerprints",)):
        result = suite(source, *flags)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*is damaged: restore it, or remove it and run pytest*"])
        assert "Traceback" not in result.stdout.str()
        assert file.read_text() == kept


def test_a_server_that_is_none_is_one_sentence(suite):
    source, listed = "def test_it(ask):\n    ask('a')", {"data": [{"owned_by": "cutaway"}]}
    with pretend({"/v1/models": listed}) as (server, _):
        result = suite(source, f"--cutaway-url={server.url}", f"{MODEL}=")
    result.stdout.fnmatch_lines(["UnreadableError: */v1/models.data[[]0[]]: it has no id"])
    assert "exception occurred" not in result.stdout.str()


def test_a_server_s_answers_are_tested_as_those_of_this_process(suite, pytester, tiny_path):
    """The same sentences and fingerprints; what cannot be sent is said."""
    suite(CALLS, "--update-fingerprints")
    here = said(suite(CALLS))
    with serve(LLM(tiny_path, threads=1, progress=False)) as served:
        url = f"--cutaway-url={served.url}", f"{MODEL}="
        suite(GREEN, *url).assert_outcomes(passed=4)
        there = suite(CALLS, *url)
        there.assert_outcomes(passed=2, failed=1)
        assert said(there) == here
        [kept] = pytester.path.glob("*.fingerprints.json")
        wrong = json.loads(kept.read_text())
        wrong["test_parted"]["1"]["tokens"][1] = 5
        kept.write_text(json.dumps(wrong))
        suite(CALLS, *url).stdout.fnmatch_lines(["*token 2 was *: * came before *"])
        refused = suite('def test_it(ask):\n    ask("a", stop={1, 2})', *url)
        refused.stdout.fnmatch_lines(["*InputError: a server is asked in JSON: *set*"])


def test_another_server_tells_no_trace():
    with (
        pretend({"/v1/models": {"data": [{"id": "m"}]}}) as (server, _),
        pytest.raises(InputError, match="is no server of cutaway, and tells no trace"),
    ):
        ServedModel(server.url)


def test_the_example_has_one_red_test(pytester, smollm2_path):
    """That of the docs: 20 tests, of which one is red on purpose."""
    folder = Path(__file__).parents[3] / "docs" / "prompt_tests"
    copytree(folder, pytester.path, dirs_exist_ok=True)
    plugin = ["-p", "cutaway.features.integrations.prompt_tests", f"{MODEL}={smollm2_path}"]
    result = pytester.runpytest_inprocess(*plugin, "-q")
    result.assert_outcomes(passed=19, failed=1)
    told = " ".join((folder.parent / "prompt-tests.md").read_text().replace("\n> ", " ").split())
    assert said(result)[0].strip() in told
