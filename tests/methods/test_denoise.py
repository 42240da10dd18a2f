"""Canvases: chats, suffixes, and options that only a text from left to right can have."""

import pytest

from cutaway import LLM, AsyncLLM
from cutaway.errors import InputError

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.files import hub

OPTIONS = {"seed": 1, "max_tokens": 12, "temperature": 1.0}
ASKED = [{"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def llm(tiny_diffusion_path):
    return LLM(tiny_diffusion_path, progress=False)


def test_a_conversation_is_answered_by_a_canvas(llm):
    done = llm.chat(ASKED, **OPTIONS, denoise={"steps": 4})
    alone = llm.denoise(llm.chat_prompt(ASKED), **OPTIONS, steps=4)
    assert (done.text, done.fingerprint) == (alone.text, alone.fingerprint)
    assert len(done.passes) == 4
    assert done.new_messages[0]["content"] == done.text


def test_false_is_no_rule(llm):
    with pytest.raises(InputError, match="use cutaway denoise or cutaway fill"):
        llm.generate("ab", **OPTIONS, denoise=False)


def test_without_a_rule_a_chat_is_refused(llm):
    with pytest.raises(InputError, match="use cutaway denoise or cutaway fill"):
        llm.chat(ASKED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar", "start: /a/"), ("json_schema", True), ("regex", "a"), ("choice", ["a"]),
        ("bad_words", ["a"]), ("min_tokens", 1), ("check", "arithmetic"), ("heal", True),
        ("forced", [4]), ("speculate", "ngram"), ("speculate", "jacobi"), ("prompt_logprobs", 2),
    ],
)  # fmt: skip
def test_what_only_a_text_has_is_refused_by_its_name(llm, name, value):
    with pytest.raises(InputError, match=f"^{name} needs a text .* leave out {name} or denoise"):
        llm.generate("ab", denoise="llada", **{name: value})


def test_tools_are_refused_by_their_name(llm):
    def look(place: str) -> str:
        """Looks there."""
        return place

    with pytest.raises(InputError, match="tools need a text"):
        llm.chat(ASKED, tools=[look], denoise=True)


def test_tokens_that_may_come_are_those_of_any_text(llm):
    done = llm.denoise("ab", **OPTIONS, allowed_token_ids=[70, 71], steps=3)
    assert {*done.token_ids} <= {70, 71}


def test_the_suffix_of_a_canvas_is_attended_to(llm):
    done = llm.generate("ab", suffix="ba", denoise=True, **OPTIONS)
    behind = llm.tokenizer.encode("ba", goes_on=True)
    assert done.passes[0].rows == len(done.prompt_token_ids) + 12 + len(behind)
    assert done.between._asdict()["method"] == "canvas"
    assert done.fingerprint != llm.generate("ab", denoise=True, **OPTIONS).fingerprint


def test_a_suffix_is_refused_where_it_is_not_seen(tiny_path):
    left = {"block": 1, "order": "left"}
    with pytest.raises(InputError, match="suffix: this model does not see"):
        LLM(tiny_path, progress=False).generate("ab", suffix="ba", denoise=left)


def test_the_document_says_what_each_pass_did(llm):
    done = llm.denoise("ab", **OPTIONS, rule="edit", threshold=0.02, edit_threshold=0.01)
    told, cells = done.to_dict()["passes"], {}
    for one in told:
        cells |= dict(one["revealed"]) | {place: now for place, _, now in one["edited"]}
    first = len(done.prompt_token_ids)
    assert [cells[first + i] for i in range(12)] == [*done.token_ids]
    assert any(one["edited"] for one in told)


def test_its_rate_counts_all_of_its_passes(llm):
    timing = llm.denoise("ab", **OPTIONS).timing
    assert 0 < timing.decode_tokens_per_s <= 12 / timing.ttft_s  # its tokens come all at once


async def test_tasks_reveal_the_same(llm, tiny_diffusion_path):
    async with AsyncLLM(LLM(tiny_diffusion_path, progress=False)) as model:
        done = await model.chat(ASKED, **OPTIONS, denoise={"steps": 4})
    assert done.fingerprint == llm.chat(ASKED, **OPTIONS, denoise={"steps": 4}).fingerprint


def test_a_canvas_of_which_no_length_is_said_fits_into_the_context():
    toy = LLM("toy-canvas")
    prompt = "It was the best of times, it was the worst of times."
    made = toy.denoise(prompt, rule="threshold", temperature=0)
    assert len(made.token_ids) == made.params["max_tokens"] == 256 - len(made.prompt_token_ids)
    with pytest.raises(InputError, match="maximum context length is 256"):
        toy.denoise(prompt, max_tokens=256)


# -- toy canvas ------------------------------------------------------------------------------------

# The toy that comes with the package: found by its alias, its bytes and bits the pinned ones.


FINGERPRINT = "0da6c5408ff29ddc"
TEXT = "had some then bosh Sir Jenth the more to  parths to so ner coull"


@pytest.fixture(scope="module")
def toy():
    with LLM("toy-canvas", backend="cpu", progress=False) as llm:
        yield llm


def test_it_is_part_of_the_package_and_whole():
    [listed] = [model for model in hub.available() if model.name == "toy-canvas"]
    assert listed.state == "in package"
    assert "toy" in listed.title
    assert hub.verify("toy-canvas") == listed.path


def test_a_canvas_and_its_bits_are_the_pinned_ones(toy):
    found = toy.denoise("Mr. Darcy ", max_tokens=64, steps=32, temperature=0.7, seed=1)
    assert (found.fingerprint, found.text) == (FINGERPRINT, TEXT)


def test_it_can_spell(toy):
    line = "It was uni[MASK]ersally ackno[MASK]ledged by every bod[MASK]; they are ver[MASK] happy."
    filled = toy.fill(line, top=1)
    assert [best.text for [best] in filled.masks] == [*"vwyy"]


def test_a_space_before_a_mask_that_does_not_take_it_is_no_part_of_a_target(toy):
    [[best]] = toy.fill("Mr. [MASK]arcy", top=1).masks
    assert best.text == "D"
    [[same, _]] = toy.fill("Mr. [MASK]arcy", targets=["D", "M"]).masks
    assert same == best


def test_what_it_cannot_do_is_said(toy):
    with pytest.raises(InputError, match="the text holds 'é', for which"):
        toy.fill("caf[MASK] or café")


# -- toy noise -------------------------------------------------------------------------------------

# Its canvases begin as random characters: its file says so, and nothing else need be said.


NOISE_FINGERPRINT = "92fe10cf6e547567"
NOISE_TEXT = "we ride of incomilily to hersir to the althers and prrnight comp"


@pytest.fixture(scope="module")
def toy_of_noise():
    with LLM("toy-noise", backend="cpu", progress=False) as llm:
        yield llm


def test_text_comes_out_of_noise(toy_of_noise):
    found = toy_of_noise.denoise("Mr. Darcy ", max_tokens=64, seed=1)
    first, last = ([cell.read for cell in found.passes[n].cells] for n in (0, -1))
    letters = [toy_of_noise.detokenize(ids) for ids in (first, last)]
    assert (found.fingerprint, found.text) == (NOISE_FINGERPRINT, NOISE_TEXT)
    spaces, signs = (
        [sum(map(text.count, some)) for text in letters] for some in (" ", ";:?&0123456789")
    )
    assert spaces[0] < 6 < spaces[1]
    assert signs[0] > 5 > signs[1]
    assert any(each.masked_again for each in found.passes)
    assert hub.verify("toy-noise").name == "toy-noise.Q8_0.gguf"


def test_generate_names_what_a_model_of_noise_does(toy_of_noise):
    with pytest.raises(InputError, match=r"is a diffusion model .* use cutaway denoise") as refusal:
        toy_of_noise.generate("Mr. ")
    assert "fill" not in str(refusal.value)
    with pytest.raises(InputError, match=r"is a diffusion model .* use cutaway denoise"):
        toy_of_noise.score("Mr. ", ["Darcy"])
