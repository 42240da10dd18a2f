"""Ops that sum tokens near a row, in which each number of each token has a weight of its own."""

from dataclasses import dataclass
from math import prod

import numpy as np

from cutaway.compute.calls import MOST_TAPS, CentredConvCall, ConvCall, ConvWeights, OpCall
from cutaway.compute.model.op import Array, Lowering, Run, Site, Tensor, TokenMixer
from cutaway.compute.model.ops.states import StateOp
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


class Convolution(TokenMixer):
    """A sum of tokens near a row, in which each number of each token has a weight of its own."""

    def taps(self, weight: Array) -> Array:
        """Return the weights of the taps, (taps, width), from the op's tensor."""
        return weight.reshape(self.out.width, -1).T

    def _weights_and_bias(self, run: Run) -> tuple[Array, Array | int]:
        bias = run.weight(self.weights["bias"]) if "bias" in self.weights else 0
        return self.taps(run.weight(self.weights["weight"])), bias

    def _lower_weights(self, to: Lowering) -> ConvWeights:
        """Return the weights for a kernel; FormatError if no kernel takes so many taps."""
        weight = self.taps(to.vector(self.weights["weight"]))
        taps, width = weight.shape
        if taps > MOST_TAPS:
            raise FormatError(
                f"{self.out.name}: convolutions over {taps} tokens are not supported here, only up "
                f"to {MOST_TAPS}; the reference backend has no such limit"
            )
        flat, bias = np.ascontiguousarray(weight).ravel(), to.vector(self.weights.get("bias"))
        return ConvWeights(flat, bias, width, taps)


class Conv(Convolution, StateOp, kind="conv"):
    """A causal convolution: each number becomes its weighted sum over the last rows of the text.

    The state has the inputs of the last taps - 1 rows: (taps - 1, width). A second input has what a
    row adds to the weights of each group of neighbouring numbers, (M, groups · taps).
    """

    def _compute(self, run: Run, x: Array, *more: Array) -> Array:
        weight, bias = self._weights_and_bias(run)
        weight = weight[:, None]
        if more:
            of_rows = more[0].reshape(len(x), -1, len(weight)).transpose(2, 0, 1)
            weight = weight + np.repeat(of_rows, x.shape[1] // of_rows.shape[2], axis=2)
        else:
            weight = np.broadcast_to(weight, (len(weight), *x.shape))  # (taps, M, n)
        taps, out = len(weight), np.empty_like(x)
        for rows, before in run.states(self.out.name, self.state):
            seen = np.concatenate([before, x[rows]])  # (taps - 1 + R, n)
            count = rows.stop - rows.start
            for i in range(count):
                run.keep(self.out.name, rows.start + i, seen[i + 1 : i + taps])
            out[rows] = bias + sum(w[rows] * seen[i : i + count] for i, w in enumerate(weight))
        return out

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        weights = self._lower_weights(to)
        if len(at.reads) == 2:
            weights = weights._replace(more=at.reads[1], groups=at.widths[1] // weights.taps)
        return ConvCall(at.reads[0], at.out, weights)


class CentredConv(Convolution, kind="centred_conv"):
    """A convolution to both sides: each number becomes its weighted sum over the rows around it.

    There is no state: a step has all rows of a text. Beyond a text's ends all numbers are 0.
    """

    def _compute(self, run: Run, x: Array) -> Array:
        weight, bias = self._weights_and_bias(run)
        side, out = len(weight) // 2, np.empty_like(x)
        for text in run.texts():
            seen = np.pad(x[text.rows], ((side, side), (0, 0)))
            count = len(text.positions)
            out[text.rows] = bias + sum(w * seen[i : i + count] for i, w in enumerate(weight))
        return out

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return CentredConvCall(at.reads[0], at.out, self._lower_weights(to))


@dataclass(frozen=True, kw_only=True)
class TokenShift(Conv, kind="token_shift"):
    """x + (the row before - x) · mix, number by number; row: which row of the tensor is mix."""

    row: int

    def taps(self, weight: Array) -> Array:
        """See ``Conv``."""
        mix = weight.reshape(-1, self.out.width)[self.row]
        return np.stack([mix, 1 - mix])


class ConvolutionMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def conv(self, x: Tensor, weight: str, *more: Tensor, layer: int) -> Tensor:
        """Sum each number, weighted, over the last tokens up to its own: (M, n) -> (M, n).

        This is a depthwise causal convolution. The matrix has a row of weights for each number; the
        weight of the oldest token comes first. Some files have more dimensions, which are 1.
        more: what each row adds to the weights of each group of numbers, (M, groups · taps)
        """
        weights, taps = self._taps_of(x, weight)
        if any(part.width % taps or x.width % (part.width // taps) for part in more):
            raise FormatError(f"{x.name} is {x.width} wide, which is no {more[0].width} / {taps}")
        state = (taps - 1, x.width)
        return self._add(
            Conv, x.width, x, *more, name=weight, weights=weights, layer=layer, state=state
        )

    def centred_conv(self, x: Tensor, weight: str, *, layer: int) -> Tensor:
        """Sum each number, weighted, over as many tokens before as after it: (M, n) -> (M, n).

        See ``conv``.
        """
        weights, taps = self._taps_of(x, weight)
        if taps % 2 == 0:
            raise FormatError(
                f"tensor {weight}.weight has weights of {taps} tokens, an even number"
            )
        return self._add(CentredConv, x.width, x, name=weight, weights=weights, layer=layer)

    def _taps_of(self, x: Tensor, weight: str) -> tuple[dict[str, str], int]:
        """Check a convolution's weights; return them by role, and how many each number has."""
        matrix, weights = f"{weight}.weight", {"weight": f"{weight}.weight"}
        taps = self.shapes.get(matrix, (0,))[-1]
        self._expect_but_ones(matrix, (x.width, taps))
        if taps < 2:
            raise FormatError(f"tensor {matrix} has weights of {taps} tokens, not of 2 or more")
        if self.has(bias := f"{weight}.bias"):
            self._expect(bias, (x.width,))
            weights["bias"] = bias
        return weights, taps

    def token_shift(self, x: Tensor, weight: str, *, layer: int, row: int = 0) -> Tensor:
        """Mix each number with that of the row before: (M, n) -> (M, n). See ``TokenShift``."""
        name = f"{weight}.weight"
        rows = prod(self.shapes.get(name, (0,))) // x.width
        self._expect_but_ones(name, (rows, x.width))
        if row >= rows:
            raise FormatError(f"tensor {name} has {rows} rows of {x.width} numbers, not {row + 1}")
        return self._add(
            TokenShift, x.width, x, name=weight, weights={"weight": name}, layer=layer,
            state=(1, x.width), row=row,
        )  # fmt: skip
