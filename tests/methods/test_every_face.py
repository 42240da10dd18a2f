"""Every reading method through every face: LLM, AsyncLLM, HTTP and the command line.

What is asked is written once, in the words of Python; each face translates it into its own, and all
find equal numbers, to the last bit.
"""

import asyncio
import inspect
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.cli.main import main
from cutaway.methods import embedding
from cutaway.methods.index import Index, Passage
from cutaway.methods.reranking import RankingWords
from support.random_llama import write_tiny_late, write_tiny_llama, write_tiny_ranker
from support.served import TEMPLATE, serve

SPACED = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
)
"""A template that writes a space before an answer, as [INST] … [/INST] does."""
PROMPTS = {"query": "ab: ", "document": "b ba ", "odd": "b"}
QUERY, DOCUMENTS = "ab ba", ["b ab bb", "ab", "ba ba a", "bb"]


# -- models ------------------------------------------------------------------------------------


def writer(template: str) -> Callable[[Any], Any]:
    """What writes a model that converses by a template."""
    return lambda path: write_tiny_llama(
        path, context=512, metadata={"tokenizer.chat_template": template}
    )


def of_vectors(architecture: str = "llama", **said: Any) -> Callable[[Any], Any]:
    """What writes a model whose file says how vectors are made."""
    metadata = {f"cutaway.embedding.{key}": value for key, value in said.items()}
    if architecture != "llama":  # one that sees the whole text
        metadata |= {"tokenizer.ggml.mask_token_id": 0, f"{architecture}.attention.causal": False}
    return lambda path: write_tiny_llama(path, architecture=architecture, metadata=metadata)


NAMED = {"prompts": json.dumps(PROMPTS)}
MODELS = {
    "writes": writer(TEMPLATE),
    "spaced": writer(SPACED),
    "masks": of_vectors("llada"),
    "mean": of_vectors(pooling="mean", **NAMED),
    "cls": of_vectors("llada", pooling="cls", **NAMED),
    "last": of_vectors(pooling="last", normalize=False, **NAMED),
    "weighted": of_vectors(pooling="weighted", default_prompt="odd", **NAMED),
    "parted": of_vectors(pooling="mean", include_prompt=False, lower=True, **NAMED),
    "passages": of_vectors(pooling="mean", prompts=json.dumps({"query": "ab", "passage": "b b"})),
    "short": of_vectors(pooling="mean", max_tokens=12, **NAMED),
    "late": write_tiny_late,
    "head": write_tiny_ranker,
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """By a model's name: its file, the model by itself, and where it is served."""
    known, folder = {}, tmp_path_factory.mktemp("faces")
    servers = []

    def open_one(name):
        if name not in known:
            path = MODELS[name](folder / f"{name}.gguf")
            server = serve(LLM(path, threads=1, progress=False))
            url = server.__enter__().url
            servers.append(server)
            known[name] = path, LLM(path, threads=1, progress=False), url
        return known[name]

    yield open_one
    for server in servers:
        server.__exit__(None, None, None)
    for _, llm, _ in known.values():
        llm.close()


# -- faces -------------------------------------------------------------------------------------


class Face(NamedTuple):
    """How a method is asked, and where the numbers are in what it answers."""

    ask: Callable[..., Any]
    numbers: Callable[[Any], Any]


def listed(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [*map(listed, value)] if isinstance(value, (list, tuple)) else value


def nearness(document: Mapping[str, Any]) -> Any:
    left_out = [(one["which"], one["start"], one["score"]) for one in document["left_out"]]
    return document["score"], document["method"], document["shares"], left_out


PYTHON: Mapping[str, Callable[[Any], Any]] = {
    "score": lambda found: [(one.total, one.logprobs, one.ranks) for one in found],
    "likelihood": lambda found: found.total,
    "fill": lambda found: found.to_dict(),
    "pseudo_likelihood": lambda found: found.to_dict(),
    "embed": lambda found: (found.vectors, found.tokens, found.truncated, found.how()),
    "embed_tokens": lambda found: (found.vectors, found.token_ids, found.truncated),
    "rerank": lambda found: [(one.index, one.relevance) for one in found.results],
    "near": lambda found: nearness(found.to_dict()),
    "decide": lambda found: (found.probabilities, found.covered),
}


def decided(answer: Any) -> Any:
    [one] = answer["answers"]
    return [each["probability"] for each in one["probabilities"]], one["cutaway"]["covered"]


def choice(messages: Any, answers: Any) -> Any:
    """A question that is asked in these words."""
    text, _, question = messages[0]["content"].partition("\n\n")
    choices = [{"value": answer} for answer in answers]
    asked = {"type": "choice", "instructions": question.partition("\n")[0], "choices": choices}
    return "/v1/decisions", {"input": text, "questions": [asked]}


def scored(answer: Any) -> Any:
    tokens = [one["cutaway"]["tokens"] for one in answer["data"]]
    return [
        (one["score"], [t["logprob"] for t in each], [t["rank"] for t in each])
        for one, each in zip(answer["data"], tokens, strict=True)
    ]


HTTP = {
    "score": Face(
        lambda prompt, answers: ("/v1/score", {"text_1": prompt, "text_2": answers, "trace": True}),
        scored,
    ),
    "fill": Face(lambda text, **how: ("/v1/fill", {"text": text, **how}), lambda answer: answer),
    "embed": Face(
        lambda texts, **how: ("/v1/embeddings", {"input": texts, **how}),
        lambda answer: (
            [one["embedding"] for one in answer["data"]],
            None,
            answer["truncated"],
            {key: answer[key] for key in answer.keys() - {"object", "data", "model", "usage"}},
        ),
    ),
    "embed_tokens": Face(
        lambda texts, kind="document", **how: (
            "/v1/multi-vector", {"input": texts, "input_type": kind, **how}
        ),
        lambda answer: (
            [one["embeddings"] for one in answer["data"]],
            [one["token_ids"] for one in answer["data"]],
            answer["truncated"],
        ),
    ),
    "rerank": Face(
        lambda query, documents, top=None, **how: (
            "/v1/rerank",
            {"query": query, "documents": documents, **({"top_n": top} if top else {}), **how},
        ),
        lambda answer: [(one["index"], one["relevance_score"]) for one in answer["results"]],
    ),
    "decide": Face(choice, decided),
    "near": Face(
        lambda first, second: ("/page/near", {"first": first, "second": second}), nearness
    ),
}  # fmt: skip


def flags(how: Mapping[str, Any]) -> list[str]:
    """Keywords as the command line has them."""
    words = []
    for name, value in how.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", ",".join(value) if isinstance(value, list) else str(value)]
    return words


COMMANDS = {
    "likelihood": Face(
        lambda text, window, before: (
            "perplexity", "-", "--context", str(window), "--stride", str(window - before + 1)
        ),
        lambda answer: answer["log_likelihood"],
    ),
    "fill": Face(lambda text, **how: ("fill", text, *flags(how)), lambda answer: answer),
    "pseudo_likelihood": Face(
        lambda text, metric: ("fill", text, "--score", metric), lambda answer: answer
    ),
    "embed": Face(
        lambda texts, **how: ("embed", *texts, *flags(how)),
        lambda answer: (
            answer["vectors"],
            answer["tokens"],
            answer["truncated"],
            {key: answer[key] for key in answer.keys() - {"model", "tokens", "vectors"}},
        ),
    ),
    "embed_tokens": Face(
        lambda texts, kind="document", **how: ("embed", *texts, "--prompt", kind, *flags(how)),
        lambda answer: (answer["vectors"], answer["token_ids"], answer["truncated"]),
    ),
    "rerank": Face(
        lambda query, documents, **how: ("rerank", query, *documents, *flags(how)),
        lambda answer: [(one["index"], one["relevance"]) for one in answer["results"]],
    ),
    "near": Face(lambda first, second, **how: ("near", first, second, *flags(how)), nearness),
}  # fmt: skip


# -- what is asked -----------------------------------------------------------------------------


class Asked(NamedTuple):
    """What is asked of a model: a method's arguments, and the faces that cannot say them."""

    model: str
    method: str
    arguments: tuple[Any, ...]
    how: Mapping[str, Any] = {}
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in self.how.items()]
        return "-".join([self.model, self.method, *options])


CONVERSATION = [
    {"role": "user", "content": "ab\n\nb?\n- a\n- ba\n- ab a\nAnswer with one of these."}
]
LONG = ["ab ba " * 12, "b"]
VECTORS = ("mean", "cls", "last", "weighted", "parted")
ASKED = [
    Asked("writes", "score", ("ab", ["b", " ab", "ba ba"])),
    Asked("writes", "score", ("ab ", ["b", " ab"])),
    Asked("spaced", "score", ([5, 6, 7], [[8], [9, 8]])),
    Asked("writes", "likelihood", ("ab ba ab " * 20,), {"window": 512, "before": 1}),
    Asked("writes", "likelihood", ("ab ba ab " * 20,), {"window": 32, "before": 9}),
    *(
        Asked(model, "fill", (text,), how)
        for model in ("writes", "masks")
        for text, how in (("ab [MASK] ba [MASK]", {"top": 3}),
                          ("ab [MASK] ba", {"targets": ["a", "b"], "candidates": 5}))
    ),
    *(Asked("masks", "pseudo_likelihood", ("ab ba ab",), {"metric": m})
      for m in ("original", "word_l2r")),
    *(Asked(model, "decide", (CONVERSATION, ["a", "ba", "ab a"]))
      for model in ("writes", "spaced")),
    # vectors
    *(
        Asked(model, "embed", ([QUERY, *DOCUMENTS],), how)
        for model in ("writes", *VECTORS)
        for how in ({}, {"normalize": False}, {"normalize": True}, {"dimensions": 5},
                    {"pooling": "weighted"}, {"pooling": "mean", "normalize": True})
    ),
    *(
        Asked(model, "embed", ([QUERY, "AB Ba"],), {"prompt": prompt})
        for model in VECTORS
        for prompt in ("query", "document", "odd", "")
    ),
    *(
        Asked("short", "embed", (LONG,), {"truncate": True, **how})
        for how in ({}, {"prompt": "query"}, {"pooling": "last"})
    ),
    Asked("late", "embed", (["ab ba", "b"],), {"pooling": "mean"}),
    *(
        Asked("late", "embed_tokens", ([QUERY, *DOCUMENTS],), how)
        for how in ({"kind": "query"}, {"kind": "document"}, {"dimensions": 3})
    ),
    Asked("late", "embed_tokens", (LONG,), {"truncate": True}),
    # rankings
    *(Asked(model, "rerank", (QUERY, DOCUMENTS)) for model in (*MODELS,) if model != "short"),
    *(Asked(model, "rerank", (QUERY, DOCUMENTS), {"top": 2}) for model in ("mean", "spaced")),
    *(
        Asked(model, "rerank", (QUERY, DOCUMENTS), how)
        for model in ("writes", "spaced")
        for how in ({"method": "answers"}, {"instruction": "b?"}, {"method": "cosine"})
    ),
    *(Asked(model, "rerank", (QUERY, [DOCUMENTS[0]] * 2)) for model in ("mean", "spaced")),
    *(Asked(model, "rerank", ("ab", LONG), {"truncate": True}, ("http",))
      for model in ("short", "late", "head")),
    # why two texts are near
    *(Asked(model, "near", (QUERY, DOCUMENTS[0])) for model in MODELS if model != "short"),
    *(Asked(model, "near", (QUERY, "b"), {"words": False}, ("http",))
      for model in ("mean", "late")),
    *(Asked("spaced", "near", (QUERY, "b"), how, ("http",))
      for how in ({"method": "answers", "instruction": "b?"}, {"method": "cosine"})),
    *(Asked(model, "near", (QUERY, "b ab"), {"prompt": prompt}, ("http", "command"))
      for model in ("mean", "cls") for prompt in ("query", "")),
]  # fmt: skip


def asked_with(face: str, by: Mapping[str, Any]) -> list[Any]:
    """What a face can say."""
    said = [one for one in ASKED if one.method in by and face not in one.without]
    return [pytest.param(one, id=str(one)) for one in said]


def in_python(opened: Callable[[str], Any], asked: Asked) -> Any:
    _, llm, _ = opened(asked.model)
    found = getattr(llm, asked.method)(*asked.arguments, **asked.how)
    return json.loads(json.dumps(listed(PYTHON[asked.method](found))))


def same(found: Any, expected: Any) -> None:
    """Each number is the other's to the last bit; what a face does not tell is None."""
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif found is not None:
        assert found == expected


@pytest.mark.parametrize("asked", asked_with("asyncio", PYTHON))
def test_asyncio_has_the_numbers_of_python(opened, asked):
    path, _, _ = opened(asked.model)

    async def ask():
        async with AsyncLLM(LLM(path, threads=1, progress=False)) as llm:
            return await getattr(llm, asked.method)(*asked.arguments, **asked.how)

    found = PYTHON[asked.method](asyncio.run(ask()))
    same(json.loads(json.dumps(listed(found))), in_python(opened, asked))


@pytest.mark.parametrize("asked", asked_with("http", HTTP))
def test_http_has_the_numbers_of_python(opened, asked):
    face = HTTP[asked.method]
    path, body = face.ask(*asked.arguments, **asked.how)
    answer = httpx.post(f"{opened(asked.model)[2]}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found = json.loads(json.dumps(listed(face.numbers(answer.json()))))
    same(found, in_python(opened, asked))


@pytest.mark.parametrize("asked", asked_with("command", COMMANDS))
def test_the_command_line_has_the_numbers_of_python(opened, asked, capfd, monkeypatch, tmp_path):
    face = COMMANDS[asked.method]
    words = [*face.ask(*asked.arguments, **asked.how), "-m", str(opened(asked.model)[0]), "-q"]
    if "-" in words:  # a text in a file
        (tmp_path / "text.txt").write_text(asked.arguments[0])
        words[words.index("-")] = str(tmp_path / "text.txt")
    assert main([*words, "--json"]) == 0
    out, _ = capfd.readouterr()
    found = json.loads(json.dumps(listed(face.numbers(json.loads(out)))))
    same(found, in_python(opened, asked))


def test_ranking_and_searching_read_a_document_in_the_same_way(opened):
    """Of files that call its prompt "passage", too, as those of E5 do."""
    for name in ("mean", "passages"):
        _, llm, _ = opened(name)
        hits = Index.build(llm, [Passage(text) for text in DOCUMENTS]).search(llm, QUERY)
        ranking = llm.rerank(QUERY, DOCUMENTS)
        found = [(DOCUMENTS[one.index], one.relevance) for one in ranking.results]
        assert found == [(hit.passage.text, hit.cosine) for hit in hits]
        prompt = "passage" if name == "passages" else "document"
        vectors = llm.embed(DOCUMENTS, prompt=prompt).vectors
        query = llm.embed(QUERY, prompt="query").vectors[0]
        assert sorted(one.relevance for one in ranking.results) == pytest.approx(
            sorted((vectors @ query).tolist()), abs=1e-6
        )


def test_a_cosine_is_the_same_wherever_it_is_asked(opened):
    _, llm, url = opened("mean")
    texts = [QUERY, *DOCUMENTS]
    alike = llm.embed(texts).similarities()
    assert np.array_equal(alike, alike.T)
    assert alike.diagonal().tolist() == [1.0] * len(texts)
    for i, text in enumerate(texts):
        assert llm.near(QUERY, text, words=False).score == pytest.approx(alike[0, i], abs=1e-7)
    body = {"text_1": texts[:1], "text_2": texts, "method": "cosine"}
    scores = httpx.post(f"{url}/v1/score", json=body).json()["data"]
    assert [one["score"] for one in scores] == alike[0].tolist()


def test_a_method_says_what_its_function_says():
    for kind in (LLM, AsyncLLM):
        assert inspect.getdoc(kind.embed) == inspect.getdoc(embedding.embed)
        given = inspect.signature(kind.embed)
        assert [*given.parameters][:3] == ["self", "texts", "pooling"]
        assert given.return_annotation is embedding.Embeddings
        assert pickle.loads(pickle.dumps(kind.fill)) is kind.fill
        assert kind.embed.__qualname__ == f"{kind.__name__}.embed"
    assert inspect.iscoroutinefunction(AsyncLLM.embed)
    assert not inspect.iscoroutinefunction(LLM.embed)


@pytest.mark.parametrize(("model", "how", "sentence"), [
    ("mean", {"documents": ["b", ""], "instruction": "b?"}, "instruction: a model that ranks by"),
    ("mean", {"wording": RankingWords()}, "wording: a model that ranks by cosine is asked nothing"),
    ("mean", {"documents": ["b", "b " * 99]}, r"documents\[1\] has"),
    ("mean", {"query": "b " * 99}, "query has"),
    ("late", {"documents": ["b", "b " * 99]}, r"documents\[1\] has"),
    ("writes", {"wording": RankingWords(user="{query}")}, "wording: user must have {document}"),
    ("writes", {"wording": RankingWords(answers=("a", "a"))}, "wording: the two answers must"),
])  # fmt: skip
def test_what_cannot_be_ranked_is_named(opened, model, how, sentence):
    with pytest.raises(InputError, match=sentence):
        opened(model)[1].rerank(**({"query": "a", "documents": ["b"]} | how))


@pytest.mark.parametrize(("answers", "sentence"), [
    ("ab", "answers must be a list of two texts or more"),
    (["a"], "answers must be a list of two texts or more"),
    (["a", 3], "answers must be a list of two texts or more"),
    (["a", "a"], "answers must differ"),
    (["a", ""], r"answers\[1\] has no tokens"),
])  # fmt: skip
def test_what_cannot_be_decided_is_named(opened, answers, sentence):
    with pytest.raises(InputError, match=sentence):
        opened("writes")[1].decide(CONVERSATION, answers)
