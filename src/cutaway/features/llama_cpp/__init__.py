"""The API of llama.cpp's server beside OpenAI's: infill, templates, properties, slots, loading.

This module has the JSON of the answers; see ``server.shared``.
"""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc
from cutaway.server.shared import LikelyToken, SettingsAndEnding, Traced

StopType = Literal["none", "eos", "limit", "word"]


class TemplateApplied(TypedDict):
    """The prompt of a conversation."""

    prompt: str


class Done(TypedDict):
    """The request was carried out."""

    success: Literal[True]


class Settings(TypedDict):
    """The settings of a request that leaves all of them out."""

    n_ctx: Annotated[int, doc("most tokens of a sequence, prompt included")]
    params: Annotated[dict[str, Any], doc("settings by our names")]


class Modalities(TypedDict):
    """What is read beside text."""

    vision: Literal[False]
    audio: Literal[False]


class Properties(TypedDict):
    """What is known of a model and its server."""

    default_generation_settings: Settings
    total_slots: Annotated[int, doc("sequences that may run at once (--max-num-seqs)")]
    model_alias: str
    model_path: Annotated[str, doc("the file's name, without its folder")]
    chat_template: Annotated[str, doc("in Jinja; empty: none")]
    bos_token: Annotated[str, doc("empty: none")]
    eos_token: Annotated[str, doc("empty: none")]
    modalities: Modalities
    build_info: str
    is_sleeping: Annotated[bool, doc("whether the model waits to be loaded")]


class NextToken(TypedDict):
    """How many tokens a sequence has, and may have."""

    has_next_token: Literal[True]
    n_remain: Annotated[int, doc("tokens that it may have beside these")]
    n_decoded: int


class SequenceSlot(TypedDict):
    """A place for a sequence. Those in use come first, and have the last two fields."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    params: NotRequired[Annotated[dict[str, Any], doc("settings by our names")]]
    next_token: NotRequired[NextToken]


class ProbableToken(LikelyToken):
    """A token and its natural log-probability."""

    id: int


class WrittenToken(ProbableToken):
    """A token, and the likeliest in its place."""

    top_logprobs: list[ProbableToken]


class Timings(TypedDict):
    """How long the parts took; null: nothing was measured."""

    cache_n: Annotated[int, doc("tokens of the prompt that were found in the prefix cache")]
    prompt_n: Annotated[int, doc("the others")]
    prompt_ms: float | None
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_token_ms: float | None
    predicted_per_second: float | None


class Infilling(TypedDict, total=False):
    """A text between two others. In a stream, events have what is new; the last has the figures."""

    index: Literal[0]
    content: str
    tokens: Annotated[list[int], doc("with return_tokens, or in a stream")]
    stop: Annotated[bool, doc("whether the text has ended")]
    model: str
    tokens_predicted: int
    tokens_evaluated: Annotated[int, doc("of the prompt")]
    tokens_cached: Annotated[int, doc("of these, found in the prefix cache")]
    generation_settings: Annotated[dict[str, Any], doc("settings by our names")]
    prompt: Annotated[str, doc("as the model read it, with its special tokens")]
    has_new_line: bool
    truncated: Annotated[bool, doc("whether the context was full")]
    stop_type: StopType
    stopping_word: str
    timings: Timings
    completion_probabilities: Annotated[list[WrittenToken], doc("with n_probs")]
    prompt_token_ids: list[int]
    token_ids: list[int]
    cutaway: SettingsAndEnding | Traced
