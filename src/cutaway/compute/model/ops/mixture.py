"""Experts: the op that computes a mixture of MLPs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from cutaway.compute.calls import (
    NOTHING,
    Biased,
    Expert,
    ExpertsArguments,
    ExpertsCall,
    ExpertsChoice,
    OpCall,
)
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.op import Array, Lowering, Op, Run, Site, Tensor
from cutaway.compute.model.ops.numbers import Number, Numbers
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


@dataclass(frozen=True, kw_only=True)
class Experts(Op, kind="experts"):
    """The sum of the results of the experts that a row's scores choose, each times its weight."""

    matrix_roles = ("gate", "up", "down")
    is_stacked = True
    mixture: Mixture

    def _compute(self, run: Run, x: Array, scores: Array) -> Array:
        """Compute the sum; note the inputs of down matrices under the result's name + ".inner"."""
        bias = self.weights.get("choosing_bias")
        experts, weights = self.mixture.choose(scores, None if bias is None else run.weight(bias))
        before, after = weights.astype(np.float32), np.ones(weights.shape, np.float32)
        if not self.mixture.weighs_input:
            before, after = after, before
        out, roles = np.zeros_like(x), [role for role in ("gate", "up") if role in self.weights]
        inner = np.empty((*experts.shape, run.weight(self.weights["up"]).shape[1]), np.float32)
        for row, rank in np.ndindex(experts.shape):
            e = int(experts[row, rank])
            read = (self._product(run, role, e, before[row, rank] * x[row]) for role in roles)
            inner[row, rank] = activate(self.mixture, *read)
            out[row] += after[row, rank] * self._product(run, "down", e, inner[row, rank])
        run.note(f"{self.out.name}.inner", inner.reshape(len(x), -1))
        return out

    def _product(self, run: Run, role: str, expert: int, x: Array) -> Array:
        y: Array = run.weight(self.weights[role])[expert] @ x
        bias = self.weights.get(f"{role}_bias")
        return y if bias is None else y + run.weight(bias)[expert]

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        up, down = self._matrices_and_biases(to, "up"), self._matrices_and_biases(to, "down")
        gates: list[tuple[()] | tuple[Biased]] = [()] * len(up)
        if "gate" in self.weights:
            gates = [(gate,) for gate in self._matrices_and_biases(to, "gate")]
        width = self.mixture.used * to.matrices(self, "up")[0].rows
        bias = to.vector(self.weights.get("choosing_bias"))
        choice = ExpertsChoice(**asdict(self.mixture), bias=bias)
        scores, inner = at.reads[1], to.inner(self.out.name, width)
        arguments = ExpertsArguments(at.late, at.x, scores, choice, at.out, inner)
        return ExpertsCall(arguments, [*map(Expert, gates, up, down)])

    def _matrices_and_biases(self, to: Lowering, role: str) -> list[Biased]:
        """Return each expert's matrix of this role, with its bias."""
        matrices, bias = to.matrices(self, role), self.weights.get(f"{role}_bias")
        biases = [NOTHING] * len(matrices) if bias is None else to.vector(bias)
        return [Biased(matrix.number, b) for matrix, b in zip(matrices, biases, strict=True)]


def activate(mixture: Mixture, *read: Numbers) -> Numbers:
    """Return the input of an expert's down matrix; read: the results of gate and up, or of up."""
    op = Number.BY_KIND[mixture.activation]
    return op(Tensor("", read[0].shape[-1]), number=mixture.limit).result(*read)


def expert_shares(ops: Iterable[Op], shapes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return, for each tensor of experts, the share that a row chooses; shapes: see ``Wiring``."""
    experts = (op for op in ops if isinstance(op, Experts))
    return {name: op.mixture.used / shapes[name][0] for op in experts for name in op.matrix_names}


class MixtureMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def experts(self, x: Tensor, scores: Tensor, prefix: str, mixture: Mixture) -> Tensor:
        """Add a mixture of MLPs (Shazeer et al. 2017, arXiv 1701.06538): (M, n) -> (M, n).

        Each row goes through the experts that its scores (M, experts) choose; the result is the
        weighted sum of their outputs. The choice and the matrices have biases if the file has them.
        """
        roles = ("gate", "up", "down") if mixture.is_gated else ("up", "down")
        weights = {role: f"{prefix}ffn_{role}_exps.weight" for role in roles}
        count, inner, _ = self._shape(weights["up"], 3)
        if count != scores.width:
            raise FormatError(f"{prefix}: {count} experts, and scores for {scores.width}")
        mixture.check(count, prefix)
        for role in roles:
            shape = (x.width, inner) if role == "down" else (inner, x.width)
            self._expect(weights[role], (count, *shape))
            self._allow_factors(f"{prefix}ffn_{role}_exps", count)
            if self.has(bias := f"{prefix}ffn_{role}_exps.bias"):
                self._expect(bias, (count, shape[0]))
                weights[f"{role}_bias"] = bias
        if self.has(bias := f"{prefix}exp_probs_b.bias"):
            self._expect(bias, (count,))
            weights["choosing_bias"] = bias
        return self._add(Experts, x.width, x, scores, weights=weights, mixture=mixture)
