"""jina v3's adapters by task, held against W + scale · B A merged by hand: a folder as published.

transformers has only the publisher's own code for it.
"""

import asyncio
import json
import re

import httpx
import numpy as np
import pytest

from cutaway import LLM, AsyncLLM
from cutaway.cli.main import main
from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.adapters import TaskAdapter
from cutaway.files.weights.gguf_writer import write_gguf
from support import tiny_tokenizers
from support.served import serve

save_file = pytest.importorskip(
    "safetensors.numpy", reason="needs safetensors: pip install '.[test-transformers]'"
).save_file

HIDDEN, INNER, HEADS, LAYERS, VOCAB, RANK, ALPHA = 64, 96, 2, 2, 384, 4, 3.0
QUERY, MATCHING = "retrieval.query", "text-matching"
TASKS = {QUERY: "Represent the query: ", "retrieval.passage": "A passage: ", MATCHING: ""}
IDS = np.random.default_rng(5).integers(6, VOCAB, 40).tolist()
TEXTS = ["The sea is deep.", "Snow", "a bank of the river, and another bank"]


def shapes():
    """By torch's names without what it adds: matrices, named without an ending, and vectors."""
    tables = {"embeddings.word_embeddings": VOCAB, "embeddings.token_type_embeddings": 1}
    found = {name: (rows, HIDDEN) for name, rows in tables.items()}
    norms = ["emb_ln"]
    for i in range(LAYERS):
        p = f"encoder.layers.{i}."
        found |= {f"{p}mixer.Wqkv": (3 * HIDDEN, HIDDEN), f"{p}mixer.out_proj": (HIDDEN, HIDDEN)}
        found |= {f"{p}mlp.fc1": (INNER, HIDDEN), f"{p}mlp.fc2": (HIDDEN, INNER)}
        norms += [f"{p}norm1", f"{p}norm2"]
    found["pooler.dense"] = (HIDDEN, HIDDEN)
    vectors = {f"{name}.{end}": (HIDDEN,) for name in norms for end in ("weight", "bias")}
    return found, vectors | {
        f"{name}.bias": shape[:1] for name, shape in found.items() if "embeddings" not in name
    }


def write(path, tensors, **more):
    path.mkdir(exist_ok=True)
    save_file(
        {f"roberta.{name}": np.ascontiguousarray(x) for name, x in tensors.items()},
        path / "model.safetensors",
    )
    config = {
        "model_type": "xlm-roberta", "position_embedding_type": "rotary", "hidden_size": HIDDEN,
        "architectures": ["XLMRobertaModel"], "intermediate_size": INNER, "hidden_act": "gelu",
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
        "max_position_embeddings": 512, "layer_norm_eps": 1e-5, "rotary_emb_base": 10000.0,
        "type_vocab_size": 1, "pad_token_id": 1,
    } | more  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), path)
    return path


SAID = {
    "lora_adaptations": [*TASKS], "lora_rank": RANK, "lora_alpha": ALPHA,
    "task_instructions": TASKS,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of all tasks, and of each task one whose matrices are merged by hand."""
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("jina")

    def random(*shape):
        return (rng.normal(size=shape) * 0.2).astype(np.float32)

    matrices, vectors = shapes()
    rest = {name: random(*shape) + ("rm" in name) for name, shape in vectors.items()}
    whole, merged = dict(rest), {task: dict(rest) for task in TASKS}
    merged[None] = dict(rest)
    for name, (rows, columns) in matrices.items():
        w, p = random(rows, columns), f"{name}.parametrizations.weight"
        if "embeddings" in name:
            a, b = random(len(TASKS), rows, RANK), random(len(TASKS), RANK, columns)
            added = a.astype(float) @ b
        else:
            a, b = random(len(TASKS), RANK, columns), random(len(TASKS), rows, RANK)
            added = b.astype(float) @ a
        whole |= {f"{p}.original": w, f"{p}.0.lora_A": a, f"{p}.0.lora_B": b}
        merged[None][f"{name}.weight"] = w
        for task, one in zip(TASKS, added, strict=True):
            merged[task][f"{name}.weight"] = (w + ALPHA / RANK * one).astype(np.float32)
    folder = write(root / "tasks", whole, **SAID)
    return folder, {task: write(root / str(task), merged[task]) for task in merged}


@pytest.mark.parametrize("task", [*TASKS, None])
def test_a_task_is_its_product_added_to_each_matrix(made, task):
    folder, merged = made
    expected = LLM(merged[task], backend="reference").embed(IDS, normalize=False).vectors[0]
    found = LLM(folder, backend="reference").embed(IDS, normalize=False, task=task)
    assert found.task == (task or "")
    assert np.abs(found.vectors[0] - expected).max() < 1e-4
    native = LLM(folder).embed(IDS, normalize=False, task=task).vectors[0]
    cosine = native @ expected / np.linalg.norm(native) / np.linalg.norm(expected)
    assert cosine > 1 - 1e-5


def test_tasks_differ_and_bring_their_instructions(made):
    with LLM(made[0]) as llm:
        query = llm.embed(TEXTS, task=QUERY)
        assert query.prompt == QUERY
        by_hand = llm.embed([TASKS[QUERY] + text for text in TEXTS], task=QUERY, prompt="")
        assert np.array_equal(query.vectors, by_hand.vectors)
        plain = llm.embed(TEXTS, task=MATCHING)
        assert plain.prompt == ""
        for other in (llm.embed(TEXTS, task=QUERY, prompt=""), llm.embed(TEXTS)):
            assert np.abs(plain.vectors - other.vectors).max() > 0.01


async def test_bits_are_the_same_beside_other_tasks(made):
    asked = [*TASKS, None]
    with LLM(made[0], threads=1) as llm:
        alone = [[llm.embed(text, task=task).vectors for text in TEXTS] for task in asked]
    async with AsyncLLM(LLM(made[0], threads=2)) as llm:
        together = await asyncio.gather(*(llm.embed(TEXTS, task=task) for task in asked))
    for each, found in zip(alone, together, strict=True):
        assert np.array_equal(np.concatenate(each), found.vectors)


def test_an_adapter_in_gguf_changes_embeddings_too(made, tmp_path):
    path = tmp_path / "query.gguf"
    with TaskAdapter(made[0], QUERY) as file:
        file.metadata = {
            "general.type": "adapter", "general.architecture": "jina-bert-v3",
            "adapter.type": "lora", "adapter.lora.alpha": ALPHA,
        }  # fmt: skip
        write_gguf(path, file)
    with LLM(made[0], adapters={"query": path}) as llm:
        found = llm.embed(TEXTS, adapter="query").vectors
        assert np.array_equal(found, llm.embed(TEXTS, task=QUERY, prompt="").vectors)


def test_an_unknown_task_is_named_with_those_that_there_are(made):
    folder, merged = made
    with pytest.raises(InputError, match=re.escape(f"its tasks are {', '.join(TASKS)}")):
        LLM(folder).embed("hi", task="poetry")
    with pytest.raises(InputError, match="task: None has none named 'poetry': it has no tasks"):
        LLM(merged[None]).embed("hi", task="poetry")
    with pytest.raises(InputError, match="leave out adapter or task"):
        LLM(folder).embed("hi", task=QUERY, adapter="poet")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lora_rank": 8}, "3 tasks of rank 8"),
        ({"lora_adaptations": ["one"]}, "1 tasks of rank 4"),
        ({"lora_adaptations": "one"}, "lora_adaptations is 'one'"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"task_instructions": {QUERY: 1}}, "task_instructions is"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(made, tmp_path, changed, said):
    for file in made[0].iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((made[0] / "config.json").read_text()) | changed
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=re.escape(said)):
        LLM(tmp_path)


def test_the_command_and_the_server_have_tasks(made, capsys):
    folder, _ = made
    with LLM(folder) as llm:
        expected = llm.embed("hi", task=QUERY)
    assert main(["embed", "-q", "-m", str(folder), "--task", QUERY, "--json", "hi"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == QUERY
    assert np.array_equal(np.float32(found["vectors"]), expected.vectors)
    with serve(LLM(folder)) as served:
        url = f"{served.url}/v1/embeddings"
        found = httpx.post(url, json={"input": "hi", "task": QUERY}).json()
        assert (found["task"], found["prompt"]) == (QUERY, QUERY)
        assert np.array_equal(np.float32([found["data"][0]["embedding"]]), expected.vectors)
        refused = httpx.post(url, json={"input": "hi", "task": "poetry"})
        assert refused.status_code == 400
        assert f"its tasks are {', '.join(TASKS)}" in refused.json()["error"]["message"]
        models = httpx.get(f"{served.url}/v1/models").json()["data"]
        assert len(models) == 1  # a task is no model of its own
