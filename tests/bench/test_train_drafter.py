"""bench/train_drafter.py: how a drafter begins, the folder it becomes, and what is refused."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")

import block_drafter
import routine_texts
import train_drafter
from cutaway import LLM
from support.random_llama import VOCAB, write_tiny_llama

PROMPTS = [[1, *range(60 + n, 70 + n)] for n in range(8)]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    at = tmp_path_factory.mktemp("target") / "target.gguf"
    with LLM(write_tiny_llama(at, layers=4, heads=4, kv_heads=2, head_dim=8, context=256)) as llm:
        yield llm


def test_queries_and_keys_begin_as_the_models(llm):
    """Where two tokens are rotated by halves, they agree as much as rotated by neighbours."""
    weights, dim = block_drafter.Weights(llm), 8
    x, positions = torch.randn(1, 2, 32), torch.tensor([[3, 11]])
    name = "blk.1.attn_q.weight"
    assert not llm.config.rope.rotate_half
    by_halves = block_drafter.rotate(
        (x @ weights.rotated(name).T).unflatten(-1, (-1, dim)), positions, llm.config.rope.base
    )
    plain = (x @ weights.read(name).T).unflatten(-1, (-1, dim // 2, 2))
    angle = positions[..., None, None] * torch.tensor(llm.config.rope.frequencies())
    by_neighbours = torch.view_as_complex(plain.contiguous()) * torch.polar(
        torch.ones_like(angle), angle
    )
    expected = (by_neighbours[0, 0] * by_neighbours[0, 1].conj()).real.sum(-1)
    assert (by_halves[0, 0] * by_halves[0, 1]).sum(-1) == pytest.approx(expected, abs=1e-4)


def test_what_it_trains_is_what_drafts(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(train_drafter, "routine_prompts", lambda *_, held_out: PROMPTS)
    monkeypatch.setattr(train_drafter, "VOCABULARY", VOCAB // 2)
    monkeypatch.setattr(train_drafter, "EVERY", 2)
    kept, write = [], train_drafter.write_folder
    monkeypatch.setattr(
        train_drafter, "write_folder", lambda *given: (kept.append(given[1]), write(*given))
    )
    torch.manual_seed(0)
    train_drafter.make(llm, tmp_path / "drafter", 0.02, 8, 40)
    drafter, drafts = kept[-1], f"dspark:{tmp_path / 'drafter'}"
    assert len(kept) > 1  # also on the way
    rows = noted_rows(llm, drafts, monkeypatch)
    plain, drafted = (
        llm.generate(PROMPTS[0], speculate=s, max_tokens=6, temperature=0, ignore_eos=True)
        for s in ("off", drafts)
    )
    assert drafted.fingerprint == plain.fingerprint
    text = [*PROMPTS[0], *plain.token_ids][: rows[0][0]]
    streams = train_drafter.read_streams(llm, text[:-1], drafter.form.streams)
    blocks = torch.tensor([[[text[-1], *[drafter.form.mask] * (rows[0][1] - 1)]]])
    with torch.no_grad():
        at = torch.tensor([[len(text) - 1]])
        told = drafter((streams / drafter.form.units)[None], blocks, at)[0, 0, 0]
        told = (told + drafter.after(torch.tensor(text[-1]))).numpy()
    assert np.abs(rows[0][2][drafter.form.ids] - told).max() < 0.05 * np.abs(told).max()


def noted_rows(llm, drafts, monkeypatch):
    """Return a list that grows with each draft: text's length, tokens, first row of logits."""
    llm.load_draft(drafts)
    head = llm.engine.speculator.draft
    head.cost, noted, first, propose, sample = 0.1, [], [], head.propose, head.backend.sample

    def noted_sample(logits, draws):
        first.append(logits[0].copy())
        return sample(logits, draws)

    def noted_propose(requests):
        first.clear()
        [tokens] = propose(requests)
        if tokens:
            noted.append((len(requests[0][0]), len(tokens), first[0]))
        return [tokens]

    monkeypatch.setattr(head.backend, "sample", noted_sample)
    monkeypatch.setattr(head, "propose", noted_propose)
    return noted


@pytest.mark.parametrize("texts", [0, train_drafter.BATCH - 1])
def test_fewer_texts_than_a_step_needs_are_refused(texts):
    with pytest.raises(SystemExit, match="a step needs 2: raise --texts or --length"):
        train_drafter.check_count(texts)
    train_drafter.check_count(train_drafter.BATCH)


def test_each_prompt_is_asked_once_greedily_and_then_at_random(llm, monkeypatch):
    monkeypatch.setattr(train_drafter, "routine_prompts", lambda *_, held_out: list(PROMPTS))
    monkeypatch.setattr(train_drafter, "TOGETHER", 3)  # no round is a multiple
    asked, generate = [], llm.generate
    monkeypatch.setattr(
        llm,
        "generate",
        lambda prompts, **given: (
            asked.extend((tuple(prompt), given["temperature"]) for prompt in prompts),
            generate(prompts, ignore_eos=True, **given),
        )[1],
    )
    texts = [*train_drafter.write_texts(llm, 19, 20)]
    assert [number for number, *_ in texts] == [*range(8), *range(8), *range(3)]
    assert [temperature for _, temperature in asked] == [0.0] * 8 + [0.6] * 11
    for number, ids, begin in texts:
        assert tuple(ids[:begin]) == asked[number][0]
    assert {tuple(prompt) for prompt in PROMPTS} == {prompt for prompt, _ in asked[:8]}


def text(prompt):
    return train_drafter.Text(prompt, torch.arange(60), 8, torch.zeros(60, 2))


def test_no_prompt_is_both_trained_with_and_held_out():
    numbers = [*range(1, 70), *range(1, 70), 1]  # the answer to prompt 0 was too short
    trained, held_out = (
        [text.prompt for text in texts]
        for texts in train_drafter.hold_out([text(number) for number in numbers])
    )
    assert held_out == [1, 33, 65, 1, 33, 65, 1]
    assert trained == [number for number in numbers if number not in held_out]


def test_every_text_of_an_odd_number_is_trained_with():
    form = block_drafter.Form([1], torch.ones(2), torch.arange(60), 0)
    texts, seen = [text(number) for number in range(3)], set()
    steps = train_drafter.Steps(form, 60)
    steps.step = lambda texts, _: seen.update(text.prompt for text in texts)
    for _ in zip(range(20), steps.endless(texts), strict=False):
        pass
    assert seen == {0, 1, 2}


def test_what_drafts_are_measured_with_is_in_no_prompt_for_training():
    class Chat:
        chat_prompt = staticmethod(lambda messages: messages[0]["content"])

    trained, measured = (
        {*routine_texts.routine_prompts(Chat, held_out=held_out)} for held_out in (False, True)
    )
    things = {*routine_texts._THINGS.split()[7::8]}
    assert len(trained) == 1480 and len(measured) == 8 * len(things)
    for prompt in trained:
        words = {*re.findall("[a-z]+", prompt)}
        assert not words & (things | {f"{thing}s" for thing in things}), prompt
