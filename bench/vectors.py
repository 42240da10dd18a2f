"""How far embeddings and tokens are from sentence-transformers', model by model.

    python bench/vectors.py [--only NAME,NAME] [--texts 40] [--lines 1000] [--write docs/embed.md]

Needs torch, transformers, sentence-transformers and sentencepiece. For each row of the table, the
script makes a folder in the form of the published model's: a body of the family with random
weights, in small shapes (tests/support/random_models.py), a tokenizer of the same kind, trained
here on lines of twenty scripts, and the files of sentence-transformers. The script downloads no
published weights or vocabularies: the table shows that results agree, not a model's quality.

The table has: the number of lines, and of lines whose tokens are equal; and over texts the least
cosine of cutaway's vectors with the library's, both in float32: of `reference`, and of `cpu`, which
keeps keys and values in 16 bits. Cross-encoders have the largest difference of a score instead.
--write puts the table between <!-- vectors:begin --> and <!-- vectors:end -->.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from cutaway import LLM
from script import check_page, grid, parser_of, publish, words

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
SIZE = 2000  # pieces of a tokenizer, at most
QUERY = "where is the library"

Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class Made:
    """A model to make. published: models of this form; row: of `support.random_models`."""

    published: str
    row: str
    tokenizer: str
    pooling: str = "mean"
    prompt: str = ""
    dense: tuple[str, ...] = ()  # activations of dense layers after pooling


VECTORS = {
    "bert": Made("all-MiniLM-L6-v2, gte-small", "bert", "WordPiece"),
    "bert-cls": Made("bge-en v1.5, arctic-embed-m", "bert", "WordPiece", "cls", "query: "),
    "labse": Made("LaBSE", "bert", "WordPiece, cased", "cls", dense=("Tanh",)),
    "distilbert": Made("multi-qa-distilbert", "distilbert", "WordPiece"),
    "roberta": Made("all-distilroberta-v1", "roberta", "byte-level BPE"),
    "e5": Made("multilingual-e5", "xlm-roberta", "Unigram", prompt="query: "),
    "bge-m3": Made("bge-m3, arctic-embed-l-v2.0", "xlm-roberta", "Unigram, bge-m3", "cls"),
    "mpnet": Made("all-mpnet-base-v2", "mpnet", "WordPiece"),
    "electra": Made("KoSimCSE-electra and others", "electra", "WordPiece", "cls"),
    "albert": Made("paraphrase-albert-small-v2", "albert", "Unigram, albert"),
    "deberta": Made("mdeberta-v3-base, fine-tuned", "deberta", "Unigram, deberta"),
    "nomic": Made("nomic-embed-text-v1.5", "nomic_bert", "WordPiece", prompt="search_query: "),
    "jina-v3": Made("jina-embeddings-v3 (its body)", "jina_v3", "Unigram"),
    "mgte": Made("gte-multilingual, arctic-embed-m-v2.0", "gte", "Unigram", "cls"),
    "modernbert": Made("gte-modernbert, granite-embedding r2", "modernbert", "ModernBERT", "cls"),
    "eurobert": Made("EuroBERT-210m, jina v5 nano", "eurobert", "byte-level BPE of llama 3"),
    "gemma": Made(
        "embeddinggemma-300m", "gemma_embedding", "SentencePiece BPE",
        prompt="task: search result | query: ", dense=("Identity", "Identity"),
    ),
    "qwen3": Made(
        "Qwen3-Embedding", "qwen3", "byte-level BPE of Qwen", "lasttoken",
        "Instruct: find it\nQuery:",
    ),
    "mistral": Made(
        "e5-mistral-7b-instruct, SFR", "mistral", "SentencePiece BPE, mistral", "lasttoken",
        "Instruct: find it\nQuery: ",
    ),
}  # fmt: skip
RANKERS = {
    "rank-bert": Made("ms-marco-MiniLM", "rank-bert", "WordPiece"),
    "rank-electra": Made("ms-marco-electra-base", "rank-electra", "WordPiece"),
    "rank-xlm-roberta": Made("bge-reranker-v2-m3", "rank-xlm-roberta", "Unigram, bge-m3"),
    "rank-deberta": Made("mxbai-rerank-v1 (deberta-v3)", "rank-deberta", "Unigram, deberta"),
    "rank-gte": Made("gte-multilingual-reranker", "rank-gte", "Unigram"),
    "rank-modernbert": Made("gte-reranker-modernbert", "rank-modernbert", "ModernBERT"),
}


# -- folders in the published form ---------------------------------------------------------------


def tokenizer(kind: str) -> Any:
    """Train a tokenizer of the `tokenizers` library."""
    tiny, many = import_module("support.tiny_tokenizers"), import_module("support.many_scripts")
    texts = [*tiny.TEXTS, *(one for one in many.lines(3000, seed=9) if "\0" not in one)]
    given = {"size": SIZE, "texts": texts}
    if kind.startswith("Unigram"):
        return unigram(kind.partition(", ")[2] or "xlm-roberta")
    return {
        "WordPiece": lambda: tiny.wordpiece(**given),
        "WordPiece, cased": lambda: tiny.wordpiece(**given, lowercase=False),
        "byte-level BPE": lambda: tiny.roberta(**given),
        "ModernBERT": lambda: tiny.modern_bert(**given),
        "byte-level BPE of llama 3": lambda: framed(
            tiny.byte_level("llama-bpe", **given), begin="<s>"
        ),
        "byte-level BPE of Qwen": lambda: framed(tiny.byte_level("qwen2", **given), end="</s>"),
        "SentencePiece BPE": lambda: framed(
            tiny.sentencepiece("none", **given), begin="<s>", end="</s>"
        ),
        "SentencePiece BPE, mistral": lambda: framed(
            tiny.sentencepiece("first", **given), begin="<s>", end="</s>"
        ),
    }[kind]()


def framed(made: Any, begin: str = "", end: str = "") -> Any:
    """Make the tokenizer put tokens around each text."""
    processors = import_module("tokenizers.processors")
    around = [one for one in (begin, end) if one]
    single = " ".join([*[begin] * bool(begin), "$A", *[end] * bool(end)])
    made.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(one, made.token_to_id(one)) for one in around]
    )
    return made


@cache
def pieces() -> Any:
    return import_module("support.unigram_tokenizers").train(SIZE - 10)


def unigram(kind: str) -> Any:
    made = import_module("support.unigram_tokenizers")
    document = made.document(*pieces(), **made.KINDS[kind])
    return import_module("tokenizers").Tokenizer.from_str(json.dumps(document))


def specials(made: Any) -> dict[str, str]:
    """The special tokens' entries in tokenizer_config.json."""
    names = {
        "pad_token": ("[PAD]", "<pad>", "<unk>"), "unk_token": ("[UNK]", "<unk>"),
        "cls_token": ("[CLS]",), "sep_token": ("[SEP]",), "mask_token": ("[MASK]", "<mask>"),
        "bos_token": ("<s>",), "eos_token": ("</s>",),
    }  # fmt: skip
    found = {
        key: next((one for one in each if made.token_to_id(one) is not None), "")
        for key, each in names.items()
    }
    return {key: one for key, one in found.items() if one}


def save(made: Made, folder: Path) -> Any:
    """Save the body and its tokenizer; return the tokenizer."""
    models = import_module("support.random_models")
    library = tokenizer(made.tokenizer)
    row = models.row(made.row)
    kind = row.kind if made.row.startswith("rank-") else "AutoModel"
    values = {**row.values, "vocab_size": library.get_vocab_size() + 3}
    models.save_row(row._replace(kind=kind, values=values), folder, "float32", library)
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 200,
        **specials(library), "model_input_names": ["input_ids", "attention_mask"]
        + ["token_type_ids"] * made.tokenizer.startswith("WordPiece"),
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return library


def sentences(made: Made, body: Path, folder: Path) -> Any:
    """Have sentence-transformers write its folder; return its model."""
    library = import_module("sentence_transformers")
    modules = import_module("sentence_transformers.sentence_transformer.modules")
    nn = import_module("torch.nn")
    import_module("torch").manual_seed(1)
    transformer = modules.Transformer(str(body), max_seq_length=128)
    width = transformer.get_embedding_dimension()
    layers = [
        modules.Dense(width, width, bias=kind == "Tanh", activation_function=getattr(nn, kind)())
        for kind in made.dense
    ]
    model = library.SentenceTransformer(
        modules=[transformer, modules.Pooling(width, made.pooling), *layers, modules.Normalize()],
        prompts={"query": made.prompt, "document": ""}, device="cpu",
    )  # fmt: skip
    model.save(str(folder))
    return model


# -- figures -------------------------------------------------------------------------------------


def texts_of(count: int) -> list[str]:
    """Make sentences, and lines in many scripts."""
    tiny, many = import_module("support.tiny_tokenizers"), import_module("support.many_scripts")
    return [*tiny.TEXTS, *tiny.SENTENCES, *many.lines(count, seed=3)][:count]


def same_tokens(llm: LLM, library: Any, count: int) -> int:
    """Count the lines whose tokens equal the library's.

    Lines are composed (NFC) before, as the library would do, since cutaway keeps a text's bytes.
    """
    many, composes = import_module("support.many_scripts"), "NFC" in str(library.normalizer)
    lines = [normalize("NFC", one) if composes else one for one in many.lines(count, seed=5)]
    return sum(
        llm.tokenizer.encode(line, special=True, add_bos=False)
        == library.encode(line, add_special_tokens=False).ids
        for line in lines
    )


def vector_figures(made: Made, args: Namespace) -> dict[str, Any]:
    texts = texts_of(args.texts)
    texts.append(" ".join(texts))  # a text that is cut
    with TemporaryDirectory() as place:
        body, folder = Path(place) / "body", Path(place) / "whole"
        body.mkdir()
        library = save(made, body)
        model = sentences(made, body, folder)
        theirs = [model.encode(texts), model.encode(texts, prompt_name="query")]
        found: dict[str, Any] = {}
        for backend in ("reference", "cpu"):
            with LLM(folder, backend=backend) as llm:
                ours = [
                    llm.embed(texts, prompt=prompt, truncate=True).vectors
                    for prompt in ("", "query")
                ]
                found[backend] = min(map(least_cosine, ours, theirs))
        with LLM(folder) as llm:
            found["same"] = same_tokens(llm, library, args.lines)
    return found


def least_cosine(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    a, b = unit(ours), unit(theirs)
    return float((a * b).sum(axis=1).min())


def unit(vectors: NDArray[np.float32]) -> Vectors:
    x = vectors.astype(np.float64)
    scaled: Vectors = x / np.linalg.norm(x, axis=1, keepdims=True)
    return scaled


def ranker_figures(made: Made, args: Namespace) -> dict[str, Any]:
    texts = texts_of(args.texts)
    with TemporaryDirectory() as place:
        folder = Path(place)
        library = save(made, folder)
        encoder = import_module("sentence_transformers").CrossEncoder(str(folder), device="cpu")
        identity = import_module("torch").nn.Identity()
        pairs = [(QUERY, text) for text in texts]
        theirs = encoder.predict(pairs, activation_fn=identity)
        found: dict[str, Any] = {}
        for backend in ("reference", "cpu"):
            with LLM(folder, backend=backend) as llm:
                ranked = llm.rerank(QUERY, texts, truncate=True).results
                ours = [one.score for one in sorted(ranked, key=lambda one: one.index)]
                found[backend] = float(np.abs(np.array(ours) - theirs).max())
        with LLM(folder) as llm:
            found["same"] = same_tokens(llm, library, args.lines)
    return found


def cells(rows: list[tuple[Made, dict[str, Any]]], lines: int) -> Iterator[list[str]]:
    models = import_module("support.random_models")
    for made, found in rows:
        row, ranks = models.row(made.row), made.row.startswith("rank-")
        kind = "score" if ranks else made.pooling.removesuffix("token")
        kind += "".join(f", {one.lower()}" for one in made.dense)
        yield [
            made.published,
            row.config.removesuffix("Config").removesuffix("Text"),
            made.tokenizer,
            "equal" if found["same"] == lines else f"{found['same']:,} of {lines:,}",
            kind,
            *(shown(found[one], ranks=ranks) for one in ("reference", "cpu")),
        ]


def shown(figure: float, *, ranks: bool) -> str:
    """Write a figure; a cosine is rounded down."""
    return f"±{figure:.0e}" if ranks else f"{np.floor(figure * 1e9) / 1e9:.9f}"


def main() -> None:
    parser = parser_of(__doc__, model=False, write="docs/embed.md")
    parser.add_argument("--only", type=words)
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--lines", type=int, default=1000)
    args = parser.parse_args()
    check_page(args.write, "vectors")
    rows = []
    for name, made in (VECTORS | RANKERS).items():
        if not args.only or name in args.only:
            print(f"{name} …", file=sys.stderr, flush=True)
            figures = vector_figures if name in VECTORS else ranker_figures
            rows.append((made, figures(made, args)))
    head = (
        "as published", "in transformers", "tokenizer", "tokens", "pooling", "`reference`", "`cpu`"
    )  # fmt: skip
    found = [{"name": made.published, **figures} for made, figures in rows]
    publish(grid(head, cells(rows, args.lines)), found, args.write, "vectors")


if __name__ == "__main__":
    main()
