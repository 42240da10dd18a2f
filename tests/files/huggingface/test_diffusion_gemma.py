"""DiffusionGemma: a prompt's and a canvas's logits, and whole runs, beside transformers' own."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip(
    "transformers.models.diffusion_gemma", reason="needs a transformers that has DiffusionGemma"
)

import torch

from cutaway import LLM, InputError
from cutaway.base.resources import Memory
from cutaway.compute.backends import KV_BLOCK, Batch
from cutaway.compute.loading import weights
from cutaway.compute.loading.info import ModelInfo
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.setup import Setup
from cutaway.features.inside.look import inside
from cutaway.features.page.folder import write_page_folder
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.rerun import replay
from cutaway.trace import Trace
from support.adapters import random_lora, write_lora
from support.families.row import VOCAB
from support.random_diffusion_gemma import CANVAS, denoise, save
from support.random_models import edit

PROMPT = np.random.default_rng(5).integers(6, VOCAB, 37).tolist()
CELLS = np.random.default_rng(6).integers(6, VOCAB, CANVAS).tolist()
ONE = {"temperature": 1.0, "top_p": 1.0}
RUN = {"entropy_bound": 8.0, "max_passes": 6, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffusion_gemma")
    return folder, save(folder)


def int32(*numbers):
    return np.array(numbers, np.int32)


def canvas_logits(llm, prompt, cells, chances=None):
    """The logits of a canvas's rows after a prompt, with a blend of these chances."""
    backend, canvas = llm.model.backend, llm.model.canvas
    blocks = -(-(len(prompt) + len(cells)) // KV_BLOCK)
    table, first, n = np.arange(blocks, dtype=np.int32)[None], len(prompt), len(cells)
    at = np.arange(first, dtype=np.int32)
    backend.run(Batch(int32(*prompt), at, 0 * at, table, at[:0]))
    blend = np.zeros((n, llm.config.hidden), np.float32)
    if chances is not None:
        blend = canvas.blend(chances).copy()
    rows = np.arange(n, dtype=np.int32)
    return canvas.rows.run(
        Batch(
            int32(*cells), rows + first, 0 * rows, table, rows, limits=0 * rows + first + n - 1,
            given=blend, window_ends=0 * rows + first,
        )
    )  # fmt: skip


@pytest.mark.parametrize("length", [9, 37])
@pytest.mark.parametrize("conditioned", [False, True])
def test_a_canvas_s_logits_are_those_of_transformers(model, length, conditioned):
    folder, theirs = model
    before = torch.randn(1, CANVAS, VOCAB, generator=torch.Generator().manual_seed(1)) * 4
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor([PROMPT[:length]]), decoder_input_ids=torch.tensor([CELLS]),
            self_conditioning_logits=before if conditioned else None,
        ).logits[0].numpy()  # fmt: skip
    chances = before[0].softmax(-1).numpy() if conditioned else None
    ours = canvas_logits(LLM(folder, backend="reference"), PROMPT[:length], CELLS, chances)
    assert np.abs(ours - expected).max() < 1e-3
    native = canvas_logits(LLM(folder), PROMPT[:length], CELLS, chances)
    error = np.mean((native - ours) ** 2, axis=1) / np.mean(ours**2)
    assert np.sqrt(np.median(error)) < 0.004


def test_a_prompt_s_logits_are_those_of_the_encoder_and_the_head(model):
    folder, theirs = model
    with torch.no_grad():
        read = theirs.model.encoder(input_ids=torch.tensor([PROMPT])).last_hidden_state
        expected = 30 * torch.tanh(theirs.lm_head(read) / 30)[0]
    ours = LLM(folder, backend="reference").logits(PROMPT)
    assert np.abs(ours - expected.numpy()).max() < 1e-3


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_over_blocks_writes_what_transformers_writes_with_the_same_luck(
    model, seed, monkeypatch
):
    """In three passes a block, since a random model makes 50 times as much of each difference."""
    folder, theirs = model
    llm = LLM(folder, backend="reference")
    ours = llm.denoise(PROMPT, **RUN | {"seed": seed, "max_passes": 3}, max_tokens=3 * CANVAS)
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as generation

    expected = denoise(
        theirs, PROMPT, seed, monkeypatch, max_new_tokens=3 * CANVAS, max_denoising_steps=3,
        sampler_config=generation.EntropyBoundSamplerConfig(8.0), stability_threshold=1,
        confidence_threshold=0.005, t_min=0.4, t_max=0.8,
    )  # fmt: skip
    assert list(ours.token_ids) == expected
    assert [p.block for p in ours.passes][::3] == [
        (37 + i * CANVAS, 37 + (i + 1) * CANVAS) for i in range(3)
    ]


# -- the same bits in every way --------------------------------------------------------------------


def told(completion):
    passes = [p._replace(id=0, phases=None) for p in completion.passes]
    return completion.token_ids, completion.fingerprint, passes


def test_threads_tiers_files_company_and_caches_change_no_bit(model, each_tier, tmp_path):
    folder, _ = model
    seeds, options = (7, 8, 7), RUN | {"max_tokens": 2 * CANVAS + 5}
    alone = {seed: told(LLM(folder).denoise(PROMPT, **options | {"seed": seed})) for seed in seeds}
    llm = LLM(folder, threads=2, kv_tokens=256)
    streams = [llm.stream(PROMPT, **_split(options | {"seed": seed})) for seed in seeds]
    written = [told(stream.finish()) for stream in streams]
    assert [w[:2] for w in written] == [alone[seed][:2] for seed in seeds]
    assert written == [alone[seed] for seed in seeds]
    assert told(llm.denoise(PROMPT, **options)) == alone[7]
    with open_model(folder) as source:
        write_gguf(tmp_path / "one.gguf", source)
    assert told(LLM(tmp_path / "one.gguf").denoise(PROMPT, **options)) == alone[7]
    for tier in each_tier:
        assert told(LLM(folder, threads=1).denoise(PROMPT, **options)) == alone[7], tier


def test_a_block_has_at_most_the_cells_that_the_model_reveals_together(model):
    llm = LLM(model[0])
    for block in (CANVAS + 1, None):
        rule = {"max_passes": 1, "block": block}
        with pytest.raises(InputError, match=rf"block: .* at most {CANVAS} cells together"):
            llm.generate(PROMPT, denoise=rule, max_tokens=CANVAS + 1)
    assert llm.generate(PROMPT, denoise=rule, max_tokens=CANVAS, ignore_eos=True).passes


def _split(options):
    rule = {name: options[name] for name in ("entropy_bound", "max_passes")}
    return {k: v for k, v in options.items() if k not in rule} | {"denoise": rule}


def test_a_trace_is_replayed_bit_for_bit(model, tmp_path):
    folder, _ = model
    llm, path = LLM(folder), tmp_path / "run.jsonl"
    llm.denoise(PROMPT, **RUN, max_tokens=2 * CANVAS, trace=path)
    trace = Trace.read(path)
    assert trace.head.decoder.attention == "canvas" and len(trace.passes) == 12
    again = replay(llm, trace)
    assert again.same and again.passes == 12


# -- what the folder says --------------------------------------------------------------------------


def test_a_folder_s_numbers_are_those_of_its_rule(model, tmp_path):
    folder, _ = model
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    edit(
        copy / "generation_config.json", max_denoising_steps=3, t_max=0.9, t_min=0.5,
        stability_threshold=2, confidence_threshold=0.01,
        sampler_config={"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.3},
    )  # fmt: skip
    rule = LLM(copy).parse_options({"denoise": True}).denoise
    assert (rule.max_passes, rule.t_max, rule.t_min, rule.block) == (3, 0.9, 0.5, CANVAS)
    assert (rule.entropy_bound, rule.stability_threshold, rule.confidence_threshold) == (
        0.3,
        2,
        0.01,
    )
    plain = LLM(folder).parse_options({"denoise": "diffusion-gemma"})
    assert plain.denoise.max_passes == 48 and plain.denoise.block == CANVAS
    assert (plain.sampling.temperature, plain.sampling.top_p) == (1.0, 1.0)
    assert LLM(folder).parse_options({"denoise": True, "top_p": 0.9}).sampling.top_p == 0.9


def test_it_is_asked_for_canvases(model):
    llm = LLM(model[0])
    with pytest.raises(InputError, match="cutaway denoise"):
        llm.generate(PROMPT)
    with pytest.raises(InputError, match="suffix"):
        llm.denoise(PROMPT, suffix="a", max_tokens=4)


def test_its_memory_has_the_embedding_twice(model):
    """It is read the other way round, too, to blend what the last pass predicted."""
    folder, _ = model
    card, opened = ModelInfo.read(folder), LLM(folder, progress=False).model
    tensors = opened.parts.nbytes
    embedding = 4 * card.vocab_size * opened.config.hidden
    assert card.canvas_bytes == embedding
    assert card.weight_bytes == tensors + embedding
    reference = LoadedModel.open(folder, Setup(backend="reference"), weights=False)
    assert reference._weight_bytes == 4 * opened.parts.parameters + embedding


def test_it_is_refused_where_only_the_weights_fit(model, monkeypatch):
    folder, _ = model
    card = ModelInfo.read(folder)
    free = card.weight_bytes - card.canvas_bytes
    for bytes_free, fits in ((card.weight_bytes, True), (free, False)):
        monkeypatch.setattr(weights, "free_memory", lambda n=bytes_free, **_: Memory(n, "this"))
        if fits:
            LLM(folder, progress=False).close()
        else:
            with pytest.raises(InputError, match="of memory for its weights, and only"):
                LLM(folder, progress=False)


@pytest.mark.parametrize("setting", ["lora", "adapters"])
def test_adapters_are_refused_before_any_weight_is_loaded(model, tmp_path, setting):
    folder = model[0]
    with LLM(folder, progress=False) as llm:
        with open_model(folder) as source:
            shape = source.tensors["blk.0.attn_q.weight"].shape
        file = write_lora(
            tmp_path / "lora.gguf", random_lora({"blk.0.attn_q.weight": shape}),
            architecture=llm.config.architecture,
        )  # fmt: skip
        with pytest.raises(InputError, match=r"^adapters: this model denoises a canvas without"):
            llm.model.open_adapter("a", file)
    setup = Setup(lora=file) if setting == "lora" else Setup(adapters={"a": file})
    with pytest.raises(InputError, match=f"^{setting}: this model denoises a canvas without"):
        LoadedModel.open(folder, setup, weights=False)


def test_what_looks_inside_or_leaves_the_server_refuses_in_a_sentence(model, tmp_path):
    folder, path = model[0], tmp_path / "page"
    with LLM(folder, progress=False) as llm:
        llm.denoise(PROMPT, max_tokens=4, trace=tmp_path / "t", **RUN)
        with pytest.raises(InputError, match="this trace is of a canvas"):
            inside(llm, Trace.read(tmp_path / "t"), 1)
        with pytest.raises(InputError, match="does not write from left to right"):
            write_page_folder(llm.model, path, context=64, cores=tmp_path)
    assert not path.exists()
