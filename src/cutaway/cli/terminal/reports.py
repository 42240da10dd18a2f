"""The reports on completions: the samples of a prompt, and their tokens, times and costs.

Knows the words and the JSON of a report. Computes no figure but the cost.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import say
from cutaway.cli.terminal import console
from cutaway.cli.terminal.streams import print_json

if TYPE_CHECKING:
    from cutaway.methods.importance import ConstraintEstimate
    from cutaway.requests.completion import Completion
    from cutaway.requests.sync_llm import Stream


_CUT = ("max_tokens", "context_full")  # finish reasons of a text that was cut


def begin(args: Namespace, streams: "Sequence[Stream]", place: int) -> None:
    """Print the number and the seed of the next sample, if there are several."""
    if len(streams) > 1 and not args.json:
        print(f"--- {place + 1} of {len(streams)} · seed {streams[place].seed} ---", flush=True)


def end(
    args: Namespace, streams: "Sequence[Stream]", done: "Completion", notes: Iterable[str] = ()
) -> None:
    """End the line of a sample's text; print the sample's notes, ``notes`` and statistics."""
    if len(streams) > 1 and not args.json:
        print(flush=True)
    elif not args.json:
        console.end_line(figures=not args.quiet)
    show_figures(args, done, notes)


def show_figures(args: Namespace, done: "Completion", notes: Iterable[str] = ()) -> None:
    """Print the text's notes, ``notes`` and the statistics; print nothing with --quiet."""
    if args.quiet:
        return
    for note in (*(f"note: {note}" for note in (*done.notes, *_cut(done))), *notes):
        say(note)
    say(statistics(done, args.price))


def _cut(done: "Completion") -> Iterator[str]:
    """Yield a note for each constraint that a text does not match because it was cut."""
    from cutaway.text.grammar import KINDS

    if done.finish_reason not in (*_CUT, "aborted"):
        return
    for kind in KINDS:
        if done.params.get(kind):
            label = "JSON" if kind == "json_schema" else f"text of --{kind}"
            fix = "; raise --max-tokens" if done.finish_reason == "max_tokens" else ""
            yield f"the {label} is not whole: it was cut ({done.finish_reason}){fix}"


def finish(
    args: Namespace,
    streams: "Sequence[Stream]",
    done: "Sequence[Completion]",
    estimate: "ConstraintEstimate | None" = None,
) -> int:
    """Print the traces' paths and the estimate of all samples, and the JSON; return the exit code.

    The code is 130 if Ctrl-C ended a sample; 3 if a sample was cut and --fail-if-cut is used; 4 if
    a sample under a grammar was cut; else 0.
    """
    if hasattr(args, "trace") and not args.quiet:
        console.say_where_traces_are(args.trace, range(1, 1 + len(streams)))
    if estimate and not args.quiet:
        say(estimate_line(estimate))
    if args.json:
        more = {"constraint_estimate": estimate.to_dict()} if estimate else {}
        documents = [document(completion, args.price) | more for completion in done]
        print_json(documents if len(documents) > 1 else documents[0])
    ends = {completion.finish_reason for completion in done}
    if "aborted" in ends:
        return 130
    if getattr(args, "fail_if_cut", False) and ends & {*_CUT}:
        return 3
    return 4 if any(True for completion in done for _ in _cut(completion)) else 0


# -- tokens, times and costs -----------------------------------------------------------------------


Price = tuple[float, float]
"""The price of a million input tokens and of a million output tokens, in any currency."""


@dataclass(slots=True)
class Totals:
    """Sums of the tokens of completions.

    prompt    prompt tokens
    cached    of these, tokens whose keys and values were in the prefix cache
    output    new tokens
    drafted   draft tokens that were proposed
    accepted  draft tokens that were accepted
    draft_cost     what draft tokens cost, in steps without drafts
    rested    steps during which a draft model or head rested
    texts     completions; several share steps of the engine
    """

    prompt: int = 0
    cached: int = 0
    output: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_cost: float = 0.0
    rested: int = 0
    texts: int = 0

    def add(self, completion: "Completion") -> "Totals":
        """Count one more completion."""
        self.prompt += completion.usage.prompt_tokens
        self.cached += completion.usage.cached_tokens
        self.output += completion.usage.completion_tokens
        self.drafted += completion.speculation.proposed
        self.accepted += completion.speculation.accepted
        self.draft_cost += completion.speculation.cost
        self.rested += completion.speculation.rested
        self.texts += 1
        return self

    def cost(self, price: Price) -> dict[str, float]:
        """Return what the tokens cost, in the currency of the price."""
        paid_in, paid_out = self.prompt * price[0] / 1e6, self.output * price[1] / 1e6
        return {"input": paid_in, "output": paid_out, "total": paid_in + paid_out}

    def words(self) -> list[str]:
        """Return the sums in words; leave out cached and draft tokens if there are none."""
        cached = f" ({self.cached} cached)" if self.cached else ""
        tokens = f"{self.prompt} tokens in{cached}, {self.output} out"
        if not (self.drafted or self.rested):
            return [tokens]
        if self.texts == 1:
            tokens += f" in {self.output - self.accepted} steps"  # each accepted token saved one
        words = [
            tokens,
            f"{self.accepted} of {self.drafted} draft tokens accepted",
            f"{self.accepted - self.draft_cost:.1f} steps saved",
        ]
        return [*words, f"drafter rested in {self.rested} steps"] if self.rested else words

    def line(self, parts: list[str], price: Price | None) -> str:
        """Return a line of statistics: the tokens, ``parts``, and the cost if there is a price."""
        cost = price and "cost {total:.6f} = {input:.6f} in + {output:.6f} out".format(
            **self.cost(price)
        )
        return "[" + " · ".join([*self.words(), *parts, *([cost] if cost else [])]) + "]"


def document(completion: "Completion", price: Price | None) -> dict[str, Any]:
    """Return the JSON document of a completion, with the cost if there is a price."""
    whole = completion.to_dict()
    return whole if price is None else whole | {"cost": Totals().add(completion).cost(price)}


def estimate_line(estimate: "ConstraintEstimate") -> str:
    """Return a line with estimates from a prompt's samples: P(grammar) and the KL divergence."""
    return (
        f"[estimates of {estimate.n} samples: P(grammar) {estimate.probability:.2g}, KL to the "
        f"model's own distribution there {estimate.kl:.2f} nats "
        f"· worth {estimate.effective_n:.1f} equal samples]"
    )


def statistics(completion: "Completion", price: Price | None) -> str:
    """Return the line under a text: tokens in and out, times, finish reason, seed, and more."""
    timing, parts = completion.timing, []
    if timing.ttft_s is not None:
        parts.append(f"first token {timing.ttft_s:.2f} s")
    if timing.decode_tokens_per_s is not None:
        parts.append(f"{timing.decode_tokens_per_s:.1f} tokens/s")
    if passes := completion.passes:
        per_pass = completion.usage.completion_tokens / len(passes)
        rows = sum(canvas_pass.rows for canvas_pass in passes)
        parts.append(f"{len(passes)} passes, {rows} rows, {per_pass:.2f} tokens a pass")
    match = "" if completion.matched is None else f" {completion.matched!r}"
    parts += [f"{completion.finish_reason}{match}", f"seed {completion.seed}"]
    if completion.neg_log_z is not None and not passes:  # a canvas's is only of the grammar mask
        parts.append(f"−ln Z {completion.neg_log_z:.2f}")
    if completion.aligned:
        index, logs, weights = completion.aligned
        parts.append(f"sample {index + 1} of {len(logs)}, weight {weights[index]:.2g}")
    if completion.between and completion.between.share is not None:
        _, continuations, weighed, share, _ = completion.between
        parts.append(f"chosen of {weighed} from {continuations} continuations, weight {share:.2g}")
    return Totals().add(completion).line(parts, price)
