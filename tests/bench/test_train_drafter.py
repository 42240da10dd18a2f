"""bench/train_drafter.py: how a drafter begins, the folder it becomes, and what is refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")

import block_drafter
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


@pytest.mark.parametrize("texts", [0, train_drafter.BATCH])
def test_fewer_texts_than_a_step_needs_are_refused(texts):
    with pytest.raises(SystemExit, match="a step needs 2, and one is held out: raise --texts"):
        train_drafter.check_count(texts)
    train_drafter.check_count(train_drafter.BATCH + 1)
