"""Gemma 4's assistants: what they compute, that they change no text, and what is refused."""

import json

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.engine.speculation import DraftLength
from support.random_llama import write_tiny_llama
from support.random_models import IDS, row, save

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.random_assistant import TARGET, save_assistant  # noqa: E402

TEXT = IDS[:50]
WINDOW = row(TARGET).values["sliding_window"]
CENTROIDS = {
    "use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 2,
}  # fmt: skip
OPTIONS = {"max_tokens": 12, "ignore_eos": True, "seed": 5}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A random Gemma 4 with transformers' model of it."""
    folder = tmp_path_factory.mktemp("target")
    return folder, save(TARGET, folder)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """A random assistant, as it is named in a request."""
    folder = tmp_path_factory.mktemp("assistant")
    save_assistant(folder)
    return f"assistant:{folder}"


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory):
    """A model that mostly repeats its last token, and an assistant that guesses so."""
    at = tmp_path_factory.mktemp("agreeing")
    model = save(TARGET, at / "model")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "per_layer_projection.weight")):
                weight.zero_()
    model.save_pretrained(at / "model")
    words = dict(model.named_parameters())["model.embed_tokens.weight"].detach()

    def repeat(weights):
        for name, weight in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        weights["pre_projection.weight"].copy_(torch.eye(*weights["pre_projection.weight"].shape))
        weights["model.norm.weight"].fill_(1.0)
        weights["model.embed_tokens.weight"].copy_(words)
        weights["post_projection.weight"].zero_()

    save_assistant(at / "assistant", repeat, hidden_size=64)
    return at / "model", f"assistant:{at / 'assistant'}"


# -- what they compute -----------------------------------------------------------------------------


def definition(model, assistant, text, tokens):
    """Logits of the drafts after a text, and what is read back, by transformers.

    The windows of cutaway end at the text's last token, as the model's own: they have WINDOW - 1
    tokens before. transformers shows one or two more, by how many rows its last step had.
    """
    with torch.no_grad():
        seen = model(
            torch.tensor([text[:-1]]), output_hidden_states=True, return_shared_kv_states=True
        )
        stored = {
            kind: tuple(x[:, :, -(WINDOW - 1) if kind == "sliding_attention" else 0 :] for x in kv)
            for kind, kv in seen.shared_kv_states.items()
        }
        embed, rows = model.get_input_embeddings(), []
        hidden, token = seen.hidden_states[-1][:, -1:], text[-1]
        for following in tokens:
            inputs = torch.cat([embed(torch.tensor([[token]])), hidden], dim=-1)
            out = assistant(
                inputs_embeds=inputs, position_ids=torch.tensor([[len(text) - 1]]),
                shared_kv_states=stored,
            )  # fmt: skip
            hidden, token = out.last_hidden_state, following
            rows.append((out.logits[0, 0].numpy(), hidden[0, 0].numpy()))
    return rows


@pytest.mark.parametrize(("backend", "most"), [("reference", 1e-4), ("cpu", 0.03)])
@pytest.mark.parametrize(
    ("kind", "tied"),
    [("Gemma4Assistant", {}), ("Gemma4Assistant", CENTROIDS), ("Gemma4UnifiedAssistant", {})],
)
def test_they_compute_what_transformers_does(
    target, tmp_path, monkeypatch, kind, tied, backend, most
):
    folder, model = target
    assistant = save_assistant(tmp_path / "a", kind=kind, tied=tied)
    llm, blocks = LLM(folder, backend=backend), []
    llm.load_draft(f"assistant:{tmp_path / 'a'}")
    drafter = llm.engine.speculator.draft
    guess, propose = drafter._guess, drafter.propose
    rows = []

    def noted_guess(drafts, given):
        logits, outputs = guess(drafts, given)
        rows.append((logits[0].copy(), outputs[0].copy()))
        return logits, outputs

    def noted_propose(requests):
        rows.clear()
        sequence = requests[0][0]
        text, [tokens] = sequence.tokens(0, len(sequence)), propose(requests)
        blocks.append((text, tokens, [*rows]))
        return [tokens]

    monkeypatch.setattr(drafter, "_guess", noted_guess)
    monkeypatch.setattr(drafter, "propose", noted_propose)
    monkeypatch.setattr(DraftLength, "propose", lambda _, match_length, room, *_costs: min(room, 4))
    llm.generate(TEXT, speculate=drafter.name, temperature=1.0, **OPTIONS)
    assert len(blocks) > 2
    assert max(len(tokens) for _, tokens, _ in blocks) == 4
    for text, tokens, computed in blocks:
        for told, own in zip(definition(model, assistant, text, tokens), computed, strict=True):
            for theirs, ours in zip(told, own, strict=True):
                chosen = theirs > theirs.min()  # centroids leave out all other tokens
                assert np.abs(ours - theirs)[chosen].max() < most * np.abs(theirs).max()


# -- that they change nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_text_is_the_same_and_drafts_come_true(agreeing, temperature):
    folder, drafts = agreeing
    llm = LLM(folder)
    llm.load_draft(drafts)
    llm.engine.speculator.draft.cost = 0.1  # a tiny model's assistant is as large as itself
    options = OPTIONS | {"max_tokens": 24, "temperature": temperature}
    plain, drafted = (llm.generate(TEXT, speculate=s, **options) for s in ("off", drafts))
    assert drafted.token_ids == plain.token_ids
    assert drafted.fingerprint == plain.fingerprint
    assert drafted.speculation.proposed > 0
    assert temperature or drafted.speculation.accepted >= 12


@pytest.mark.parametrize("kv_tokens", [256, None])  # of the first, texts are preempted
def test_random_assistants_change_no_text_in_any_company(target, drafts, kv_tokens):
    llm = LLM(target[0], kv_tokens=kv_tokens, context=192)
    llm.load_draft(drafts)
    llm.engine.speculator.draft.cost = 0.1
    prompts = [TEXT, TEXT[:9], [*TEXT[:30], *TEXT], TEXT, TEXT[3:40]]
    options = OPTIONS | {"temperature": 1.0, "max_tokens": 60}
    plain = [llm.generate(prompt, **options) for prompt in prompts]
    for _ in range(2):  # the second time from the prefix cache
        drafted = llm.generate(prompts, speculate=drafts, **options)
        assert [c.fingerprint for c in drafted] == [c.fingerprint for c in plain]
        assert sum(c.speculation.proposed for c in drafted) > 0
    assert (llm.engine.scheduler.preemptions > 0) == (kv_tokens is not None)


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "(ab|ba){3,9}"}, {"kv_cache": False}, {"n": 3},
        {"bad_words": ["a"], "repetition_penalty": 1.2, "top_k": 9},
    ],
)  # fmt: skip
def test_under_grammars_penalties_and_without_a_cache(target, drafts, options):
    llm, options = LLM(target[0]), {"max_tokens": 16, "seed": 2, "temperature": 1.0} | options
    plain, drafted = (llm.generate("ab", speculate=s, **options) for s in ("off", drafts))
    for a, b in zip(*(x if isinstance(x, list) else [x] for x in (plain, drafted)), strict=True):
        assert (b.token_ids, b.fingerprint) == (a.token_ids, a.fingerprint)


# -- what is refused -------------------------------------------------------------------------------


def test_folders_that_do_not_fit(target, tmp_path):
    llm, folder = LLM(target[0]), tmp_path / "a"
    save_assistant(folder, hidden_size=48, head_dim=16)
    with pytest.raises(InputError, match="its layer 0 reads keys of 16 numbers, and no such"):
        llm.load_draft(f"assistant:{folder}")
    save_assistant(folder)
    other = write_tiny_llama(tmp_path / "other.gguf")
    with pytest.raises(InputError, match="it is another's"):
        LLM(other).load_draft(f"assistant:{folder}")
    config = json.loads((folder / "config.json").read_text())
    for values, message in (
        ({"model_type": "gemma4"}, "config.json has no model_type of an assistant"),
        ({"text_config": config["text_config"] | {"num_hidden_layers": 5000}},
         "num_hidden_layers is 5000; it must be a whole number from 1 to 1000"),
    ):  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config | values))
        with pytest.raises(InputError, match=message):
            llm.load_draft(f"assistant:{folder}")
    with pytest.raises(InputError, match="is no folder; name that of an assistant"):
        llm.load_draft(f"assistant:{tmp_path / 'none'}")
    with pytest.raises(InputError, match="name the assistant's folder, assistant:PATH"):
        llm.generate("ab", speculate="assistant:", max_tokens=2)
