"""The bits contract: logits equal as uint32 however they are computed, and on every machine."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.features.measure.verify import Sample, differing_bits, instruction_set
from support.golden import GOLDEN
from support.native_plans import TIERS

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway._version import ARITHMETIC
from cutaway.features.measure.verify import (
    BatchMate,
    checks,
)
from cutaway.files.weights import FORMATS, FORMATS_BY_ID, GGUFFile
from support.native_plans import batch_of, linear
from support.random_llama import write_tiny_llama

ROWS = (1, 2, 3, 7, 8, 33, 257)
ODD = {"heads": 6, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 160}
SQUARE = {"heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 256, "feed_forward": 256}
WIDE = {"heads": 8, "kv_heads": 4, "head_dim": 64, "hidden": 256, "feed_forward": 512}


def opened(path, tier=TIERS[0], threads=2, **options):
    with instruction_set(tier):
        return LLM(path, backend="cpu", threads=threads, progress=False, **options)


def tiny(directory, name, **shape):
    sizes = SQUARE if FORMATS[name].quant_block_elements > 32 else ODD
    shape = sizes | {"context": 512, "format": name} | shape
    return write_tiny_llama(directory / f"{name}.gguf", **shape)


@pytest.mark.parametrize("name", [format.name for format in FORMATS_BY_ID.values()])
def test_the_whole_matrix_of_a_small_model(name, tmp_path):
    """Rows per call, chunks, neighbours, blocks, threads and tiers; and the control differs.

    Of 128 tokens: ``mixed`` has more than one chunk of history, which knows of no format.
    """
    path = tiny(tmp_path, name, layers=1, context=256)
    held = []

    def load(tier, threads):
        held[:] = [opened(path, tier, threads, kv_tokens=256)]
        return held[0].backend

    done = list(checks(load, range(3, 203), TIERS))
    assert {check.varied for check in done} == {
        "rows per call", "chunk boundaries", "neighbours", "KV blocks", "again", "control",
        "threads", "instruction set",
    }  # fmt: skip
    assert [check for check in done if not check.passed] == []
    assert sum(check.control for check in done) == 1


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Several formats in one model, a long context, and its plain logits at every position."""
    path = write_tiny_llama(
        tmp_path_factory.mktemp("bits") / "mixed.gguf", **WIDE, layers=2, context=1024,
        formats={
            "ffn_down": "Q6_K", "attn_v": "Q5_K", "token_embd": "Q8_0", "output": "F16",
            "ffn_gate": "IQ3_XXS", "attn_k": "MXFP4",
        },
        format="Q4_1", seed=3,
    )  # fmt: skip
    text = everywhere(np.random.default_rng(0).integers(3, 264, 600).tolist(), range(19))
    return path, text, text.run(opened(path).backend, [512])


def everywhere(tokens, blocks):
    return Sample(tokens, blocks, frozenset(range(len(tokens))))


def assert_equal(ours, plain):
    assert differing_bits(ours, plain) == 0


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_rows_and_threads(mixed, threads, rows):
    path, text, plain = mixed
    if rows <= 3:  # the later rows, where several chunks of history are split among threads
        llm = opened(path, threads=threads)
        late = Sample(text.tokens, text.blocks, frozenset(range(540, 600)))
        assert_equal(late.run(llm.backend, [540, *[rows] * 60]), plain[540:])
    else:
        assert_equal(text.run(opened(path, threads=threads).backend, [rows]), plain)


@pytest.mark.parametrize("tier", TIERS)
def test_tiers(mixed, tier):
    path, text, plain = mixed
    assert_equal(text.run(opened(path, tier).backend, [255, 2, 300, 1]), plain)


def test_llm_logits_are_these_logits(mixed):
    path, text, plain = mixed
    assert_equal(opened(path).logits(text.tokens), plain)


def test_neighbours_of_every_size(mixed):
    path, text, plain = mixed
    backend = opened(path).backend
    others = [
        BatchMate(text.tokens[::-1][:100], range(19, 23), 1, first=True),
        BatchMate(text.tokens[5:60], range(23, 25), 11),
        BatchMate(text.tokens[100:195], range(25, 28), 95, first=True),
    ]
    for cuts in ([40], [1] * 4 + [596], [257, 1]):
        for company in ([others[0]], others[1:], others):
            assert_equal(text.run(backend, cuts, company), plain)


def test_scrambled_blocks_full_of_another_text(mixed):
    """What lies in unused slots changes nothing."""
    path, text, plain = mixed
    llm = opened(path)
    hot = everywhere(np.random.default_rng(5).integers(3, 264, 640).tolist(), range(12, 32))
    hot.run(llm.backend)
    blocks = np.random.default_rng(1).permutation(32)[:19].tolist()
    assert_equal(Sample(text.tokens, blocks, text.positions).run(llm.backend, [100]), plain)


def test_two_sequences_share_the_blocks_of_their_beginning(mixed):
    """A fork reads the same blocks; both go on in blocks of their own."""
    path, text, plain = mixed
    backend = opened(path).backend
    everywhere(text.tokens[:64], [4, 7]).run(backend)
    fork = np.random.default_rng(2).integers(3, 264, 30).tolist()
    parts = [(64, text.tokens[64:90], [4, 7, 9]), (64, fork, [4, 7, 11])]
    together = backend.run(batch_of(parts)).copy()
    assert_equal(together[:26], plain[64:90])
    alone = everywhere([*text.tokens[:64], *fork], [20, 3, 5]).run(backend)
    assert_equal(together[26:], alone[64:])


def test_any_choice_and_order_of_logit_rows(mixed):
    path, text, plain = mixed
    backend = opened(path).backend
    batch = batch_of([(0, text.tokens[:50], [0, 1])])
    for wanted in ([], [49], [3, 3, 3], [49, 0, 17], list(range(49, -1, -1))):
        got = backend.run(batch._replace(logit_rows=np.array(wanted, np.int32)))
        assert_equal(got, plain[wanted] if wanted else plain[:0])


_ANY_SHAPE = ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q6_K", "IQ4_NL", "IQ2_S"]


@settings(max_examples=20)
@given(data=st.data())
def test_any_shape_that_the_graph_admits(data, tmp_path_factory):
    draw = data.draw
    name = draw(st.sampled_from(_ANY_SHAPE))
    step = FORMATS[name].quant_block_elements
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    head_dim = draw(st.sampled_from([2, 8, 10, 24, 40, 64]))
    heads = kv_heads * group
    if heads * head_dim % step:
        heads, kv_heads, head_dim = {32: (4, 2, 24), 256: (4, 1, 64)}[step]
    path = write_tiny_llama(
        tmp_path_factory.mktemp("any") / "any.gguf", format=name, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, hidden=step * draw(st.integers(1, 3 if step > 1 else 70)),
        feed_forward=step * draw(st.integers(1, 3 if step > 1 else 70)),
        layers=draw(st.integers(1, 2)), tied=draw(st.booleans()), context=128,
    )  # fmt: skip
    text = everywhere(list(range(3, 103)), range(4))
    plain = text.run(opened(path).backend)
    reference = LLM(path, backend="reference").logits(text.tokens)
    assert np.linalg.norm(plain - reference) / np.linalg.norm(reference) < 0.35
    tier, threads = draw(st.sampled_from(TIERS)), draw(st.integers(1, 4))
    cuts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    assert_equal(text.run(opened(path, tier, threads).backend, cuts), plain)


def test_negative_control_one_altered_weight_is_seen(tmp_path):
    """The smallest change of one weight changes bits, but only in the rows that can know of it."""
    path = tiny(tmp_path, "F32")
    text = everywhere(list(range(3, 63)), range(2))
    plain = text.run(opened(path).backend)
    raw = bytearray(path.read_bytes())
    embedding = np.frombuffer(raw, np.uint8)  # the row of token 40, which stands at position 37
    with GGUFFile(path) as file:
        row = file.raw("token_embd.weight")[:].view(np.float32).reshape(-1, 64)[40]
    at = bytes(embedding).index(row.tobytes())
    raw[at] ^= 1  # the lowest bit of one number
    path.write_bytes(raw)
    altered = text.run(opened(path).backend)
    assert differing_bits(altered[:37], plain[:37]) == 0
    assert differing_bits(altered[37:], plain[37:]) > 0


def test_negative_control_another_order_of_summation_is_seen(tmp_path):
    """Permuting the inputs of a matrix changes nothing on paper, and bits in float32."""
    weights = np.random.default_rng(0).normal(size=(40, 256)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(5, 256)).astype(np.float32)
    times = partial(linear, TIERS[0], "F32")
    order = np.random.default_rng(2).permutation(256)
    one = times(weights.view(np.uint8).ravel(), 40, x)
    other = times(np.ascontiguousarray(weights[:, order]).view(np.uint8).ravel(), 40, x[:, order])
    assert np.abs(one - other).max() < 1e-4
    assert differing_bits(one, other) > 0


# -- the number of the arithmetic: what is written under it ----------------------------------------


SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 256, "feed_forward": 256}
SAMPLERS = [
    {"temperature": 0},
    {"temperature": 1.2, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2},
    {"temperature": 1, "typical_p": 0.9, "xtc_probability": 0.5, "dry_multiplier": 0.8},
    {"temperature": 1, "top_n_sigma": 1.5, "top_k": 40, "frequency_penalty": 0.3},
]
WRITTEN = {
    1: {
        "F32 f16": "6789c4819000d5d3 131930a9d1531746 d6d61efbc63ce10a 2239a80235aafcea",
        "F32 q8_0": "3d678d2e1443af72 0518dd2a97e2aed9 99ef2336a86f88cf 58321e4a4defa02a",
        "F32 q5_1,q4_0": "758334e1b6d8eab9 3befaf0dded8fa24 72c8ababee817718 7850709520067acc",
        "F16 f16": "2e8819f504caa3cd cd9974f7240a66e5 3ecf479adbd2a778 efdab5164b594df0",
        "F16 q8_0": "43ae2ddebc183864 1fdc2f782ae687c1 e1b392add953c004 1e5aeadee2d98f0d",
        "F16 q5_1,q4_0": "1f58966e76286045 06f55fe47af32b00 dfbc62dafb4519a1 c27e0ca89e6b8499",
        "Q8_0 f16": "87092578289d29f2 a0f74cec698ef4bf 29014515549e6245 864b2e1616b6ddde",
        "Q8_0 q8_0": "ea478275577fc481 1d6d11895a74737b 7c2ab7c603bd87a6 ec3749d566f27751",
        "Q8_0 q5_1,q4_0": "402b6091350b1d96 cc0042885104657b ae3c84a848ed9c75 fae99d144cc74db9",
        "Q4_K f16": "1ad56096e0205e20 1ef9b101af832ad8 50724b4a6faa4dde 0bc8339c3a9ee70b",
        "Q4_K q8_0": "81d5e5c3aa8d127a 8aeeaca69915dc6a 209034003c74fdcc 5a969ae1d0a676a9",
        "Q4_K q5_1,q4_0": "2666f199171a7e08 98bfd616eee2bc82 14cbde24297ac636 91aace9c6cd33ba9",
        "Q6_K f16": "2bc8422486ee24c9 b75009a588b4cef2 547e7dc93c31afa6 249e64fcab7192d4",
        "Q6_K q8_0": "0e3db8e5ca044ddf 18cd678cadd6d369 9d9c6074b4e9de10 c69990003bb2d2dc",
        "Q6_K q5_1,q4_0": "8a97d56cfa5609b7 cba1164c98084a5c 3cd82092d290eb8f a307b65ea4b7bfe8",
    },
}
"""By number, what each format's texts are: never change a line of another number than the last."""


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q5_1,q4_0"])
@pytest.mark.parametrize("format", ["F32", "F16", "Q8_0", "Q4_K", "Q6_K"])
def test_these_bits_belong_to_this_number(format, kv, tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE, format=format)
    with LLM(path, kv=kv, progress=False) as llm:
        texts = [
            llm.generate("ab ba ab", seed=3, max_tokens=40, ignore_eos=True, **sampler)
            for sampler in SAMPLERS
        ]
    found = " ".join(one.fingerprint for one in texts)
    assert found == WRITTEN.get(ARITHMETIC, {}).get(f"{format} {kv}"), (
        "these bits are new: raise ARITHMETIC in src/cutaway/_version.py, and write what they are "
        "under its number"
    )


# -- smollm2 cpu -----------------------------------------------------------------------------------

# SmolLM2 on the cpu backend: the same bits in every way, and close to the reference.


LLAMACPP_DIVERGENCE = 0.00472
"""Mean over the golden prompts of llama-cpp-python 0.3.36 on the same file, by ``divergence``."""

PROMPT = (
    "The lighthouse keeper wrote one line in his book every evening, and on the last page he found "
    "that someone had been answering him. "
) * 12


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, backend="cpu", context=1024)


@pytest.fixture(scope="module")
def reference(smollm2_path):
    return LLM(smollm2_path, backend="reference", context=1024)


@pytest.fixture(scope="module")
def plain(llm):
    """300 tokens, and the logits of every 7th position and the last 8."""
    tokens = llm.tokenize(PROMPT)[:300]
    text = Sample(tokens, range(10), frozenset({*range(0, 300, 7), *range(292, 300)}))
    return text, text.run(llm.backend)


@pytest.mark.model
@pytest.mark.parametrize("rows", [7, 8, 33, 257])
def test_rows_per_call(llm, plain, rows):
    text, logits = plain
    assert differing_bits(text.run(llm.backend, [rows]), logits) == 0


@pytest.mark.model
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_after_a_long_history(llm, plain, rows):
    text, logits = plain
    assert differing_bits(text.run(llm.backend, [270, *[rows] * 30]), logits) == 0


@pytest.mark.model
@pytest.mark.parametrize("threads", [1, 3, 5])
def test_threads(smollm2_path, plain, threads):
    text, logits = plain
    other = LLM(smollm2_path, backend="cpu", threads=threads, context=512)
    assert differing_bits(text.run(other.backend, [290, 1, 9]), logits) == 0


@pytest.fixture(scope="module")
def other_tier(smollm2_path, request):
    with instruction_set(request.param):
        other = LLM(smollm2_path, backend="cpu", context=512)
    assert other.backend.tier == request.param
    return other


PLAIN = [tier for tier in TIERS[1:] if tier in ("generic", "amx-plain")]
"""Those without instructions of their own, which are slow."""


@pytest.mark.model
@pytest.mark.parametrize("other_tier", [t for t in TIERS[1:] if t not in PLAIN], indirect=True)
def test_tiers_write_smollm2_s_text(plain, other_tier):
    text, logits = plain
    assert differing_bits(text.run(other_tier.backend, [297, 1, 2]), logits) == 0


@pytest.mark.model
@pytest.mark.parametrize("other_tier", PLAIN, indirect=True)
@pytest.mark.parametrize(
    ("tokens", "rows"), [(20, [17, 1, 2]), pytest.param(300, [297, 1, 2], marks=pytest.mark.slow)]
)
def test_plain_tiers(plain, other_tier, tokens, rows):
    """The beginning, in as many rows as a matrix unit wants; small models have the rest."""
    text, logits = plain
    scored = frozenset(i for i in text.positions if i < tokens)
    begin = Sample(text.tokens[:tokens], text.blocks, scored)
    assert differing_bits(begin.run(other_tier.backend, rows), logits[: len(scored)]) == 0


@pytest.mark.model
def test_fingerprints_do_not_depend_on_company(llm):
    prompts = [case["ids"] for case in GOLDEN[:5]]
    options = {"temperature": 0.8, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    alone = [llm.generate(p, **options) for p in prompts]
    together = llm.generate(prompts, **options)
    assert [c.fingerprint for c in together] == [c.fingerprint for c in alone]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    naive = llm.generate(prompts[2], kv_cache=False, **options)
    assert naive.fingerprint == alone[2].fingerprint


# -- close to the reference ------------------------------------------------------------------


def relative_error(ours, reference):
    """As the golden file measures llama.cpp: of all the last row's logits."""
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


def divergence(ours, reference):
    """Mean KL(reference || ours) over the rows, in nats."""
    a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (reference, ours))
    return float((np.exp(a) * (a - b)).sum(-1).mean())


@pytest.fixture(scope="module")
def errors(llm, reference):
    rows = []
    for case in GOLDEN:
        ours = llm.logits(case["ids"]).astype(np.float64)
        ideal = reference.logits(case["ids"]).astype(np.float64)
        rows.append((relative_error(ours[-1], ideal[-1]), divergence(ours, ideal)))
    return np.array(rows)


@pytest.mark.model
def test_relative_error_no_worse_than_llama_cpp_s(errors):
    """Of a prompt's last logits. llama.cpp rounds activations to 8 bits too."""
    theirs = np.array([case["llamacpp_rel_err"] for case in GOLDEN])
    assert errors[:, 0].max() < 0.06
    assert errors[:, 0].mean() <= theirs.mean()


@pytest.mark.model
def test_mean_divergence_no_worse_than_llama_cpp_s(errors):
    assert errors[:, 1].mean() <= LLAMACPP_DIVERGENCE


@pytest.mark.model
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:20])
def test_the_likeliest_tokens_are_the_reference_s(llm, case):
    """Each of the best three is among the reference's best ten."""
    best = np.argsort(llm.logits(case["ids"])[-1])[::-1][:3]
    assert set(best.tolist()) <= set(case["top_ids"][:10])


@pytest.mark.model
def test_greedy_text_is_sensible(llm):
    assert "Paris" in llm.generate("The capital of France is", temperature=0, max_tokens=8).text
    answer = llm.chat([{"role": "user", "content": "Name three colours."}], temperature=0)
    assert sum(c in answer.text.lower() for c in ("red", "blue", "green", "yellow")) >= 1
