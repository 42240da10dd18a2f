"""ShownStep: a Step that shows its candidates in a notebook, by the names of a model's tokens."""

from typing import Any

from cutaway.engine import Step
from cutaway.sampling import Candidate
from cutaway.text import Tokenizer

_HEAD = ("rank", "token", "id", "model", "after the chain", "removed by")


class ShownStep(Step):
    """A Step in every respect, equal to it and pickled as one."""

    tokenizer: Tokenizer | None = None

    @classmethod
    def with_names(cls, step: Step, tokenizer: Tokenizer) -> "ShownStep":
        """Return the step with the names of this tokenizer."""
        result = cls(*step)
        result.tokenizer = tokenizer
        return result

    def __repr__(self) -> str:
        return repr(Step(*self))

    def __reduce__(self) -> Any:
        return Step, tuple(self)

    def _repr_html_(self) -> str:
        """Return the candidates as a table, likeliest first, for a notebook."""
        from cutaway.base.counting import count_from_1
        from cutaway.trace.figures import percent, probability
        from cutaway.trace.html import join, tag

        rows = [[tag("td", cell) for cell in cells] for cells in self._rows()]
        token = f"step {count_from_1(self.index)}: {self._name(self.token_id)}, "
        facts = f"{percent(probability(self.logprob))} under the model, {self.source}"
        hint = "" if self.observed else "; ledger=True or logprobs=5 shows the other candidates"
        table = tag(
            "table",
            tag("tr", *(tag("th", cell) for cell in _HEAD)),
            *(tag("tr", *cells) for cells in rows),
        )
        return join([tag("p", token, facts, hint), *([table] if rows else [])])

    def _rows(self) -> list[list[str]]:
        from cutaway.trace.figures import final_probability, percent, probability

        if not (seen := self.observed):
            return []
        return [
            [
                f"{'→ ' if candidate.id == self.token_id else ''}{candidate.rank}",
                self._name(candidate.id), f"{candidate.id}",
                percent(probability(candidate.logit - seen.log_sum_exp)),
                percent(final_probability(self, candidate)), self._remover(candidate),
            ]
            for candidate in seen.candidates
        ]  # fmt: skip

    def _remover(self, candidate: Candidate) -> str:
        """Return the label of the stage that removed a candidate; "" for a survivor."""
        from cutaway.trace.figures import stage_label

        if candidate.removed_by is None:
            return ""
        if not (self.observed and self.observed.stages):
            return "the chain"
        stage = self.observed.stages[candidate.removed_by].stage
        return stage_label({"stage": stage.name, **stage.rule})

    def _name(self, token_id: int) -> str:
        return repr(self.tokenizer.token_name(token_id)) if self.tokenizer else f"{token_id}"
