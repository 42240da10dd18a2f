"""Measures what each kind of drafts brings, on routine and on surprising text.

    python bench/drafts.py smollm2 dspark:drafter/ draft:small.gguf

Each row has tokens a pass, how many draft tokens were right, and two speed-ups:

* At a 1B model's costs, by a table that is stated here, not by a clock: what a row and a pass of
  the drafter cost decides how many draft tokens are checked, and adds up to what all drafts cost.
* Here: tokens a second without drafts and with them, in pairs that follow each other, and the
  median of the pairs' ratios. Run it on a quiet machine.

Routine texts answer the prompts that no drafter was trained with (``routine_texts.py``), greedily;
surprising ones go on with a story at temperature 1.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

from cutaway import LLM
from cutaway.engine import Speculation
from cutaway.engine.speculation import length as lengths
from routine_texts import STORIES, routine_prompts

ROW = 0.4 / 7
"""A row beside the first, in steps of a 1B model: eight rows cost 1.4 steps (docs/speed.md)."""
PASSES = {
    "ngram": 0.0, "jacobi": 0.0, "draft": 0.11, "mtp": 0.27, "eagle": 0.12, "dflash": 0.32,
    "dspark": 0.16,
}  # fmt: skip
"""A pass of each drafter for one row, in steps, by its weights beside Llama 3.2 1B's: 16 layers of
61 million and a head of 263 million. 135 million of a draft model; a layer and the head (mtp); a
layer and a head of 32,000 tokens (eagle); two layers, fc and the head (dflash); the same with a
head for a sixth of the vocabulary, and a Markov head of rank 64 for each of eight tokens, as
train_drafter.py trains it (dspark)."""

READ = 0.1
"""A token that a draft model missed, and reads before it drafts, in its passes."""


class Kind(NamedTuple):
    """A kind of text: its name, its prompts, how it is drawn."""

    name: str
    prompts: Sequence[Any]
    options: dict[str, Any]


def kinds_of_text(llm: LLM, count: int, length: int) -> list[Kind]:
    """Return routine and surprising text."""
    held_out = routine_prompts(llm, held_out=True)
    routine = held_out[:: len(held_out) // count | 1][:count]  # odd, so that all eight tasks come
    surprising = {"temperature": 1.0, "seed": 3, "ignore_eos": True, "max_tokens": length}
    return [
        Kind("routine", routine, {"temperature": 0.0, "max_tokens": length}),
        Kind("surprising", STORIES[:count], surprising),
    ]


def write(llm: LLM, speculate: str, kind: Kind) -> tuple[int, float, Speculation]:
    """Write a text after each prompt; return tokens, seconds, and the drafts in all."""
    started, tokens, total = perf_counter(), 0, Speculation()
    for prompt in kind.prompts:
        done = llm.generate(prompt, speculate=speculate, **kind.options)
        drafts, tokens = done.speculation, tokens + len(done.token_ids)
        total = Speculation(
            total.proposed + drafts.proposed, total.accepted + drafts.accepted,
            total.cost + drafts.cost,
        )  # fmt: skip
    return tokens, perf_counter() - started, total


def stated_costs(drafts: str) -> Callable[..., tuple[float, ...]]:
    """Return what replaces the measured costs: those of a 1B model, for one text."""
    a_pass = PASSES[drafts.partition(":")[0]]

    def costs(
        _: object, rows: int, drafting: int, drafter: lengths.Drafter | None = None
    ) -> tuple[float, ...]:
        del rows, drafting
        counts = range(lengths.MAX_DRAFT + 1)
        if drafter is None:
            return tuple(ROW * count for count in counts)
        return tuple(
            ROW * count + a_pass * passes * (1 + ROW * (count / passes if passes else 0))
            for count, passes in ((count, drafter.passes(count)) for count in counts)
        )

    return costs


def expected(llm: LLM, drafts: str, kind: Kind) -> tuple[int, Speculation]:
    """Write at the stated costs; return tokens and drafts, which depend on no clock."""
    a_token = READ * PASSES[drafts.partition(":")[0]]
    with (
        patch.object(lengths.StepCosts, "draft_costs", stated_costs(drafts)),
        patch.object(lengths.StepCosts, "reading_cost", lambda *given: a_token * given[-1]),
        patch.object(lengths.StepCosts, "probes", lambda *_: False),
    ):
        tokens, _, total = write(llm, drafts, kind)
    return tokens, total


def timed(llm: LLM, drafts: str, kind: Kind, pairs: int) -> str:
    """Return cells: tokens a second without drafts and with them, and the pairs' median ratio."""
    without, with_drafts = list[float](), list[float]()
    for _ in range(pairs + 1):  # the first pair warms up
        for speculate, rates in (("off", without), (drafts, with_drafts)):
            tokens, seconds, _ = write(llm, speculate, kind)
            rates.append(tokens / seconds)
    ratios = [b / a for a, b in zip(without[1:], with_drafts[1:], strict=True)]
    return f"{median(without[1:]):.0f} | {median(with_drafts[1:]):.0f} | {median(ratios):.2f}×"


def measure(kinds: list[str], given: argparse.Namespace) -> None:
    """Print a row for each kind of drafts and of text.

    Each kind has a model of its own, since a drafter has not read prompts that another one cached.
    """
    here = " here, tokens a second without | with | |" if given.pairs else ""
    print(f"| drafts | text | tokens a pass | accepted | at a 1B model's costs |{here}")
    print("|---|---|---|---|---|" + "---|---|---|" * bool(given.pairs))
    for drafts in kinds:
        llm = LLM(given.model)
        for kind in kinds_of_text(llm, given.prompts, given.length):
            tokens, total = expected(llm, drafts, kind)
            passes = tokens - total.accepted
            row = (
                f"| {drafts.partition(':')[0]} | {kind.name} | {tokens / passes:.2f} "
                f"| {total.accepted} of {total.proposed} | {tokens / (passes + total.cost):.2f}× |"
            )
            few = kind._replace(prompts=kind.prompts[:4])
            cells = f" {timed(llm, drafts, few, given.pairs)} |" if given.pairs else ""
            print(row + cells, flush=True)


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("drafts", nargs="*", help="as --speculate takes them, beside ngram")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5, help="0: no clock")
    given = parser.parse_args()
    measure(["ngram", *given.drafts], given)


if __name__ == "__main__":
    main()
