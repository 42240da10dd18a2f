"""Completions as commands print them: the samples of a prompt, and their tokens, times and costs.

Knows the words and the JSON. Computes no figure but a price.
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


_CUT = ("max_tokens", "context_full")  # how a text ends that is not whole


def begin(args: Namespace, streams: "Sequence[Stream]", place: int) -> None:
    """Say which sample follows, if there are several."""
    if len(streams) > 1 and not args.json:
        print(f"--- {place + 1} of {len(streams)} · seed {streams[place].seed} ---", flush=True)


def end(
    args: Namespace, streams: "Sequence[Stream]", done: "Completion", notes: Iterable[str] = ()
) -> None:
    """End the line of a sample's text; print its notes, then ``notes``, then its statistics."""
    if len(streams) > 1 and not args.json:
        print(flush=True)
    elif not args.json:
        console.end_line(figures=not args.quiet)
    show_figures(args, done, notes)


def show_figures(args: Namespace, done: "Completion", notes: Iterable[str] = ()) -> None:
    """A text's notes, then ``notes``, then its statistics; nothing with --quiet."""
    if args.quiet:
        return
    for note in (*(f"note: {note}" for note in (*done.notes, *_cut(done))), *notes):
        say(note)
    say(statistics(done, args.price))


def _cut(done: "Completion") -> Iterator[str]:
    """A note where a text under a grammar was cut, and so does not match the grammar."""
    from cutaway.text.grammar import KINDS

    if done.finish_reason not in (*_CUT, "aborted"):
        return
    for kind in KINDS:
        if done.params.get(kind):
            what = "JSON" if kind == "json_schema" else f"text of --{kind}"
            fix = "; raise --max-tokens" if done.finish_reason == "max_tokens" else ""
            yield f"the {what} is not whole: it was cut ({done.finish_reason}){fix}"


def finish(
    args: Namespace,
    streams: "Sequence[Stream]",
    done: "Sequence[Completion]",
    estimate: "ConstraintEstimate | None" = None,
) -> int:
    """Say what concerns all samples; print the JSON. Returns the exit code.

    130 where Ctrl-C ended a sample, 3 where one was cut and --fail-if-cut asks for that, 4 where
    one was cut that is to match a grammar, else 0.
    """
    if hasattr(args, "trace") and not args.quiet:
        console.say_where_traces_are(args.trace, range(1, 1 + len(streams)))
    if estimate and not args.quiet:
        say(estimated(estimate))
    if args.json:
        more = {"constraint_estimate": estimate.to_dict()} if estimate else {}
        documents = [document(one, args.price) | more for one in done]
        print_json(documents if len(documents) > 1 else documents[0])
    ends = {one.finish_reason for one in done}
    if "aborted" in ends:
        return 130
    if getattr(args, "fail_if_cut", False) and ends & {*_CUT}:
        return 3
    return 4 if any(True for one in done for _ in _cut(one)) else 0


# -- tokens, times and costs -----------------------------------------------------------------------


Price = tuple[float, float]
"""Of a million input and output tokens, in any currency."""


@dataclass(slots=True)
class Totals:
    """Tokens of completions, added up.

    cached     prompt tokens that the prefix cache served
    drafted    draft tokens proposed; accepted: those that were right
    """

    prompt: int = 0
    cached: int = 0
    output: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, completion: "Completion") -> "Totals":
        """Count one more completion."""
        self.prompt += completion.usage.prompt_tokens
        self.cached += completion.usage.cached_tokens
        self.output += completion.usage.completion_tokens
        self.drafted += completion.speculation.proposed
        self.accepted += completion.speculation.accepted
        return self

    def cost(self, price: Price) -> dict[str, float]:
        """What the tokens cost, in the currency of the price."""
        paid_in, paid_out = self.prompt * price[0] / 1e6, self.output * price[1] / 1e6
        return {"input": paid_in, "output": paid_out, "total": paid_in + paid_out}

    def words(self) -> list[str]:
        """The tokens; cached and draft tokens only where there are any."""
        cached = f" ({self.cached} cached)" if self.cached else ""
        parts = [f"{self.prompt} tokens in{cached}, {self.output} out"]
        return (
            [*parts, f"{self.accepted} of {self.drafted} draft tokens accepted"]
            if self.drafted
            else parts
        )

    def line(self, parts: list[str], price: Price | None) -> str:
        """The line of statistics: the tokens, these parts, the cost."""
        paid = price and "cost {total:.6f} = {input:.6f} in + {output:.6f} out".format(
            **self.cost(price)
        )
        return "[" + " · ".join([*self.words(), *parts, *([paid] if paid else [])]) + "]"


def document(completion: "Completion", price: Price | None) -> dict[str, Any]:
    """The JSON document of a completion, with the cost if there is a price."""
    whole = completion.to_dict()
    return whole if price is None else whole | {"cost": Totals().add(completion).cost(price)}


def estimated(said: "ConstraintEstimate") -> str:
    """What the samples of a prompt estimate: the model under the constraint."""
    return (
        f"[estimates of {said.n} samples: P(grammar) {said.probability:.2g}, KL to the model's own "
        f"distribution there {said.kl:.2f} nats · worth {said.effective_n:.1f} equal samples]"
    )


def statistics(completion: "Completion", price: Price | None) -> str:
    """The line under a text: tokens in and out, times, finish reason, seed, cost."""
    timing, parts = completion.timing, []
    if timing.ttft_s is not None:
        parts.append(f"first token {timing.ttft_s:.2f} s")
    if timing.decode_tokens_per_s is not None:
        parts.append(f"{timing.decode_tokens_per_s:.1f} tokens/s")
    if made := completion.passes:
        each = completion.usage.completion_tokens / len(made)
        rows = sum(one.rows for one in made)
        parts.append(f"{len(made)} passes, {rows} rows, {each:.2f} tokens a pass")
    matched = "" if completion.matched is None else f" {completion.matched!r}"
    parts += [f"{completion.finish_reason}{matched}", f"seed {completion.seed}"]
    if completion.neg_log_z is not None and not made:  # of a canvas it is the mask's alone
        parts.append(f"−ln Z {completion.neg_log_z:.2f}")
    if completion.aligned:
        chosen, logs, weights = completion.aligned
        parts.append(f"sample {chosen + 1} of {len(logs)}, weight {weights[chosen]:.2g}")
    if completion.between and completion.between.share is not None:
        _, drawn, weighed, share, _ = completion.between
        parts.append(f"chosen of {weighed} from {drawn} continuations, weight {share:.2g}")
    return Totals().add(completion).line(parts, price)
