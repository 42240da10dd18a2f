"""Models without any attention: a text has states, and no keys and values."""

import pickle
import threading
from threading import Thread
from time import monotonic, sleep

import numpy as np
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.cli.main import main
from cutaway.compute.backends import Computer
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.requests import drafting
from cutaway.requests.drafting import load_draft
from cutaway.requests.generation import Generation
from support.piped import Piped
from support.random_llama import VOCAB, WORDS, write_tiny_llama
from support.random_mamba2 import write_tiny_mamba2

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.files import hub

TEXT = np.random.default_rng(0).integers(10, VOCAB, 70).tolist()
OPTIONS = {"max_tokens": 30, "ignore_eos": True, "seed": 3, "temperature": 1.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_mamba2(tmp_path_factory.mktemp("mamba") / "mamba.gguf")


def test_every_way_to_write_a_text_writes_the_same(path, tmp_path):
    llm = LLM(path)
    plain = llm.generate(TEXT, kv_cache=False, **OPTIONS)
    together = llm.generate([TEXT, TEXT[:40], TEXT], **OPTIONS)
    drafted = llm.generate(TEXT, speculate="ngram", **OPTIONS)
    saved = str(tmp_path / "prefix")
    llm.save_prefix(saved, TEXT[:64])
    other = LLM(path, kv_tokens=128, context=128)
    other.restore_prefix(saved)
    found = other.generate([TEXT] * 2, **OPTIONS)  # more than there is room for at once
    assert found[0].usage.cached_tokens == 64
    for one in (together[0], together[2], drafted, *found):
        assert (one.token_ids, one.fingerprint) == (plain.token_ids, plain.fingerprint)


def test_backends_agree(path):
    ours, other = (LLM(path, backend=name).logits(TEXT) for name in ("cpu", "reference"))
    assert np.abs(ours - other).max() < 0.05 * np.abs(other).max()


def test_it_is_shown_and_recorded(path, tmp_path, capsys):
    trace = tmp_path / "run.jsonl.gz"
    LLM(path).generate(TEXT, trace=str(trace), **OPTIONS)
    assert main(["trace", "replay", str(trace), "-m", str(path)]) == 0
    assert main(["models", "show", str(path)]) == 0
    assert "0 bytes a token" in capsys.readouterr().out


# -- padding rows ----------------------------------------------------------------------------------

# Rows of the output matrix for which the tokenizer has no token: they are never drawn.


FIRST = VOCAB - 100  # of the rows without a token
KINDS = [2, 3, 3, *[6] * 256, *[1] * 5]
HOT = {"temperature": 5.0, "max_tokens": 60, "ignore_eos": True}


def tokens_with(name):
    tokens = ["<unk>", "<s>", "</s>", *WORDS]
    return [*tokens[:FIRST], *map(name, range(FIRST, VOCAB))]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(a model whose last rows are padding, the same whose last tokens are unused ones)"""
    folder = tmp_path_factory.mktemp("padded")
    kinds = [*KINDS[:FIRST], *[5] * (VOCAB - FIRST)]
    names = {"padded": "[PAD{}]", "unused": "<unused{}>"}
    metadata = {"tokenizer.ggml.token_type": kinds}
    paths = [
        write_tiny_llama(
            folder / f"{key}.gguf",
            metadata=metadata | {"tokenizer.ggml.tokens": tokens_with(name.format)},
        )
        for key, name in names.items()
    ]
    with LLM(paths[0], progress=False) as padded, LLM(paths[1], progress=False) as unused:
        yield padded, unused


@pytest.mark.parametrize(
    "how",
    [{}, {"speculate": "ngram"}, {"speculate": "jacobi"}, {"top_p": 0.9}, {"bad_words": ["q"]}],
    ids=str,
)
def test_they_are_never_drawn(models, how):
    padded, unused = models
    texts = padded.generate("a", seed=1, n=4, **HOT, **how)
    assert max(i for text in texts for i in text.token_ids) < FIRST
    assert (
        max(i for text in unused.generate("a", seed=1, n=4, **HOT) for i in text.token_ids) > FIRST
    )


def test_they_are_masked_before_the_softmax(models):
    """So that what is left shares all of the probability, as under a schema; the row's own hash
    and the log-probability are of the whole row, as recorded."""
    for llm in models:
        [step] = llm.generate("a", temperature=0, max_tokens=1, ignore_eos=True).steps
        allowed = llm.generate(
            "a", temperature=0, max_tokens=1, ignore_eos=True, allowed_token_ids=[*range(FIRST)]
        ).steps[0]
        assert step.logits_hash == allowed.logits_hash
    padded, unused = models
    given = {"temperature": 1.0, "max_tokens": 1, "seed": 3}
    [a] = padded.generate("a", **given).steps
    [b] = unused.generate("a", **given, allowed_token_ids=[*range(FIRST)]).steps
    assert a._replace(id=0, phases=None) == b._replace(id=0, phases=None)


def test_a_model_without_such_rows_has_no_mask(models):
    padded, unused = models
    assert padded.tokenizer.padding_ids == (*range(FIRST, VOCAB),)
    assert unused.tokenizer.padding_ids == ()


# -- without weights -------------------------------------------------------------------------------

# A model opened without its weights says all that its file says, and computes nothing.


SETUPS = [
    Setup(), Setup(kv="q8_0"), Setup(context=40, kv_tokens=100), Setup(backend="reference"),
    Setup(quantize="q8_0"),
]  # fmt: skip
SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}


@pytest.mark.parametrize("setup", SETUPS, ids=repr)
def test_it_says_what_the_loaded_model_says(tiny_path, setup):
    loaded = LoadedModel.open(tiny_path, setup, progress=False)
    threads = threading.active_count()
    without = LoadedModel.open(tiny_path, setup, progress=False, weights=False)
    assert threading.active_count() == threads
    assert without.computer == Computer(loaded.backend.name, "elsewhere", 0)
    without.elsewhere = loaded.computer
    for what in ("name", "config", "context", "kv", "computer", "identity", "arithmetic",
                 "computed_by", "pooling"):  # fmt: skip
        assert getattr(without, what) == getattr(loaded, what), what
    assert without.kv_tokens == loaded.kv_tokens
    assert loaded.kv_tokens == loaded.backend.kv_blocks * loaded.backend.kv.block_tokens
    assert without.tokenizer.encode("ab") == loaded.tokenizer.encode("ab")


@pytest.mark.parametrize("use", [LLM, AsyncLLM, lambda model: model.backend])
def test_nothing_can_be_computed_with_it(tiny_path, use):
    without = LoadedModel.open(tiny_path, progress=False, weights=False)
    with pytest.raises(InputError, match="opened without its weights"):
        use(without)


def told(done):
    return {k: v for k, v in done.to_dict().items() if k not in ("timing", "usage")}


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3},
        {"regex": "[ab]{3,9}", "ignore_eos": False},
        {"suffix": "b", "max_tokens": 4, "n": 2},
        {"logprobs": 2},
    ],
)
async def test_what_it_asks_of_one_elsewhere_is_what_that_one_writes(tiny_path, options):
    asked = {**SAMPLED, "n": 1, **options}
    async with Piped(AsyncLLM(LLM(tiny_path, threads=1, progress=False))) as llm:
        there = await llm.generate(["ab"], **asked)
    here = LLM(tiny_path, threads=1, progress=False).generate(["ab"], **asked)
    for one, other in zip(*(np.ravel(done) for done in (there, here)), strict=True):
        assert told(one) == told(other)


class Own:
    """A check that is nobody's but the caller's."""

    def allows(self, _text, _token):
        return True


@pytest.mark.parametrize("option", [{"processors": (lambda _ids, row: row,)}, {"check": Own()}])
@pytest.mark.parametrize("more", [{}, {"suffix": "b"}])
async def test_what_is_of_this_process_alone_is_refused_by_name(tiny_path, option, more):
    async with Piped(AsyncLLM(LLM(tiny_path, threads=1, progress=False))) as llm:
        with pytest.raises(InputError, match=f"^{min(option)}: .* sent to another process"):
            await llm.generate("ab", **option, **more)


def test_a_text_arrives_without_its_model_and_has_it_again(tiny_path):
    llm = LLM(tiny_path, threads=1, progress=False)
    with llm.stream("ab", **SAMPLED) as stream:
        for _ in stream:
            pass
    arrived = pickle.loads(pickle.dumps(stream))
    assert type(arrived) is Generation
    arrived.belongs_to(LoadedModel.open(tiny_path, progress=False, weights=False))
    assert told(arrived.completion()) == told(stream.completion())


# -- toy writer ------------------------------------------------------------------------------------

# The toy that writes and comes with the package: its bytes and bits are the pinned ones.


FINGERPRINT = "dc99b9a2387e600d"
TOY_TEXT = ", who had been used to disgrace her to anybody, and whose want of provis"


@pytest.fixture(scope="module")
def toy():
    with LLM("toy-writer", backend="cpu", progress=False) as llm:
        yield llm


def test_it_is_part_of_the_package_and_whole():
    [listed] = [model for model in hub.available() if model.name == "toy-writer"]
    assert listed.state == "in package"
    assert hub.verify("toy-writer") == listed.path


@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_a_text_and_its_bits_are_the_pinned_ones(toy, speculate):
    found = toy.generate("Mr. Darcy", max_tokens=24, seed=1, speculate=speculate)
    assert (found.fingerprint, found.text) == (FINGERPRINT, TOY_TEXT)


def test_every_text_can_be_read_and_written(toy):
    text = "Größe: “x”, 猫\t🦜\r\n"
    assert toy.tokenizer.decode(toy.tokenizer.encode(text)) == text


# -- llm draft -------------------------------------------------------------------------------------

# Draft models of an LLM: which fit, when they may be changed, how far they draft.


DRAFT_OPTIONS = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def llm(tiny_path):
    return LLM(tiny_path)


def test_a_dropped_text_does_not_stand_in_the_way(llm, tiny_path, free_drafts):
    plain = llm.generate("ab", **DRAFT_OPTIONS)
    stream = llm.stream("b", **DRAFT_OPTIONS)
    next(stream)
    del stream
    guessed = llm.generate("ab", speculate=f"draft:{tiny_path}", **DRAFT_OPTIONS)
    assert guessed.token_ids == plain.token_ids
    assert guessed.speculation.accepted > 0


def test_two_first_requests_for_one_draft_model_load_it_once(llm, tiny_path, monkeypatch):
    found, loads = [], []

    def generate():
        found.append(llm.generate("ab", speculate=f"draft:{tiny_path}", **DRAFT_OPTIONS).text)

    other = Thread(target=generate)

    def load(*args, **options):
        loads.append(args)
        if len(loads) == 1:
            other.start()
            latest = monotonic() + 30
            while len(llm.owner._turns._line) < 2 and monotonic() < latest:
                sleep(0.001)
        load_draft(*args, **options)

    monkeypatch.setattr(drafting, "load_draft", load)
    generate()
    other.join(30)
    assert len(loads) == 1 and len(found) == 2


def test_another_draft_model_waits_for_the_texts_that_run(llm, tiny_path, free_drafts):
    stream = llm.stream("b", **DRAFT_OPTIONS)
    next(stream)
    with pytest.raises(InputError, match="while texts run"):
        llm.generate("ab", speculate=f"draft:{tiny_path}", **DRAFT_OPTIONS)
    stream.finish()
    assert (
        llm.generate("ab", speculate=f"draft:{tiny_path}", **DRAFT_OPTIONS).speculation.accepted > 0
    )


def test_other_tokens_are_refused_and_change_nothing(llm, tiny_path, tmp_path, free_drafts):
    tokens = ["<unk>", "<s>", "</s>", *WORDS[:-1], "c"]
    other = write_tiny_llama(tmp_path / "other.gguf", metadata={"tokenizer.ggml.tokens": tokens})
    sentence = "other has other tokens than the model it is to draft for"
    with pytest.raises(InputError, match=sentence):
        llm.generate("ab", speculate=f"draft:{other}", **DRAFT_OPTIONS)
    assert (
        llm.generate("ab", speculate=f"draft:{tiny_path}", **DRAFT_OPTIONS).speculation.accepted > 0
    )


def test_a_draft_model_of_less_context_guesses_as_far_as_it_reads(llm, tmp_path, free_drafts):
    short = write_tiny_llama(tmp_path / "short.gguf", context=16)
    plain = llm.generate("ab", **DRAFT_OPTIONS)
    guessed = llm.generate("ab", speculate=f"draft:{short}", **DRAFT_OPTIONS)
    assert guessed.token_ids == plain.token_ids
    sources = [step.source for step in guessed.steps]
    assert "draft" in sources
    assert all(s.position < 16 for s in guessed.steps if s.source == "draft")


def test_a_draft_model_that_does_not_fit_into_memory_is_said_in_a_sentence(
    llm, tiny_path, monkeypatch
):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr("cutaway.compute.loading.model.backends.load", full)
    with pytest.raises(InputError, match=r"tiny\.gguf does not fit into memory beside the model"):
        llm.generate("ab", speculate=f"draft:{tiny_path}", **DRAFT_OPTIONS)
