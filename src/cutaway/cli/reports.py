"""The tokens, times and costs of completions, in words and as JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.methods.importance import ConstraintEstimate
    from cutaway.requests.completion import Completion

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
