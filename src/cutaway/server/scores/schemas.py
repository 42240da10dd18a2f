"""The JSON of scores, rankings and decisions as types; see ``cutaway.server.shared``."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from cutaway.server.body import doc
from cutaway.server.openai.response_schemas import ResponseUsage
from cutaway.server.shared.plain_schemas import TokensRead

Method = Annotated[
    Literal["log_likelihood", "cosine"],
    doc(
        "log_likelihood: the model's own log-probability, in nats, of text_2 after "
        "text_1; cosine: of the two texts' vectors"
    ),
]


class ScoredToken(TypedDict):
    """A token of an answer."""

    token_id: int
    token: str
    logprob: Annotated[float, doc("natural, given all before it")]
    rank: Annotated[int, doc("1 being the likeliest")]


# -- /v1/score ---------------------------------------------------------------------------------


class HowScored(TypedDict):
    """Ours: how the scores were computed."""

    method: Method


class TokensOfScore(TypedDict):
    """Ours: the tokens whose log-probabilities add up to the score."""

    is_greedy: Annotated[bool, doc("whether each token is the likeliest")]
    tokens: list[ScoredToken]


class PairScore(TypedDict):
    """The score of one pair of texts."""

    index: int
    object: Literal["score"]
    score: float
    cutaway: NotRequired[Annotated[TokensOfScore, doc("with trace")]]


class Scores(TypedDict):
    """The score of each pair of texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: TokensRead
    system_fingerprint: str
    cutaway: HowScored


# -- /v1/rerank --------------------------------------------------------------------------------


class RankedDocument(TypedDict):
    """A document as it was sent."""

    text: str


class TracedAnswer(TypedDict):
    """Ours: a whole answer and the tokens that its probability follows from."""

    answer: str
    logprob: Annotated[float, doc("of the whole answer, and of its end if counted")]
    tokens: list[ScoredToken]
    ends: Annotated[
        list[ScoredToken],
        doc("tokens of which each may end the answer; their probabilities add up"),
    ]


class Answered(TypedDict):
    """Ours: what a probability among given answers leaves out."""

    covered: Annotated[float, doc("probability that the model answers with one of these at all")]
    answers: NotRequired[Annotated[list[TracedAnswer], doc("with trace")]]
    prompt: NotRequired[Annotated[str, doc("with trace: what the model read")]]


class Ranked(TypedDict):
    """A document and how relevant it is."""

    index: int
    relevance_score: Annotated[float, doc("by the method: from 0 to 1, or a cosine with the query")]
    document: NotRequired[RankedDocument]
    cutaway: NotRequired[Answered]


class WordingSaid(TypedDict):
    """What the model is asked of each document, and its answers."""

    system: str | None
    user: str
    answers: list[str]


class HowRanked(TypedDict):
    """Ours: how the order was computed."""

    method: Annotated[
        Literal["head", "maxsim", "answers", "cosine"],
        doc(
            "head: 1 / (1 + e^-score) of the model's own head; maxsim: the mean, over the query's "
            "tokens, of the cosine with the document's nearest token; answers: the probability of "
            "the first of two answers, of both; cosine: of the vectors of query and document"
        ),
    ]
    wording: NotRequired[WordingSaid]
    instruction: NotRequired[str]


class Ranking(TypedDict):
    """Documents, the most relevant first."""

    id: str
    model: str
    results: list[Ranked]
    usage: TokensRead
    system_fingerprint: str
    cutaway: HowRanked


# -- /v1/decisions -----------------------------------------------------------------------------


class DecisionPredicate(TypedDict):
    """How likely a statement is true."""

    type: Literal["predicate"]
    name: str | None
    probability: float
    cutaway: Answered


class ValueProbability(TypedDict):
    """The probability of one choice."""

    value: str | bool
    probability: float


class DecisionChoice(TypedDict):
    """The likeliest of the choices."""

    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: Annotated[float, doc("its probability")]
    probabilities: Annotated[list[ValueProbability], doc("in the order asked")]
    cutaway: Answered


class LevelProbability(TypedDict):
    """The probability of one level."""

    value: Annotated[int, doc("its place, from 0 on")]
    label: str
    probability: float


class DecisionScore(TypedDict):
    """A rating by levels."""

    type: Literal["score"]
    name: str | None
    score: Annotated[float, doc("the mean place, weighted by probability")]
    confidence: Annotated[float, doc("probability of the likeliest level")]
    probabilities: list[LevelProbability]
    cutaway: Answered


class HowDecided(TypedDict):
    """Ours: how the probabilities were computed."""

    method: Annotated[
        Literal["whole_answers"],
        doc(
            "of each answer, all its tokens and the end of the model's turn; divided "
            "by what the given answers have together"
        ),
    ]
    system_fingerprint: str


class Decision(TypedDict):
    """An answer to each question, in their order."""

    model: str
    answers: list[DecisionPredicate | DecisionChoice | DecisionScore]
    usage: Annotated[
        ResponseUsage, doc("each question is counted with its input; nothing is written")
    ]
    cutaway: HowDecided
