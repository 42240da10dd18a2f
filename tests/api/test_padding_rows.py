"""Rows of the output matrix for which the tokenizer has no token: they are never drawn."""

import pytest

from cutaway import LLM
from support.random_llama import VOCAB, WORDS, write_tiny_llama

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
