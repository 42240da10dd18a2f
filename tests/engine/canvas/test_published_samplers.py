"""Rules beside the samplers that they are named after, token for token at temperature 0.

The samplers are written down here from their definitions, in torch, with its rounding: LLaDA
(arXiv 2502.09992), Dream (2508.15487), dLLM's schedules (2602.22661), Fast-dLLM (2505.22618),
EB (2505.24857), Mask-Predict (1904.09324). The model is any function of a text.
"""

from itertools import product

import pytest

from cutaway.engine import Denoise, StopParams
from cutaway.engine.canvas import Rule, make_canvas
from cutaway.engine.canvas.figures import BlockProgress, _count_by_schedule
from support.engine_mock import GREEDY, MockRequest, make_engine
from support.mock_backend import AT, noise

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")

MASK = 0
PROMPT = (5, 6, 7, 9)


def model(tokens):
    """Logits (L, vocab) of a text that sees itself as a whole; the mask is never likeliest."""
    rows = torch.stack(
        [torch.from_numpy(seen(tokens, i)) for i in range(len(tokens))],
    )
    rows[:, MASK] = -9
    return rows


def seen(tokens, i):
    return noise(tuple(tokens) if i == len(tokens) - 1 else (*tokens, AT, i))


def without_mask(history):
    logits = noise(history)
    logits[MASK] = -9
    return logits


def ours(rule, cells, *, shift=False, prompt=PROMPT):
    engine = make_engine(
        without_mask, context=128, attention="bidirectional", tells_places=True, shift=shift
    )
    stops = StopParams(max_tokens=cells, ignore_eos=True)
    return MockRequest(prompt, GREEDY, stops, decoder=Denoise(rule, MASK)).finish(engine).token_ids


def by_passes(cells, choose, *, prompt=PROMPT, shift=False, block=None):
    """Reveal in passes what ``choose(pass, p (n, vocab), masked (n,))`` says, block by block."""
    text = torch.tensor([*prompt, *[MASK] * cells])
    for start in range(len(prompt), len(text), block or cells):
        here = torch.zeros(len(text), dtype=torch.bool)
        here[start : start + (block or cells)] = True
        index = 0
        while (masked := (text == MASK) & here).any():
            logits = model(text.tolist())
            if shift:
                logits = torch.cat([logits[:1], logits[:-1]])
            p = torch.softmax(logits.to(torch.float64), dim=-1)
            where = masked.nonzero()[:, 0]
            kept = where[choose(index, p[where], int(masked.sum()))]
            text[kept] = p[kept].argmax(-1)
            index += 1
    return text[len(prompt) :].tolist()


def best(figure, n):
    return torch.topk(figure, min(n, len(figure))).indices


def confidence(p):
    return p.max(-1).values


def margin(p):
    first, second = torch.topk(p, 2).values.T
    return first - second


def negative_entropy(p):
    return torch.sum(p * torch.log(p + 1e-10), dim=-1)


def even(cells, steps):
    return [cells // steps + (i < cells % steps) for i in range(steps)]


@pytest.mark.parametrize(
    ("cells", "block", "steps"), [(16, 16, 16), (16, 8, 6), (24, 8, 12), (20, 20, 7)]
)
def test_llada(cells, block, steps):
    numbers = even(block, steps * block // cells)
    theirs = by_passes(
        cells, lambda index, p, masked: best(confidence(p), numbers[index]), block=block
    )
    assert ours(Rule(draws_first=True, block=block, steps=steps), cells) == theirs


def dream_numbers(cells, steps, eps=1e-3):
    """How many each step reveals of what is still masked, those that reveal none left out."""
    times, masked, numbers = torch.linspace(1, eps, steps + 1), cells, []
    for i in range(steps):
        n = masked if i == steps - 1 else int(masked * (1 - times[i + 1] / times[i]))
        numbers += [n] if n else []
        masked -= n
    return numbers


@pytest.mark.parametrize(
    ("order", "figure"),
    [("confidence", confidence), ("margin", margin), ("entropy", negative_entropy)],
)
@pytest.mark.parametrize(("cells", "steps"), [(16, 16), (20, 5), (12, 30)])
def test_dream(order, figure, cells, steps):
    numbers = dream_numbers(cells, steps)
    theirs = by_passes(cells, lambda index, p, masked: best(figure(p), numbers[index]), shift=True)
    rule = Rule(order=order, schedule="dream", steps=steps, draws_first=True, after_chain=True)
    assert ours(rule, cells, shift=True) == theirs


def dllm_numbers(cells, steps, kind):
    """round(masked · (1 − (1 − α_s) / (1 − α_t))), those that reveal none left out."""
    masked, numbers = cells, []
    for i in range(steps):
        t, s = (torch.tensor(n / steps, dtype=torch.float32) for n in (steps - i, steps - i - 1))
        kept = (
            (lambda x: 1 - x)
            if kind == "linear"
            else (lambda x: 1 - torch.cos(torch.pi / 2 * (1 - x)))
        )
        chance = 1 - ((1 - kept(s)) / (1 - kept(t))).item()
        n = min(int(torch.round(torch.tensor(masked, dtype=torch.float64) * chance)), masked)
        numbers += [n] if n else []
        masked -= n
    return numbers


@pytest.mark.parametrize("schedule", ["dream", "linear", "cosine"])
def test_their_numbers_at_any_length(schedule):
    for steps, cells in product(range(1, 70), (1, 2, 7, 31, 32, 64, 100)):
        rule = Rule(schedule=schedule, steps=steps)
        passes = make_canvas(rule, 0, cells).passes[0]
        masked, numbers = cells, []
        for i in range(passes):
            n = min(_count_by_schedule(rule, masked, BlockProgress(i, passes, cells, i)), masked)
            numbers += [n] if n else []
            masked -= n
        dream = schedule == "dream"
        theirs = dream_numbers(cells, steps) if dream else dllm_numbers(cells, steps, schedule)
        assert numbers == theirs, (steps, cells)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize(("cells", "block", "steps"), [(16, 16, 16), (24, 8, 15), (20, 20, 33)])
def test_dllm(kind, cells, block, steps):
    numbers = dllm_numbers(block, steps * block // cells, kind)
    theirs = by_passes(
        cells, lambda index, p, masked: best(confidence(p), numbers[index]), block=block
    )
    assert ours(Rule(schedule=kind, block=block, steps=steps), cells) == theirs


@pytest.mark.parametrize("threshold", [0.0, 0.015, 0.02, 0.03, 1.0])
def test_fast_dllm_by_threshold(threshold):
    def choose(index, p, masked):
        figure = confidence(p)
        return torch.unique(torch.cat([(figure >= threshold).nonzero()[:, 0], best(figure, 1)]))

    assert ours(Rule(threshold=threshold), 20) == by_passes(20, choose)


@pytest.mark.parametrize("factor", [0.0, 1.9, 1.95, 5.0, 100.0])
def test_fast_dllm_by_factor(factor):
    """Without the slip at the last cell, which the published code adds where it fails the test."""

    def choose(index, p, masked):
        sure = torch.sort(confidence(p), descending=True).values
        n = 0
        while n < masked and (n == 0 or sure[n] >= 1 - factor / (n + 2)):
            n += 1
        return best(confidence(p), n)

    assert ours(Rule(factor=factor, block=10), 20) == by_passes(20, choose, block=10)


@pytest.mark.parametrize("gamma", [0.0, 4.0, 9.0, 30.0, 1e6])
def test_eb(gamma):
    def choose(index, p, masked):
        entropies = torch.sort(-negative_entropy(p)).values
        n = 1
        while n < masked and entropies[: n + 1].sum() - entropies[: n + 1].max() <= gamma:
            n += 1
        return best(negative_entropy(p), n)

    assert ours(Rule(order="entropy", entropy_bound=gamma), 20) == by_passes(20, choose)


@pytest.mark.parametrize(("cells", "steps"), [(12, 4), (12, 12), (7, 3), (9, 1)])
def test_mask_predict(cells, steps):
    """All masked cells are predicted; then those with the lowest probability are masked again."""
    text = torch.tensor([*PROMPT, *[MASK] * cells])
    own = torch.zeros(len(text), dtype=torch.float64)
    first = len(PROMPT)
    for t in range(1, steps + 1):
        masked = (text == MASK).nonzero()[:, 0]
        p = torch.softmax(model(text.tolist()).to(torch.float64), dim=-1)
        text[masked], own[masked] = p[masked].argmax(-1), p[masked].max(-1).values
        again = cells * (steps - t) // steps
        text[first + torch.sort(own[first:], stable=True).indices[:again]] = MASK
    rule = Rule(draws_first=True, remask="lowest", steps=steps)
    assert ours(rule, cells) == text[first:].tolist()


def test_what_llada_21_edits():
    """By threshold; a revealed cell gives way where another token is the likeliest, and sure."""
    threshold, edit, cells, block = 0.02, 0.022, 16, 8
    text, extra = torch.tensor([*PROMPT, *[MASK] * cells]), []
    for start in range(len(PROMPT), len(text), block):
        here, began_full = range(start, start + block), 0
        while True:
            masked = [i for i in here if text[i] == MASK]
            p = torch.softmax(model(text.tolist()).to(torch.float64), dim=-1)
            sure, likeliest = p.max(-1).values, p.argmax(-1)
            sure_enough = {i for i in masked if sure[i] >= threshold}
            if masked:
                sure_enough.add(max(masked, key=lambda i: float(sure[i])))
            edits = [
                i for i in here if text[i] != MASK and likeliest[i] != text[i] and sure[i] > edit
            ]
            for i in (*sure_enough, *edits):
                text[i] = likeliest[i]
            extra += edits
            began_full += not masked
            if not masked and (not edits or began_full == 16):
                break
    assert extra
    rule = Rule(threshold=threshold, remask="edit", edit_threshold=edit, block=block)
    assert ours(rule, cells) == text[len(PROMPT) :].tolist()
