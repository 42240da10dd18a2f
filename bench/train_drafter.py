"""Trains a block drafter (DSpark) for a model here; ``drafts.py`` measures what it brings.

    python bench/train_drafter.py smollm2 drafter/ --minutes 29

The model itself writes the training texts: answers to ``routine_texts.py``, each prompt once
greedily, then at temperature 0.6. Answers to every 32nd prompt are held out: they are measured, and
not trained with. A drafter is to guess what the model would write. Each text has anchors at random
places. A block begins at each with the token there, and goes on with mask tokens; it sees the
model's residual stream of the tokens before the anchor. Each row guesses the token after its place;
the Markov head is told the token at it. The loss is the cross entropy of these tokens, later ones
with less weight, since a draft token counts only if those before it are right.

Four things let a short training suffice. The layers begin as the model's (``block_drafter.py``).
Numbers of the stream differ a thousandfold, so each is divided by its usual size, which ``fc``
takes over in the end. A vocabulary of 8,192 tokens, those of the texts and the first ones beside,
makes the head a sixth as large. The last norm and the head are the model's.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from block_drafter import BLOCK, Drafter, Form, Weights, write_folder
from cutaway import LLM
from cutaway.compute.model.anatomy import Anatomy
from routine_texts import routine_prompts

VOCABULARY, ANCHORS, BATCH = 8192, 20, 2
SHORTER = 0.25  # of the steps have shorter blocks, as drafts may have
FADE = 4.0  # a row's weight in the loss falls by e in so many places
RATE, WARM_UP = 2e-3, 100
TOGETHER = 16  # texts that are written at once
HELD_OUT = 32  # of so many prompts, the answers to one are measured and not trained with
EVERY = 500  # steps, after which the held-out texts are measured, and the folder is written


# -- the texts -------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A text of the model: its prompt's number, its token ids, where its answer begins, streams."""

    prompt: int
    ids: Tensor
    answer: int
    streams: Tensor


def write_texts(llm: LLM, count: int, length: int) -> Iterator[tuple[int, list[int], int]]:
    """Let the model answer; yield prompts' numbers, texts, and where their answers begin."""
    prompts = routine_prompts(llm, held_out=False)
    np.random.default_rng(1).shuffle(prompts)
    for begin in range(0, count, len(prompts)):  # each prompt once
        numbers = range(min(len(prompts), count - begin))
        for at in numbers[::TOGETHER]:
            asked = numbers[at : at + TOGETHER]
            done = llm.generate(
                [prompts[number] for number in asked],
                temperature=0.6 if begin else 0.0, seed=begin + at, max_tokens=length,
            )  # fmt: skip
            for number, answer in zip(asked, done, strict=True):
                if len(answer.token_ids) > 2 * BLOCK:
                    text = [*answer.prompt_token_ids, *answer.token_ids]
                    yield number, text, len(answer.prompt_token_ids)


def read_streams(llm: LLM, text: list[int], after: list[int]) -> Tensor:
    """Return the residual stream after so many layers, side by side: (tokens, streams)."""
    names = [Anatomy(llm.graph).stream[layers] for layers in after]
    tensors = llm.tensors(text, names)
    return torch.from_numpy(np.concatenate([tensors[name] for name in names], axis=1))


def read_texts(llm: LLM, after: list[int], count: int, length: int) -> tuple[list[Text], Tensor]:
    """Return texts with their streams divided by each number's usual size, and these sizes.

    Sizes are those of the first text without its first token, whose numbers are far larger.
    """
    texts, sizes = list[Text](), torch.empty(0)
    for prompt, ids, answer in write_texts(llm, count, length):
        streams = read_streams(llm, ids, after)
        if not texts:
            sizes = streams[1:].pow(2).mean(0).sqrt()
        texts.append(Text(prompt, torch.tensor(ids), answer, (streams / sizes).half()))
    return texts, sizes


def hold_out(texts: list[Text]) -> tuple[list[Text], list[Text]]:
    """Return the texts to train with, and those to measure, which answer other prompts."""
    measured = {*sorted({text.prompt for text in texts})[::HELD_OUT]}
    return (
        [text for text in texts if text.prompt not in measured],
        [text for text in texts if text.prompt in measured],
    )


def check_count(trained: int) -> None:
    """Raise SystemExit if a step of the training needs more texts."""
    if trained < BATCH:
        raise SystemExit(
            f"texts of more than {2 * BLOCK} tokens to train with: {trained}, but a step needs "
            f"{BATCH}: raise --texts or --length"
        )


def vocabulary(texts: list[Text], tokens: int) -> Tensor:
    """Return the ids that the drafter knows: the texts' most frequent, then the first of all."""
    counts = torch.bincount(torch.cat([text.ids for text in texts]), minlength=tokens)
    return counts.sort(descending=True, stable=True).indices[:VOCABULARY].sort().values


# -- training --------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What a step of the training reads.

    As ``Drafter.forward``; and the tokens at each row's place, and the drafter's number of the next
    one, -1 if it has none.
    """

    streams: Tensor
    blocks: Tensor
    anchors: Tensor
    before: Tensor
    wanted: Tensor


class Steps:
    """Makes what steps read from texts."""

    def __init__(self, form: Form, tokens: int) -> None:
        self._form, self._random = form, np.random.default_rng(2)
        self._numbers = torch.full((tokens,), -1)
        self._numbers[form.ids] = torch.arange(len(form.ids))

    def endless(self, texts: list[Text]) -> Iterator[Step]:
        """Yield steps without end."""
        random = self._random
        while True:
            order = random.permutation(len(texts))[: len(texts) // BATCH * BATCH]
            for batch in order.reshape(-1, BATCH).tolist():
                rows = int(random.integers(3, BLOCK)) if random.random() < SHORTER else BLOCK
                yield self.step([texts[number] for number in batch], rows)

    def step(self, texts: list[Text], rows: int) -> Step:
        """Return a step with anchors by chance."""
        anchors = torch.from_numpy(np.stack([
            self._random.integers(text.answer - 1, len(text.ids) - rows, ANCHORS) for text in texts
        ]))  # fmt: skip
        streams, ids = (
            nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
            for parts in ((text.streams for text in texts), (text.ids for text in texts))
        )
        places = (anchors[..., None] + torch.arange(rows + 1)).flatten(1)
        tokens = ids.gather(1, places).unflatten(1, (ANCHORS, rows + 1))
        blocks = tokens[..., :-1].clone()
        blocks[..., 1:] = self._form.mask
        wanted = self._numbers[tokens[..., 1:]]
        return Step(streams.float(), blocks, anchors, tokens[..., :-1], wanted)


def right_in_a_row(drafter: Drafter, steps: list[Step]) -> float:
    """Return how many tokens of a block are drafted right, each after the one drafted before."""
    runs = list[Tensor]()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for step in steps:
            logits, token = drafter(*step[:3]), step.blocks[..., 0]
            hits = list[Tensor]()
            for place, wanted in enumerate(step.wanted.unbind(-1)):
                best = (logits[..., place, :] + drafter.after(token)).argmax(-1)
                token = drafter.form.ids[best]
                hits.append(best == wanted)
            runs.append(torch.stack(hits, -1).cumprod(-1).sum(-1).float())
    return float(torch.cat(runs).mean())


def loss_of(drafter: Drafter, step: Step) -> Tensor:
    """Return the loss of a step."""
    weights = torch.exp(-torch.arange(step.wanted.shape[2]) / FADE)
    with torch.autocast("cpu", torch.bfloat16):
        logits = drafter(*step[:3]) + drafter.after(step.before)
    each = F.cross_entropy(
        logits.float().flatten(0, 2), step.wanted.flatten(), ignore_index=-1, reduction="none"
    )
    return (each.view(step.wanted.shape) * weights).mean() / weights.mean()


def train(
    drafter: Drafter, texts: list[Text], held_out: list[Text], minutes: float
) -> Iterator[str]:
    """Train for so many minutes of processor time; yield at times what has been reached."""
    steps = Steps(drafter.form, len(drafter.embedding))
    measured = [steps.step([text], BLOCK) for text in held_out]
    optimizer = torch.optim.AdamW(
        drafter.parameters(), RATE, (0.9, 0.95), weight_decay=0.01, fused=True
    )
    started, losses = time.process_time(), list[float]()
    for number, step in enumerate(steps.endless(texts), 1):
        share = min((time.process_time() - started) / (60 * minutes), 1)
        optimizer.param_groups[0]["lr"] = RATE * min(1, number / WARM_UP) * (1 - share)
        loss = loss_of(drafter, step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if number % EVERY == 0 or share == 1:
            right = right_in_a_row(drafter, measured)
            yield (
                f"step {number}, {share:.0%}: loss {np.mean(losses[-EVERY:]):.3f}, "
                f"held out {right:.2f} right of {BLOCK}"
            )
        if share == 1:
            return


def make(llm: LLM, folder: Path, minutes: float, count: int, length: int) -> None:
    """Train a drafter for the model, and write its folder, now and then and in the end."""
    weights = Weights(llm)
    last = weights.layers - 1
    after = sorted({round(x) for x in np.linspace(min(2, last), last, 4)})
    texts, units = read_texts(llm, after, count, length)
    trained, held_out = hold_out(texts)
    check_count(len(trained))
    used = {token for text in texts for token in text.ids.tolist()}
    tokens = sum(len(text.ids) for text in texts)
    print(f"{len(texts)} texts of {tokens} tokens, {len(used)} kinds", flush=True)
    kinds = len(weights.embedding)
    form = Form(after, units, vocabulary(trained, kinds), max({*range(kinds)} - used))
    drafter = Drafter(weights, form, trained[0].streams[1:].float())
    for line in train(drafter, trained, held_out, minutes):
        print(line, flush=True)
        write_folder(folder, drafter, weights)


def main() -> None:
    """Read the arguments, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=29.0, help="of processor time")
    parser.add_argument("--texts", type=int, default=1600)
    parser.add_argument("--length", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)  # beside other programs, more wait for one another
    torch.manual_seed(0)
    make(LLM(given.model), given.folder, given.minutes, given.texts, given.length)


if __name__ == "__main__":
    main()
