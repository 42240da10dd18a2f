"""The start of a lesson on the inside: one step of a run, and a model that computes it again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cutaway.base.counting import count_from_1
from cutaway.errors import InputError
from cutaway.features.practice.start import shorten, step_of, visible

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.compute.backends import Logits
    from cutaway.features.inside.ablate import Ablation
    from cutaway.features.inside.lens import Lens
    from cutaway.features.inside.logit_attribution import LogitAttribution
    from cutaway.features.inside.look import Look
    from cutaway.trace import Trace

TEXT = "The lighthouse keeper wrote in his log that the storm had passed, and the sea was"
_SEED = 7
_PATIENCE_S = 20  # the longest that a person waits for a question


@dataclass(frozen=True)
class Scene:
    """A step of a recorded run; its figures are computed once, at their first use.

    is_own  whether the run is the person's own
    """

    llm: "LLM"
    trace: "Trace"
    index: int
    is_own: bool = True

    @cached_property
    def look(self) -> "Look":
        """The step's inside, checked against the run by the hash of its logits."""
        from cutaway.features.inside.look import inside

        return inside(self.llm, self.trace, self.index)

    @cached_property
    def attribution(self) -> "LogitAttribution":
        """The logit attribution of the step's token against the likeliest other token."""
        return self.look.logit_attribution()

    @cached_property
    def ablation(self) -> "Ablation":
        """The ablation of each earlier token, or of as many as the time allows."""
        from cutaway.features.inside.ablate import ablate

        return ablate(self.llm, self.trace, self.index, budget_s=_PATIENCE_S)

    @cached_property
    def lens(self) -> "Lens":
        """The logit lens: the output head's likeliest token after each layer."""
        return self.look.lens(1)

    @property
    def ids(self) -> Sequence[int]:
        """The token ids of the text before the step."""
        return self.look.token_ids

    @property
    def token(self) -> str:
        """The visible name of the step's token."""
        return self.name(self.look.step.token_id)

    @property
    def text(self) -> str:
        """The end of the text before the step."""
        return shorten(self.llm.detokenize(self.ids, special=True))

    @property
    def introduction(self) -> str:
        """A sentence that names the step, and the hash that proves its figures."""
        place = f" at step {count_from_1(self.index)} of your run" if self.is_own else ""
        proof = f"and its row has the hash that it had then, {self.look.row_hash:016x}"
        if not self.look.is_as_run:
            proof = "in another arithmetic than what ran"
        return (
            f"Then came {self.token}{place}. What happened in the model before that is computed "
            f"again, {proof}."
        )

    def logits(self, ids: Sequence[int], start: int) -> "Logits":
        """The logits of a text from position ``start`` on, with the run's interventions."""
        from cutaway.rerun.request import bound

        return self.llm.logits(ids, start, bound(self.llm, self.trace.head))

    def need(self, topic: str, tokens: int) -> None:
        """Raise InputError if the text has fewer tokens than a topic needs."""
        if len(self.ids) < tokens:
            raise InputError(
                "topic",
                f" {topic}: the text before this step has {len(self.ids)} tokens and needs "
                f"{tokens}: take a later step",
            )

    def name(self, token_id: int) -> str:
        """The visible name of a token; "" for -1, which is no token."""
        return "" if token_id < 0 else visible(self.llm.tokenizer.token_name(token_id))


def scene(
    llm: "LLM", trace: "Trace | None" = None, index: int | None = None, seed: int | None = None
) -> Scene:
    """Take a step of a run. index: the step's index; None: the step of highest entropy.

    Without a run, the step is the first after ``TEXT``, with this seed or the sample's. InputError
    if the run has no such step.
    """
    from cutaway.features.inside.steps import unrecorded_trace

    if trace is not None:
        return Scene(llm, trace, step_of(trace, index).index)
    ids, seed = llm.tokenize(TEXT), _SEED if seed is None else seed
    settings: dict[str, Any] = {"seed": seed, "max_tokens": 1, "ignore_eos": True}
    done = llm.generate(ids, **settings)
    return Scene(
        llm, unrecorded_trace(llm, ids, done.token_ids, 0, settings=settings), 0, is_own=False
    )
