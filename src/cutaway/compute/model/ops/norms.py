"""Norms divide a row, or each group of its numbers, by a root mean square or a deviation."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cutaway.compute.calls import MagnitudeCall, Norm, OpCall, SoftmaxCall
from cutaway.compute.model.op import Array, Lowering, Op, Run, Site, Tensor
from cutaway.compute.model.wiring import Wiring


@dataclass(frozen=True, kw_only=True)
class NormOp(Op):
    """Each group of numbers divided by its magnitude, times weights if the norm has weights.

    is_centred: whether the mean is subtracted first
    group: how many numbers a group has
    """

    is_centred: ClassVar[bool] = False
    is_linear = True
    eps: float
    group: int

    def native(self, to: Lowering) -> Norm:
        """Return the norm in the form that a plan reads, in which a centred norm has a bias."""
        weight = np.ones(self.group, np.float32)
        if "weight" in self.weights:
            weight = to.vector(self.weights["weight"]).ravel()
        bias = to.vector(self.weights.get("bias")).ravel()
        if self.is_centred and not bias.size:
            bias = np.zeros_like(weight)
        return Norm(weight, bias, self.eps, self.group)


class RmsNorm(NormOp, kind="rms_norm"):
    """x / sqrt(mean(x²) + eps) · w, for each group of numbers by itself."""

    def _compute(self, run: Run, x: Array) -> Array:
        groups = x.reshape(len(x), x.shape[1] // self.group, self.group)  # M may be 0
        mean_square = np.mean(groups * groups, axis=-1, keepdims=True)  # (M, groups, 1)
        y: Array = groups / np.sqrt(mean_square + np.float32(self.eps))
        if self.weights:
            y = y * run.weight(self.weights["weight"]).reshape(-1, self.group)
        return y.reshape(x.shape)


@dataclass(frozen=True, kw_only=True)
class ClipNorm(NormOp, kind="clip_norm"):
    """x · w, made shorter if its length is above a limit, for each group of numbers by itself.

    The factor is min(1, limit / (length + 1e-6)).
    """

    eps: float = 0.0
    limit: float

    def _compute(self, run: Run, x: Array) -> Array:
        groups = x.reshape(len(x), x.shape[1] // self.group, self.group)  # M may be 0
        if self.weights:
            groups = groups * run.weight(self.weights["weight"])
        length = np.sqrt(np.sum(groups * groups, axis=-1, keepdims=True))  # (M, groups, 1)
        factor = np.minimum(np.float32(self.limit) / (length + np.float32(1e-6)), 1)
        y: Array = groups * factor
        return y.reshape(x.shape)

    def native(self, to: Lowering) -> Norm:
        """See ``NormOp``."""
        return super().native(to)._replace(limit=self.limit)


class LayerNorm(NormOp, kind="layer_norm"):
    """(x - mean(x)) / sqrt(variance(x) + eps) · w + b, for each group of numbers by itself."""

    is_centred = True

    def _compute(self, run: Run, x: Array) -> Array:
        groups = x.reshape(len(x), x.shape[1] // self.group, self.group)  # M may be 0
        centred = groups - np.mean(groups, axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)  # (M, groups, 1)
        y: Array = centred / np.sqrt(variance + np.float32(self.eps))
        if "weight" in self.weights:
            y = y * run.weight(self.weights["weight"]).reshape(-1, self.group)
        if "bias" in self.weights:
            y = y + run.weight(self.weights["bias"]).reshape(-1, self.group)
        return y.reshape(x.shape)


@dataclass(frozen=True, kw_only=True)
class Magnitude(Op, kind="magnitude"):
    """The root of the mean of a row's squares; is_centred: of x - mean(x), its deviation."""

    is_centred: bool

    def _compute(self, _: Run, x: Array) -> Array:
        if self.is_centred:
            x = x - np.mean(x, axis=-1, keepdims=True)
        root: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
        return root

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        return MagnitudeCall(at.late, at.reads[0], at.widths[0], self.is_centred, at.out)


@dataclass(frozen=True, kw_only=True)
class Softmax(Op, kind="softmax"):
    """Shares of each group of numbers, by the exponentials of these."""

    group: int

    def _compute(self, _: Run, x: Array) -> Array:
        groups = x.reshape(len(x), x.shape[1] // self.group, self.group)  # M may be 0
        shares: Array = np.exp(groups - groups.max(axis=-1, keepdims=True))
        shares = shares / shares.sum(axis=-1, keepdims=True)
        return shares.reshape(x.shape)

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        return SoftmaxCall(at.late, at.reads[0], at.widths[0], self.group, at.out)


class NormMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def rms_norm(
        self, x: Tensor, weight: str, eps: float,
        *, group: int | None = None, ending: str = "weight", name: str = "",
    ) -> Tensor:  # fmt: skip
        """x / sqrt(mean(x²) + eps) · w (Zhang & Sennrich 2019, arXiv 1910.07467): (M, n) -> (M, n).

        weight: "" if the norm has no weights
        group: how many numbers, such as a head's, are normed together. All groups have the same
               weights; or each group has its own, if the file has a weight for each number
        ending: the ending of the weights' name; "": the name has no ending
        name: the result's name; "": that of the weights, or of the op
        """
        weights = {"weight": f"{weight}.{ending}" if ending else weight} if weight else {}
        return self._norm(RmsNorm, x, name or weight, weights, eps=eps, group=group)

    def layer_norm(
        self, x: Tensor, weight: str, eps: float, *, bias: bool = True, group: int | None = None
    ) -> Tensor:
        """(x - mean) / sqrt(variance + eps) · w (+ b) (Ba et al. 2016, arXiv 1607.06450).

        weight, group: see ``rms_norm``
        """
        roles = (("weight", "bias") if bias else ("weight",)) if weight else ()
        weights = {role: f"{weight}.{role}" for role in roles}
        return self._norm(LayerNorm, x, weight, weights, eps=eps, group=group)

    def clip_norm(
        self, x: Tensor, weight: str, limit: float, *, group: int | None = None
    ) -> Tensor:
        """See ``ClipNorm``: (M, n) -> (M, n). weight, group: see ``rms_norm``."""
        weights = {"weight": f"{weight}.weight"} if weight else {}
        return self._norm(ClipNorm, x, weight, weights, group=group, limit=limit)

    def softmax(self, x: Tensor, *, group: int) -> Tensor:
        """See ``Softmax``: (M, n) -> (M, n)."""
        self._expect_groups(x, group)
        return self._add(Softmax, x.width, x, group=group)

    def magnitude(self, x: Tensor, *, is_centred: bool = False) -> Tensor:
        """See ``Magnitude``: (M, n) -> (M, 1)."""
        return self._add(Magnitude, 1, x, is_centred=is_centred)

    def _norm(
        self, kind: type[NormOp], x: Tensor, name: str, weights: dict[str, str],
        *, group: int | None, **fields: float,
    ) -> Tensor:  # fmt: skip
        group = group or x.width
        self._expect_groups(x, group)
        for tensor in weights.values():
            apart, shape = ((x.width // group, group), (x.width,)), self.shapes.get(tensor)
            self._expect(tensor, shape if shape in apart else (group,))
        return self._add(kind, x.width, x, name=name, weights=weights, group=group, **fields)
