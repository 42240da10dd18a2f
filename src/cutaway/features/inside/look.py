"""A look: one step of a trace, computed again with all its tensors.

The hash of the step's logits proves that this is the recorded step.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.base.counting import count_from_1
from cutaway.compute.backends import STEP_ROWS, inspectable
from cutaway.compute.model.anatomy import Anatomy, LayerRun
from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.mixture import Experts
from cutaway.compute.model.ops.states import HeadStates, StateOp
from cutaway.engine import Row
from cutaway.engine.interventions import STATE, Affine, find
from cutaway.errors import CutawayError, InputError
from cutaway.features.inside.decomposition import Decomposition
from cutaway.features.inside.layers import (
    SINK,
    ValueWeights,
    attention_scores,
    attention_weights,
    check_outputs,
    choose_experts,
    score_terms,
    value_weights,
    weighted_values,
    write_lengths,
)
from cutaway.features.inside.lens import Lens, Nearest, lens, nearest
from cutaway.features.inside.logit_attribution import LogitAttribution, logit_attribution
from cutaway.features.inside.picture import Picture
from cutaway.features.inside.steps import Redraw
from cutaway.methods.rows import text_state
from cutaway.rerun.forks import token_id_of
from cutaway.rerun.request import bound, check_text
from cutaway.sampling.observe import row_hash
from cutaway.trace import Trace
from cutaway.trace.figures import phrase

Floats = NDArray[np.float64]


class OtherRowError(CutawayError):
    """The model gives other logits than those that the trace recorded."""


class Look:
    """The tensors of one step, computed again, and figures on them. The model's state is unchanged.

    step        the recorded step
    token_ids   the tokens of the text that the row attends to; the row's own token is the last
    row_hash    the hash of the row's logits
    is_as_run   whether ``row_hash`` is the recorded one; if not, the reference backend computed it
    first_seen  (layers,): the first position that each layer attends to; above 0 with a window, and
                the text's length for a layer that does not attend
    """

    def __init__(self, llm: LLM, trace: Trace, step: int, row: Row, anatomy: Anatomy) -> None:
        """Take the row that gave a step its logits; ``inside`` makes a look."""
        self._llm, self._trace, self._row, self._anatomy = llm, trace, row, anatomy
        self._bound = bound(llm, trace.head)
        self.step = trace.steps[step]
        self.token_ids = ids_before(trace, step)
        self.row_hash = row_hash(row.logits)
        self.is_as_run = self.row_hash == self.step.logits_hash
        total = len(self.token_ids)
        read = {op.layer: row.keys[op.layer].shape[1] for op in anatomy.attends}
        self.first_seen = tuple(total - read.get(i, 0) for i in range(self.layers))

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self._anatomy.stream) - 1

    @property
    def runs(self) -> list[LayerRun]:
        """The layer at each depth, and which of its runs it is; [] if each layer runs only once."""
        runs = self._anatomy.runs
        is_looped = any(run > 1 for _, run in runs.values())
        return [runs[depth] for depth in range(self.layers)] if is_looped else []

    def layer_name(self, depth: int) -> str:
        """Return "layer 3", or in a model that runs layers again "layer 3 in its run 2, L19"."""
        if not self.runs:
            return f"layer {depth}"
        layer, run = self.runs[depth]
        return f"layer {layer} in its run {run}, L{depth}"

    @property
    def first_added(self) -> int:
        """The first layer that adds to the stream of which logits are made; see ``Anatomy``."""
        return self._anatomy.first_added

    @property
    def attending(self) -> list[int]:
        """The layers that attend."""
        return [*self._decomposition.weights]

    @property
    def position(self) -> int:
        """The row's position: that of its own token, the last of ``token_ids``."""
        return len(self.token_ids) - 1

    @property
    def logits(self) -> NDArray[np.float32]:
        """The row's logits before the chain: (vocab,), float32."""
        return self._row.logits

    # -- attention ------------------------------------------------------------------------------

    @cached_property
    def weights(self) -> Floats:
        """Attention weights (layers, heads, positions). A row adds up to 1, or with sinks to less.

        Weights before ``first_seen`` are 0. A weight is not an effect: a token with much attention
        may not matter.
        """
        return self._decomposition.side_by_side(self._decomposition.weights)

    @cached_property
    def scores(self) -> Floats:
        """What softmax makes the weights of: (layers, heads, positions).

        scale · q·k, capped where the model caps, with its bias by distance where it has one
        (ALiBi); −∞ at positions that are not read. A layer with a sink has one more score in its
        softmax, which belongs to no position.
        """
        scores = np.full(self.weights.shape, -np.inf)
        for layer, x in self._scores.items():
            scores[layer, : len(x), self.first_seen[layer] :] = x
        return scores

    def score_terms(self, layer: int, at: NDArray[np.integer[Any]]) -> Floats:
        """The terms of scale · q·k at positions (heads, k) that are read: (heads, k, head_dim)."""
        op = next(op for op in self._anatomy.attends if op.layer == layer)
        query, keys = self._row.tensors[op.inputs[0]], self._row.keys[layer]
        return score_terms(query, keys, op, at - self.first_seen[layer])

    @cached_property
    def _scores(self) -> dict[int, Floats]:
        """Each layer's scores of the positions that it reads: (heads, n)."""
        row, unseen = self._row, None
        if self._bound and self._bound.knocked_out:
            unseen = self._bound.hidden_from(len(self.token_ids)) <= self.position
        scores = {}
        for op in self._anatomy.attends:
            keys = row.keys[op.layer]
            hidden = None if unseen is None else unseen[len(unseen) - keys.shape[1] :]
            scores[op.layer] = attention_scores(row.tensors[op.inputs[0]], keys, op, hidden)
        return scores

    @property
    def mean_weights(self) -> Floats:
        """Mean weights over all heads of layers that attend: (positions,); 0 if no layer does."""
        attending = sum(map(len, self._decomposition.weights.values()))
        mean: Floats = self.weights.sum(axis=(0, 1)) / max(attending, 1)
        return mean

    @cached_property
    def states(self) -> Mapping[int, ValueWeights]:
        """The weight of each token's value in each head, by layer with heads of a state.

        InputError for a text of more than 512 tokens.
        """
        ops = {op.out.name: op.layer for op in self._mixes if isinstance(op, HeadStates)}
        if ops and not self.has_state_heads:
            raise InputError(
                f"the text has {len(self.token_ids)} tokens; what heads with a recurrent state "
                f"take of each is shown for {STEP_ROWS} at most"
            )
        states = self._decomposition.states
        return {layer: states[name] for name, layer in ops.items()}

    @property
    def has_states(self) -> bool:
        """Whether some layers of the model have a recurrent state that the look can show."""
        return bool(self._mixes)

    @property
    def has_state_heads(self) -> bool:
        """Whether some layers have a state, and the text has at most 512 tokens."""
        return self.has_states and len(self.token_ids) <= STEP_ROWS

    @cached_property
    def _mixes(self) -> list[StateOp]:
        """The ops with a state whose heads are linear up to the stream."""
        mixers = (part.mixer for part in self._anatomy.parts)
        return [op for op in mixers if isinstance(op, StateOp)]

    @cached_property
    def writes(self) -> Floats:
        """The norm of what each head wrote to the stream from each position.

        (layers, heads, positions). A norm has no sign, and norms do not add up. It is 0 in runs of
        looped layers before the last, which write to streams of their own.
        Raises InputError as ``logit_attribution`` does.
        """
        self._anatomy.check_paths()
        of_layer = {p.mixer.layer: p for p in self._anatomy.parts if isinstance(p.mixer, Attend)}
        row, sums = self._row, self._decomposition
        return sums.side_by_side({
            layer: write_lengths(weight, row.values[layer], sums.write_matrix(of_layer[layer]))
            for layer, weight in sums.weights.items()
            if layer in of_layer
        })  # fmt: skip

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that the row read; windows make them fewer."""
        return self._llm.backend.kv.bytes_read(len(self.token_ids))

    @property
    def sinks(self) -> NDArray[np.bool_]:
        """Whether each head has more than 0.3 of its weight at position 0: (layers, heads)."""
        sinks: NDArray[np.bool_] = self.weights[:, :, 0] > SINK
        return sinks

    @cached_property
    def _decomposition(self) -> Decomposition:
        row, weights, total = self._row, {}, len(self.token_ids)
        interventions = self._affine
        for op in self._anatomy.attends:
            layer, sinks_name = op.layer, op.weights.get("sinks")
            sinks = (
                None if sinks_name is None else inspectable(self._llm.backend).weight(sinks_name)
            )
            weight = attention_weights(self._scores[layer], sinks)
            mixed = weighted_values(weight, row.values[layer]).ravel()
            if change := interventions.get(op.out.name):
                mixed = change.factor * mixed + change.offset
            largest = float(np.abs(row.values[layer]).max())
            check_outputs(layer, mixed, row.tensors[op.out.name], largest)
            weights[layer] = weight
        mixes = self._mixes if self.has_state_heads else []
        states = value_weights(self._llm, self.token_ids, mixes, self._bound, interventions)
        return Decomposition(
            inspectable(self._llm.backend), self._anatomy, row.tensors, weights, row.values, states,
            self.layers, total, interventions,
        )  # fmt: skip

    @property
    def _affine(self) -> dict[str, Affine]:
        """The interventions that apply to the row, by tensor."""
        widths = {name: len(tensor) for name, tensor in self._row.tensors.items()}
        return self._bound.affine(self.position, widths) if self._bound else {}

    # -- the lens, and logit attribution ----------------------------------------------------------

    def lens(self, top: int = 5) -> Lens:
        """The logit lens before the first layer and after each, with the draw of the same luck.

        top: how many of the likeliest tokens each row lists
        """
        top = check_int("top", top, 1, self._trace.head.vocab_size)
        rows = self._llm.head(np.stack([self._row.tensors[n] for n in self._anatomy.stream]))
        if row_hash(rows[-1]) != self.row_hash:
            raise CutawayError("the last layer's lens is not the row: this is a bug in cutaway")
        again = (
            Redraw.from_step(self._llm, self._trace, self.step, rows[-1])
            if self.is_as_run
            else None
        )
        drawn_ids = None if again is None else again.tokens(rows)
        return lens(rows, self.step.token_id, top, drawn_ids)

    def nearest(self, top: int = 8) -> Nearest:
        """The ``top`` tokens whose embeddings are nearest to that of the row's own token."""
        return nearest(self._llm, self.token_ids[-1], top)

    def logit_attribution(self, rival: int | str | None = None) -> LogitAttribution:
        """Direct logit attribution: why the step's token has a larger logit than a rival.

        rival: the rival's id or its text; None: the likeliest other token. An ablation may have
        another effect: later layers may erase what a part added. Raises CutawayError where the sums
        are not those of the run, and InputError for a model with more behind its heads.
        """
        self._anatomy.check_paths()
        token_id = self.step.token_id
        if rival is None:
            other_logits = self._row.logits.copy()
            other_logits[token_id] = -np.inf
            rival = int(np.argmax(other_logits))
        rival = token_id_of(self._llm, rival, "rival")
        if rival == token_id:
            raise InputError("rival", ": this is the token of the step; name another")
        return logit_attribution(self._decomposition, (token_id, rival))

    pushes = logit_attribution  # its earlier name

    def proof(self) -> str:
        """A sentence that says whether the row is the recorded one or the reference backend's."""
        return phrase("same row" if self.is_as_run else "other row", row=f"{self.row_hash:016x}")

    def _repr_html_(self) -> str:
        """Show pictures and a table in a notebook, without scripts."""
        attribution, name = self.logit_attribution(), self._llm.tokenizer.token_name
        title = (
            f"step {count_from_1(self.step.index)}: logit of {name(attribution.token)!r} "
            f"less that of {name(attribution.rival)!r}: {attribution.total:+.3f}"
        )
        return Picture(
            title, self.proof(), [name(i) for i in self.token_ids],
            self.mean_weights, attribution.by_position, attribution.heads,
            {**attribution.parts, "biases": attribution.bias, "rounding": attribution.rounding},
            self.lens(1).rows(name),
        ).html()  # fmt: skip

    # -- tensors -------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of all tensors, in the order in which they are computed."""
        return [op.out.name for op in self._anatomy.graph.ops]

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The output of an op for this row, (width,), by its name in the graph."""
        if name not in self._row.tensors:
            near = [candidate for candidate in self.names if name in candidate][:5] or self.names[
                :5
            ]
            raise InputError("tensor", f": there is no {name!r:.60}; some are {', '.join(near)}")
        return self._row.tensors[name]

    def part(self, place: str) -> NDArray[np.float32]:
        """Return the activations at a place, such as "L9", "L9.attn" or "L9.H3", for a patch.

        "L9.S" is the recurrent state after the row's token.
        """
        name, first, last = find(self._anatomy, place)
        if name == STATE:
            return text_state(self._llm, self.token_ids, self._bound)[first:last]
        return self._row.tensors[name][first:last]

    @cached_property
    def experts(self) -> Mapping[int, tuple[NDArray[np.int64], Floats]]:
        """The experts that computed the row, by layer, best first, and their shares."""
        return {
            part.layer: choose_experts(
                inspectable(self._llm.backend), self._row.tensors[part.op.inputs[1]], part.op
            )
            for part in self._anatomy.parts
            if isinstance(part.op, Experts) and part.layer is not None
        }


def ids_before(trace: Trace, step: int) -> list[int]:
    """The token ids before a step: the text of its row."""
    return [*trace.head.prompt_token_ids, *trace.output_token_ids[:step]]


def inside(llm: LLM, trace: Trace, step: int) -> Look:
    """Compute a step of a trace again, with all its tensors.

    Raises InputError where the model has another vocabulary or too small a context, or the trace
    has no such step; OtherRowError where the row's hash is not the recorded one. Only the reference
    backend may compute other bits than another backend's run had; then ``is_as_run`` is False.
    """
    check_text("the inside of a step", llm, trace)
    step = check_int("step", step, 0, len(trace.steps) - 1)
    anatomy, ids = Anatomy(llm.graph), ids_before(trace, step)
    last = np.array(len(ids) - 1)
    firsts = {op.layer: int(op.mask.first_seen(last)) for op in anatomy.attends}
    row = llm.row(
        ids, [op.out.name for op in llm.graph.ops], firsts, bound(llm, trace.head),
        prompt_tokens=len(trace.head.prompt_token_ids),
    )  # fmt: skip
    look = Look(llm, trace, step, row, anatomy)
    if not look.is_as_run:
        if llm.backend.name != "reference":
            raise OtherRowError(
                f"the logits of step {count_from_1(step)} are not those on record: "
                "'cutaway trace replay' says what differs"
            )
        if llm.model.identity.weights != trace.head.weights:
            raise InputError(
                f"{llm.name} has other weights than the trace, which is of {trace.head.model!r:.80}"
            )
    return look
