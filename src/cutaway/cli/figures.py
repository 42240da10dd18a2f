"""What texts took and what they cost, in words and for JSON.

Knows how figures are written. Refuses to know how they come about.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.api.completion import Completion

Price = tuple[float, float]
"""Of a million tokens, in and out, in any currency."""


@dataclass(slots=True)
class Totals:
    """Tokens of texts, added up. Of a prompt's tokens, some were cached; of those that were
    guessed ahead, some were right."""

    prompt: int = 0
    cached: int = 0
    written: int = 0
    guessed: int = 0
    right: int = 0

    def add(self, completion: "Completion") -> "Totals":
        """Count one more text."""
        self.prompt += completion.usage.prompt_tokens
        self.cached += completion.usage.cached_tokens
        self.written += completion.usage.completion_tokens
        self.guessed += completion.speculation.proposed
        self.right += completion.speculation.accepted
        return self

    def cost(self, price: Price) -> dict[str, float]:
        """What the tokens cost, in the currency of the price."""
        paid_in, paid_out = self.prompt * price[0] / 1e6, self.written * price[1] / 1e6
        return {"input": paid_in, "output": paid_out, "total": paid_in + paid_out}

    def words(self) -> list[str]:
        """The tokens; cached and guessed ones where there were any."""
        cached = f" ({self.cached} cached)" if self.cached else ""
        parts = [f"{self.prompt} tokens in{cached}, {self.written} out"]
        return [*parts, f"{self.right} of {self.guessed} guesses right"] if self.guessed else parts

    def line(self, parts: list[str], price: Price | None) -> str:
        """A closing line: the tokens, these parts, the cost."""
        paid = price and "cost {total:.6f} = {input:.6f} in + {output:.6f} out".format(
            **self.cost(price)
        )
        return "[" + " · ".join([*self.words(), *parts, *([paid] if paid else [])]) + "]"


def document(completion: "Completion", price: Price | None) -> dict[str, Any]:
    """What JSON tells of a text: all there is, and the cost where there is a price."""
    whole = completion.to_dict()
    return whole if price is None else whole | {"cost": Totals().add(completion).cost(price)}


def statistics(completion: "Completion", price: Price | None) -> str:
    """The closing line of a text: tokens in and out, times, why it ended, the seed, the cost."""
    timing, parts = completion.timing, []
    if timing.ttft_s is not None:
        parts.append(f"first token {timing.ttft_s:.2f} s")
    if timing.decode_tokens_per_s is not None:
        parts.append(f"{timing.decode_tokens_per_s:.1f} tokens/s")
    matched = "" if completion.matched is None else f" {completion.matched!r}"
    parts += [f"{completion.finish_reason}{matched}", f"seed {completion.seed}"]
    return Totals().add(completion).line(parts, price)
