"""The JSON of ``/v1/inside``; see ``schemas``. The words are those of ``cutaway.inside``."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12


class PushesOfStep(TypedDict):
    """What pushed the token above its rival, in logits; parts and roundings add up to the total."""

    token: int
    rival: int
    bias: float
    rounding: Annotated[float, Field(description="of the stream, to 8 bits, before the head")]
    total: Annotated[float, Field(description="the difference of both logits, as the run had it")]
    error: float
    parts: Annotated[dict[str, float], Field(description="embedding, L0.attn, L0.mlp, …")]
    rounded: Annotated[list[float], Field(description="within each layer's attention")]


class HeadOfStep(TypedDict):
    """One head: its push, and where it looks."""

    layer: int
    head: int
    push: float
    sink: Annotated[float, Field(description="weight of position 0")]
    previous: float
    same: float
    induction: float
    entropy: float
    most: int
    weight: float


class PlaceOfStep(TypedDict):
    """A position that was read: mean weight of all heads, sum of their pushes."""

    position: int
    token_id: int
    token: str
    weight: float
    push: float


class LensOfStep(TypedDict):
    """What the head would say before the first layer (-1), or after one."""

    layer: int
    token_id: int
    token: str
    probability: float
    rank: Annotated[int, Field(description="of the token that came")]
    drawn: Annotated[int | None, Field(description="by the same chain and luck")]
    drawn_token: str | None


class ExpertsOfStep(TypedDict):
    """Of a layer: the experts that computed the row."""

    ids: list[int]
    shares: list[float]
    pushes: list[float]


class MapOfStep(TypedDict):
    """Weights of all heads."""

    shape: Annotated[list[int], Field(description="layers, heads, positions")]
    scale: Annotated[int, Field(description="a byte b is the weight (b / scale) ** 2")]
    data: Annotated[str, Field(description="bytes, in base64")]


class Looked(TypedDict):
    """The inside of a step, computed again: docs/inside.md says what is what."""

    step: int
    token_ids: Annotated[list[int], Field(description="that the row saw")]
    row: Annotated[str, Field(description="hash of its logits")]
    as_run: Annotated[bool | None, Field(description="as the row that was given; null: none was")]
    pushes: PushesOfStep
    heads: list[HeadOfStep]
    positions: list[PlaceOfStep]
    first_seen: Annotated[list[int], Field(description="by layer")]
    kv_bytes: int
    lens: NotRequired[list[LensOfStep]]
    lens_first: NotRequired[int | None]
    lens_settled: NotRequired[int | None]
    draw_settled: NotRequired[int | None]
    experts: Annotated[dict[str, ExpertsOfStep], Field(description="by layer")]
    maps: NotRequired[dict[str, MapOfStep]]
