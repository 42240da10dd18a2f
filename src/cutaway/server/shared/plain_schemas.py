"""The JSON of tokens, vectors, masks, receipts and the server's state, as types."""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc

# -- tokens ------------------------------------------------------------------------------------


class Tokenized(TypedDict):
    """The token ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: Annotated[int, doc("most tokens of a sequence, prompt included")]
    token_strs: NotRequired[Annotated[list[str], doc("their names")]]


class Detokenized(TypedDict):
    """The text of token ids."""

    prompt: str


class TokenizerInfo(TypedDict):
    """Special tokens and the chat template; null: there is none."""

    bos_token: str | None
    eos_token: str | None
    pad_token: Annotated[str | None, doc("texts are not padded: always null")]
    chat_template: Annotated[str | None, doc("in Jinja, as the model's file has it")]


# -- vectors -----------------------------------------------------------------------------------


class Vector(TypedDict):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[
        list[float] | str, doc("or base64 of float32, little-endian, if asked for")
    ]


class TokensRead(TypedDict):
    """How many tokens all texts have."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """A vector for each text, and how it was computed."""

    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: TokensRead
    dimensions: Annotated[int, doc("ours, as are the next")]
    pooling: Literal["mean", "cls", "last", "weighted"]
    pooling_from: Literal["files", "default", "asked"]
    normalized: Annotated[bool, doc("whether each vector has length 1")]
    normalized_from: Literal["files", "default", "asked"]
    truncated: Annotated[list[int], doc("which texts were cut")]
    prompt: Annotated[str, doc("the name of what is put in front of each text; empty: nothing")]
    task: Annotated[str, doc("whose adapter computed; empty: none")]


class TokenMatrix(TypedDict):
    """The vectors of one text's tokens."""

    object: Literal["embeddings"]
    index: int
    embeddings: Annotated[list[list[float]], doc("a vector of length 1 for each token")]
    token_ids: Annotated[list[int], doc("ours: of the rows")]


class MultiVectorList(TypedDict):
    """A vector for each token of each text."""

    object: Literal["list"]
    data: list[TokenMatrix]
    model: str
    usage: TokensRead
    truncated: Annotated[list[int], doc("ours: which texts were cut")]


# -- filling in --------------------------------------------------------------------------------


class CandidateOfMask(TypedDict):
    """A candidate for one mask."""

    token_id: Annotated[int | None, doc("null for a target of several tokens")]
    token_ids: list[int]
    token: str
    text: str
    score: Annotated[float, doc("its probability")]


class TogetherInMasks(TypedDict):
    """Candidates for all masks together."""

    candidates: list[CandidateOfMask]
    score: float


class FilledIn(TypedDict):
    """A text's masks, each with its candidates, best first."""

    method: Annotated[
        Literal["masked", "bayes"],
        doc("the model's own answer, or Bayes' rule with a model that writes"),
    ]
    masks: list[list[CandidateOfMask]]
    joint: Annotated[list[TogetherInMasks], doc("where there are several masks")]
    covered: Annotated[
        float | None, doc("bayes: the share of all continuations that was considered")
    ]


# -- adapters ---------------------------------------------------------------------------------


class AdaptersChanged(TypedDict):
    """An adapter was loaded or unloaded."""

    adapters: Annotated[list[str], doc("the names of those that are loaded now")]


# -- the server --------------------------------------------------------------------------------


class ModelCard(TypedDict):
    """A name that requests may use for the model."""

    id: str
    object: Literal["model"]
    type: Annotated[Literal["model"], doc("for Anthropic's clients, as the next")]
    display_name: str
    created_at: Annotated[str, doc("RFC 3339")]
    created: Annotated[int, doc("when it was loaded, in seconds of the epoch")]
    owned_by: Literal["cutaway"]
    root: Annotated[str, doc("the model's own name")]
    max_model_len: Annotated[int, doc("most tokens of a sequence, prompt included")]
    attention: Annotated[
        str | int,
        doc(
            "ours: which tokens a token attends to: causal, those before it; "
            "bidirectional, all; a number, all to the end of its block of this many tokens; "
            "canvas, those before it, and all of the block that is denoised. But "
            "for causal, ask with denoise"
        ),
    ]
    parent: NotRequired[Annotated[str, doc("of an adapter: the model's name")]]
    loaded: NotRequired[Annotated[bool, doc("ours: of a model that is loaded on demand")]]


class ModelList(TypedDict):
    """All names of the model."""

    object: Literal["list"]
    data: list[ModelCard]
    has_more: Annotated[Literal[False], doc("for Anthropic's clients, as the next")]
    first_id: str
    last_id: str


class Health(TypedDict):
    """The engine is alive."""

    status: Literal["ok"]


class Ready(TypedDict):
    """The server takes requests."""

    status: Literal["ready"]


# -- receipts ----------------------------------------------------------------------------------


class ReceiptsHead(TypedDict):
    """The root of all entries so far, signed."""

    size: Annotated[int, doc("entries: receipts, and gaps where some are lost")]
    root: Annotated[str, doc("of the Merkle tree over their roots, in hex")]
    public_key: Annotated[str, doc("an Ed25519 key, in hex")]
    signature: str


class ReceiptProof(TypedDict):
    """The proof that the log has a receipt."""

    index: int
    path: Annotated[list[str], doc("hashes that lead to the head's root, from the leaf upwards")]
    head: ReceiptsHead


class ProvenReceipt(TypedDict):
    """A receipt, as 'cutaway receipt verify' reads it."""

    receipt: Annotated[dict[str, Any], doc("docs/receipts.md")]
    log: ReceiptProof


class AnswerReceipts(TypedDict):
    """The receipts of an answer, one per text."""

    object: Literal["receipts"]
    id: str
    data: list[ProvenReceipt]
