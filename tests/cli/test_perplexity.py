"""``cutaway perplexity`` held against logits, window by window, and what is refused."""

import json
import math

import numpy as np
import pytest

from cutaway import LLM
from support.random_llama import write_tiny_llama

TEXT = "ab ba  aab b\nbaab a ab é ba\n"


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that has no begin token."""
    path = tmp_path_factory.mktemp("endless") / "endless.gguf"
    none = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.bos_token_id": None}
    return write_tiny_llama(path, context=64, metadata=none)


def surprise(llm, ids, start, end):
    """Minus the log-probability of the token at ``end``, after those from ``start`` on."""
    logits = llm.logits(ids[start:end])[-1].astype(np.float64)
    return math.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[ids[end]]


def by_definition(llm, ids, context, stride):
    """The surprise of each token but the first."""
    found, done = [], 1
    while done < len(ids):
        end = min(len(ids), done + (stride if found else context))
        start = max(0, end - 1 - context)
        found += [surprise(llm, ids, start, at) for at in range(done, end)]
        done = end
    return found


@pytest.mark.parametrize(("context", "stride"), [(64, 64), (9, 9), (9, 4), (9, 1), (2, 1), (2, 2)])
def test_figures_are_those_of_the_logits(printed, tiny_path, story, context, stride):
    words = ["-m", tiny_path, "--context", context, "--json", story]
    words += [] if stride == context else ["--stride", stride]
    figures = json.loads(printed("perplexity", *words))
    with LLM(tiny_path, progress=False) as llm:
        ids = [llm.tokenizer.bos_id, *llm.tokenize(TEXT, add_bos=False)]
        expected = by_definition(llm, ids, context, stride)
    total, size = math.fsum(expected), len(TEXT.encode())
    beyond = len(expected) - context
    assert figures.pop("seconds") > 0
    assert figures == {
        "model": "tiny", "context": context, "stride": stride, "bytes": size,
        "tokens": len(expected), "windows": 1 + max(math.ceil(beyond / stride), 0),
        "log_likelihood": pytest.approx(-total, abs=1e-8),
        "perplexity": pytest.approx(math.exp(total / len(expected)), rel=1e-9),
        "bits_per_byte": pytest.approx(total / math.log(2) / size, rel=1e-9),
    }  # fmt: skip


@pytest.mark.parametrize(("text", "size"), [("aab b", 4), ("ab", 2), (" ab", 3), ("é", 2)])
def test_without_a_begin_token_the_first_is_not_scored(printed, endless, story, text, size):
    """Tokens begin with a space that is not in the text: " a" is one, and " " before others."""
    story.write_bytes(text.encode())
    figures = json.loads(printed("perplexity", "-m", endless, "--json", story))
    with LLM(endless, progress=False) as llm:
        ids = llm.tokenize(text)
        total = math.fsum(by_definition(llm, ids, 64, 64))
    assert (figures["tokens"], figures["bytes"]) == (len(ids) - 1, size)
    assert figures["bits_per_byte"] == pytest.approx(total / math.log(2) / size, rel=1e-9)


def test_the_report_and_standard_input(printed, tiny_path, story):
    words = ["perplexity", "-m", tiny_path, "--context", 9]
    figures = json.loads(printed(*words, "--json", "-", stdin=TEXT.encode()))
    assert figures["bytes"] == len(TEXT.encode())  # the last line feed too
    first, second, third, fourth = printed(*words, story).splitlines()
    tokens, nats = figures["tokens"], -figures["log_likelihood"] / figures["tokens"]
    shown = f"{figures['perplexity']:.4f}   {nats:.4f} nats a token, {tokens} tokens"
    assert first == f"perplexity     {shown}"
    assert second == f"bits per byte  {figures['bits_per_byte']:.4f}   {figures['bytes']} bytes"
    assert third == f"read           {figures['windows']} windows of 9 tokens"
    assert fourth.startswith("time ")


def test_progress_is_reported(tiny_path):
    heard = []
    with LLM(tiny_path, context=9, progress=False) as llm:
        found = llm.likelihood(TEXT, progress=lambda *told: heard.append(told))
        assert found == llm.likelihood(TEXT)
    done = [count for _, count, _ in heard]
    assert done == sorted(done)
    assert {(what, total) for what, _, total in heard} == {("scoring", len(found.token_ids))}
    assert heard[0][1] == 0
    assert 0 < heard[-1][1] == len(found.token_ids)


@pytest.mark.parametrize(
    ("data", "words", "said"),
    [
        (b"ab", ["--stride", "0"], "--stride must be between 1 and 512, not 0"),
        (b"ab", ["--context", "9", "--stride", "10"], "--stride must be between 1 and 9"),
        (b"ab\xff", [], "is not UTF-8 text (byte 2)"),
        (b"", [], "write more"),
        (None, [], "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_measured_is_refused(refused, tiny_path, tmp_path, data, words, said):
    path = tmp_path / "text"
    if data is not None:
        path.write_bytes(data)
    assert said in refused("perplexity", "-m", tiny_path, *words, path)
