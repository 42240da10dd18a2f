"""The JSON of ``/v1/inside``, in the words of ``cutaway.features.inside``; see ``schemas``."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.features.inside.lens import LensRow
from cutaway.features.inside.summary import HeadFigures, PositionFigures, StateHeadFigures
from cutaway.server.body import doc


class LogitAttributionOfStep(TypedDict):
    """What adds to the token over its rival, in logits; parts and roundings add up to the total."""

    token: int
    rival: int
    bias: float
    rounding: Annotated[float, doc("of the stream, to 8 bits, before the head")]
    total: Annotated[float, doc("the difference of both logits, as the run had it")]
    error: float
    parts: Annotated[dict[str, float], doc("embedding, L0.attn, L0.mlp, …")]
    rounded: Annotated[list[float], doc("within each layer's attention")]


class ExpertsOfStep(TypedDict):
    """The experts of a layer that computed the row."""

    ids: list[int]
    shares: list[float]
    attributions: list[float]


class MapOfStep(TypedDict):
    """Weights of all heads."""

    shape: Annotated[list[int], doc("layers, heads, positions")]
    scale: Annotated[int, doc("a byte b is the weight (b / scale) ** 2")]
    data: Annotated[str, doc("bytes, in base64")]


class InsideOfStep(TypedDict):
    """The inside of a step, computed again: docs/inside.md says what is what."""

    step: int
    token_ids: Annotated[list[int], doc("up to the row")]
    row: Annotated[str, doc("hash of its logits")]
    as_run: Annotated[bool | None, doc("as the row that was given; null: none was")]
    logit_attribution: LogitAttributionOfStep
    heads: Annotated[list[HeadFigures], doc("of the layers that attend")]
    state_heads: Annotated[
        list[StateHeadFigures],
        doc("heads with a recurrent state, in texts of 512 tokens at most"),
    ]
    positions: list[PositionFigures]
    first_seen: Annotated[
        list[int], doc("by layer; the text's length where a layer does not attend")
    ]
    kv_bytes: int
    lens: NotRequired[list[LensRow]]
    lens_first: NotRequired[int | None]
    lens_settled: NotRequired[int | None]
    draw_settled: NotRequired[int | None]
    experts: Annotated[dict[str, ExpertsOfStep], doc("by layer")]
    maps: NotRequired[dict[str, MapOfStep]]


class PartOfText(TypedDict):
    """A part of the text, and the step without it. Differences are in nats."""

    start: int
    stop: Annotated[int, doc("after its last position")]
    token_ids: list[int]
    tokens: list[str]
    instead: Annotated[list[int], doc("token ids in its place")]
    weight: Annotated[float, doc("of its positions, the mean over all heads")]
    attribution: float
    logprob: Annotated[float, doc("of the step's token, without the part")]
    rival_logprob: float
    effect: Annotated[float, doc("the logprob with all of the text, less that")]
    margin: Annotated[float, doc("the same of the lead over the rival")]
    drawn: Annotated[int | None, doc("by the same chain and luck")]
    drawn_token: str | None


class AblationOfStep(TypedDict):
    """A step without each part of the text before it; docs/inside.md says what is what."""

    step: int
    row: Annotated[str, doc("hash of its logits, with all of the text")]
    as_run: Annotated[bool | None, doc("as the row that was given; null: none was")]
    by: str
    how: str
    token: int
    token_name: str
    rival: int
    rival_name: str
    drawn: Annotated[int | None, doc("at the step; null: unknown")]
    drawn_name: NotRequired[str]
    logprob: Annotated[float, doc("of the token, with all of the text")]
    rival_logprob: float
    token_ids: Annotated[list[int], doc("the text")]
    tokens: list[str]
    total: Annotated[int, doc("parts of the text that could be left out")]
    parts: Annotated[list[PartOfText], doc("that were, the largest attributions first")]
