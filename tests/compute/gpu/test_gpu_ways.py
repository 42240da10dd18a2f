"""Every way of computing, on a GPU and on the CPU: the same fingerprints, vectors and scores."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.engine.interventions import add, patch, scale
from cutaway.features.inside.look import inside
from cutaway.rerun.forks import branch
from cutaway.trace import Trace
from support import random_models
from support.adapters import adapter_of
from support.random_dflash import drafter_tensors, write_drafter
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_llama import VOCAB, write_tiny_late, write_tiny_llama, write_tiny_ranker
from support.random_qwen35 import write_tiny_qwen35
from support.ways import repeating

SHAPE = {"heads": 4, "head_dim": 32, "kv_heads": 2, "context": 512}
WINDOWED = {"llama.attention.sliding_window": 40}
VECTOR = np.random.default_rng(1).normal(size=32)
AGAIN = {"seed": 1, "max_tokens": 90}
HOW = {"max_tokens": 12, "temperature": 0.9, "ignore_eos": True}
TWICE = list(repeating(3, 9, 60))


def prompt(length, seed=0):
    return [1, *np.random.default_rng(seed).integers(3, VOCAB, length - 1).tolist()]


def prints(completions):
    return [completion.fingerprint for completion in completions]


@pytest.fixture(scope="module")
def both(device, tmp_path_factory):
    """Opens a model on the CPU and on the GPU; each with the same options, and only once."""
    opened = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: device)

        def open_both(path, **options):
            key = path, repr(options)
            if key not in opened:
                options = {"threads": 1, "progress": False} | options
                opened[key] = LLM(path, **options), LLM(path, backend="gpu", **options)
            return opened[key]

        yield open_both


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    files = {
        "plain": write_tiny_llama(folder / "plain.gguf", format="Q8_0", **SHAPE),
        "windowed": write_tiny_llama(
            folder / "windowed.gguf", format="Q8_0", metadata=WINDOWED, **SHAPE
        ),
        "states": write_tiny_qwen35(folder / "states.gguf", draft_head=True, context=512),
    }
    return files | {"adapter": adapter_of(files["plain"], folder / "adapter.gguf")}


# -- ways to write a text --------------------------------------------------------------------------


def in_company(llm):
    """Texts of other lengths beside each other, each prompt with three samples (forks)."""
    prompts = [prompt(5), prompt(40, 1), prompt(70, 2)]
    return [prints(texts) for texts in llm.generate(prompts, n=3, seed=5, **HOW)]


def in_chunks(llm):
    return prints(llm.generate([prompt(300), prompt(350, 1)], seed=1, **HOW))


def from_the_cache(llm):
    """The second text begins like the first, and the third like both."""
    text = prompt(150, 7)
    texts = []
    for more in ([], [9, 8, 7], [9, 8, 7, 5]):
        stream = llm.stream(text + more, seed=2, **HOW)
        texts.append(stream.finish())
    assert stream.usage().cached_tokens == 128
    return prints(texts)


def by_grammar(llm):
    options = {"seed": 4, "max_tokens": 30}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts = [llm.generate(prompt(9), regex="(ab|a b)+c", **options)]
    return prints([*texts, llm.generate(prompt(9), json_schema=schema, **options)])


def with_guesses(llm):
    """Drafts by n-grams and by a guessed window: several rows of logits in one step."""
    texts = [
        llm.generate(TWICE, seed=3, speculate=name, temperature=0, max_tokens=24, ignore_eos=True)
        for name in ("off", "ngram", "jacobi")
    ]
    assert len({*prints(texts)}) == 1
    return prints(texts)


def scored(llm):
    [first, second] = llm.score(prompt(40, 3), [prompt(30), prompt(5)])
    return first.total, second.total


RARE = ("windowed", "states")
WAYS = (in_company, in_chunks, from_the_cache, by_grammar, with_guesses, scored)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in RARE)]
)
def test_texts(both, paths, name, way):
    cpu, gpu = both(paths[name])
    assert way(gpu) == way(cpu)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("plain", marks=pytest.mark.slow), "windowed",
        pytest.param("states", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_texts_that_are_sent_back_to_the_queue(both, paths, name):
    """Blocks are taken from texts, and computed again."""
    told = []
    for llm in both(paths[name], kv_tokens=320, context=128):
        texts = llm.generate(
            [prompt(33, i) for i in range(4)], seed=1, **(HOW | {"max_tokens": 90})
        )
        assert llm.engine.scheduler.preemptions > 0
        told.append(prints(texts))
    assert told[0] == told[1]


def test_a_draft_model(both, paths):
    told = []
    for llm in both(paths["windowed"]):
        speculate = f"draft:{paths['windowed']}"
        texts = [llm.generate(prompt(30, i), seed=i, speculate=speculate, **HOW) for i in range(2)]
        told.append(prints(texts))
        assert llm.draft == speculate
    assert told[0] == told[1]


def test_a_draft_head(both, paths):
    told = []
    for llm in both(paths["states"], kv_tokens=512):
        told.append(prints([llm.generate(prompt(30), seed=1, speculate="mtp", **HOW)]))
        assert llm.draft == "mtp"
    assert told[0] == told[1]


def check_drafts(opened, drafts):
    """Compare with texts without drafts; both devices draft and accept the same."""
    told = []
    for llm in opened:
        llm.load_draft(drafts)
        llm.engine.speculator.draft.cost = 0.1
        plain = llm.generate(prompt(30), seed=1, **HOW)
        drafted = llm.generate(prompt(30), seed=1, speculate=drafts, **HOW)
        assert drafted.fingerprint == plain.fingerprint
        told.append((plain.fingerprint, drafted.speculation.lengths))
    assert told[0] == told[1]
    assert sum(told[0][1][1:]) > 0


def test_a_block_drafter_of_which_one_layer_is_causal(both, tmp_path):
    target = write_tiny_llama(tmp_path / "t.gguf", hidden=64, layers=4, heads=4, head_dim=32)
    folder = write_drafter(
        tmp_path / "d", drafter_tensors(2, markov=True), "dspark",
        layer_types=["sliding_attention", "full_attention"], sliding_window=5,
    )  # fmt: skip
    check_drafts(both(target), f"dspark:{folder}")


def test_an_assistant(both, tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    pytest.importorskip("transformers", reason="needs transformers, which makes the models")
    from support.random_assistant import TARGET, save_assistant
    from support.random_models import save

    save(TARGET, tmp_path / "t")
    save_assistant(tmp_path / "a")
    check_drafts(both(tmp_path / "t"), f"assistant:{tmp_path / 'a'}")


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_adapters(both, paths, whole):
    """An adapter of all texts, and one beside texts without it."""
    file = str(paths["adapter"])
    told = []
    for llm in both(paths["plain"], **({"lora": file} if whole else {"adapters": {"poet": file}})):
        texts = [llm.generate(prompt(40), seed=1, **HOW)]
        if not whole:
            texts.append(llm.generate(prompt(40), seed=1, adapter="poet", **HOW))
        told.append(prints(texts))
    assert told[0] == told[1]
    assert whole or told[0][0] != told[0][1]


@pytest.mark.parametrize(
    "interventions",
    [
        ["L1.H2 x 0", add("L0", VECTOR, 2.0), scale("L0.mlp", 0.5, positions="3-30,75")],
        ["knock_out 3-40", "knock_out 60 from 4", patch("L0.attn", VECTOR, positions=[71])],
    ],
    ids=["parts", "knocked out"],
)
def test_interventions(both, paths, interventions):
    told = [
        llm.generate(prompt(70), seed=5, interventions=interventions, **HOW).fingerprint
        for llm in both(paths["plain"])
    ]
    assert told[0] == told[1]
    assert told[0] != both(paths["plain"])[0].generate(prompt(70), seed=5, **HOW).fingerprint


def test_what_is_inside_and_other_ways_a_trace_goes(both, paths, tmp_path):
    """The tensors of a step, and a branch with another token."""
    told = []
    for i, llm in enumerate(both(paths["plain"])):
        llm.generate(prompt(40), seed=2, trace=tmp_path / f"{i}.jsonl", **HOW)
        trace = Trace.read(tmp_path / f"{i}.jsonl")
        row = inside(llm, trace, 5)._row
        tensors = {name: numbers.tobytes() for name, numbers in row.tensors.items()}
        keys = [keys.tobytes() for keys in row.keys.values()]
        told.append((tensors, keys, branch(llm, trace, 4, 99).fingerprint))
    assert told[0] == told[1]


# -- what is computed of whole texts ---------------------------------------------------------------

TEXTS = ["ab ab", "a b ab b a a", "b" * 12]


def test_vectors_and_relevance(both, tmp_path):
    late, ranker = write_tiny_late(tmp_path / "late.gguf"), write_tiny_ranker(tmp_path / "r.gguf")
    cpu, gpu = both(late)
    told = [[x.tobytes() for x in llm.embed_tokens(TEXTS).vectors] for llm in (cpu, gpu)]
    assert told[0] == told[1]
    cpu, gpu = both(ranker)
    rankings = [llm.rerank("ab", TEXTS).results for llm in (cpu, gpu)]
    assert rankings[0] == rankings[1]


def test_vectors_of_an_encoder(both, tiny_encoder):
    cpu, gpu = (llm.embed(TEXTS).vectors for llm in both(tiny_encoder))
    assert cpu.tobytes() == gpu.tobytes()


def test_vectors_of_embedding_gemma_2(both, tmp_path):
    """Windows to both sides, embeddings of layers, and a matrix after pooling."""
    save_folder("embedding_gemma2", tmp_path)
    cpu, gpu = (llm.embed(TEXTS).vectors for llm in both(tmp_path))
    assert cpu.tobytes() == gpu.tobytes()


def test_vectors_of_lfm2_s_encoder(both, tmp_path):
    """Convolutions to both sides."""
    save_folder("lfm2-encoder", tmp_path)
    cpu, gpu = (llm.embed(TEXTS, "cls").vectors for llm in both(tmp_path))
    assert cpu.tobytes() == gpu.tobytes()


def test_relevance_by_the_last_row_of_a_decoder(both, tmp_path):
    save_folder("rank-qwen3", tmp_path)
    cpu, gpu = (llm.rerank("ab", TEXTS).results for llm in both(tmp_path))
    assert cpu == gpu
    assert len({result.score for result in cpu}) == len(TEXTS)


def save_folder(name, path):
    for library in ("torch", "transformers"):
        pytest.importorskip(library, reason=f"needs {library}: pip install '.[test-transformers]'")
    random_models.save(name, path)


def test_canvases(both, tiny_diffusion_path):
    told = [
        prints([
            llm.denoise(prompt(20), seed=1, max_tokens=12, temperature=1.0, steps=4),
            llm.denoise(prompt(20), seed=1, max_tokens=40, steps=8, order="random"),
        ])
        for llm in both(tiny_diffusion_path)
    ]  # fmt: skip
    assert told[0] == told[1]


def test_matrices_that_lie_in_several_buffers(both, device, tmp_path, monkeypatch):
    path = write_tiny_llama(
        tmp_path / "wide.gguf", format="Q8_0", hidden=1024, **(SHAPE | {"context": 128})
    )
    monkeypatch.setattr(device, "binding", 1 << 17)
    cpu, gpu = both(path, context=8, kv_tokens=32)
    assert max(len(m.pieces) for m in gpu.backend._panels.matrices.values()) == 3
    prompts, options = [prompt(4), prompt(5, 1)], {"seed": 1, "max_tokens": 3}
    assert prints(gpu.generate(prompts, **options)) == prints(cpu.generate(prompts, **options))


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["q8_0", "q8_0,q4_0"])
def test_saved_prefixes_of_all_kinds_of_memory(both, paths, tmp_path, kv):
    hybrid = write_tiny_granite_hybrid(tmp_path / "hybrid.gguf")
    for path in (paths["windowed"], paths["states"], hybrid):
        pair, text = both(path, kv=kv), prompt(150, 3)
        for i, (writer, reader) in enumerate((pair, pair[::-1])):
            at = tmp_path / f"{path.stem}{i}.prefix"
            writer.save_prefix(at, text)
            assert reader.restore_prefix(at).cached_tokens > 0
            assert len({llm.generate(text, seed=1, **HOW).fingerprint for llm in pair}) == 1
