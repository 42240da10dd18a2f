"""/v1/responses through OpenAI's own client, which checks the types of all that it is told."""

import json

import openai
import pytest

from cutaway import LLM
from cutaway.server.http.errors import ApiError
from cutaway.server.http.settings import ServerSettings
from cutaway.server.openai.responses_request import KeptResponses, ResponsesRequest, conversation
from support.responses_client import DELTA, LONG, MULTI_LINE, WIDE, client_of, make_request
from support.served import serve

BEGINNING = [
    "response.created", "response.in_progress", "response.output_item.added",
    "response.content_part.added",
]  # fmt: skip
ENDING = [
    "response.output_text.done", "response.content_part.done", "response.output_item.done",
]  # fmt: skip
LOGPROBS = ["message.output_text.logprobs"]


def lasting(response):
    """What does not depend on when it was asked."""
    told = response.to_dict()
    for name in ("id", "created_at", "completed_at", "usage"):  # of the cache
        told.pop(name, None)
    told["output"][0].pop("id")
    told["cutaway"].pop("timing")
    return told


# -- the text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [MULTI_LINE, LONG, WIDE])
def test_every_way_to_ask_gives_the_same_text(strict_client, tiny_alone, seed):
    said = [{"role": "system", "content": "b"}, {"role": "user", "content": "ab\nb"}]
    expected = tiny_alone.chat(said, seed=seed, temperature=1.0, max_tokens=60)
    keywords = make_request(seed, said[1:], instructions="b", ours={"return_token_ids": True})
    whole = strict_client.responses.create(**keywords)
    *_, last = strict_client.responses.create(**keywords, stream=True)
    chat = strict_client.chat.completions.create(
        model="tiny", messages=said, temperature=1.0, max_tokens=60,
        extra_body={"seed": seed, "return_token_ids": True},
    ).choices[0]  # fmt: skip
    assert whole.output_text == chat.message.content == expected.text
    assert tuple(whole.prompt_token_ids) == expected.prompt_token_ids
    assert whole.prompt_token_ids == chat.prompt_token_ids
    assert tuple(whole.token_ids) == expected.token_ids
    assert whole.cutaway["fingerprint"] == chat.cutaway["fingerprint"] == expected.fingerprint
    assert lasting(whole) == lasting(last.response)


async def test_asynchronous_clients_are_told_the_same(tiny, strict_client):
    whole = strict_client.responses.create(**make_request())
    async with client_of(tiny, openai.AsyncOpenAI) as other:
        answer = await other.responses.create(**make_request())
        stream = await other.responses.create(**make_request(), stream=True)
        events = [event async for event in stream]
    assert lasting(answer) == lasting(events[-1].response) == lasting(whole)
    assert "".join(e.delta for e in events if e.type == DELTA) == whole.output_text


def test_an_earlier_answer_can_be_sent_back(strict_client):
    first = strict_client.responses.create(**make_request(WIDE, include=LOGPROBS, top_logprobs=1))
    with strict_client.responses.stream(**make_request(WIDE)) as stream:
        streamed = stream.get_final_response()
    turns = [{"role": "user", "content": "ab"}, {"role": "user", "content": "b"}]
    plain = [turns[0], {"role": "assistant", "content": first.output_text}, turns[1]]
    more = {"ours": {"return_token_ids": True}}
    expected, *others = [
        strict_client.responses.create(**make_request(input=said, **more))
        for said in (
            plain,
            [turns[0], *first.output, turns[1]],
            [turns[0], *streamed.output, turns[1]],
            [turns[0], *[item.to_dict() for item in first.output], turns[1]],
            [turns[0], *[item.model_dump() for item in first.output], turns[1]],
        )
    ]
    for other in others:
        assert other.prompt_token_ids == expected.prompt_token_ids
        assert other.output_text == expected.output_text


def test_what_was_read_before_is_told(strict_client):
    text = "the same beginning of at least a block"
    before = strict_client.responses.create(**make_request(input=text)).usage
    usage = strict_client.responses.create(**make_request(input=text)).usage
    details = usage.input_tokens_details
    assert 0 < details.cached_tokens < usage.input_tokens == before.input_tokens
    assert details.cache_write_tokens == usage.input_tokens - details.cached_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


# -- the answer --------------------------------------------------------------------------------


def test_a_text_that_ends_by_itself_is_complete(strict_client):
    response = strict_client.responses.create(**make_request(WIDE))
    assert response.cutaway["finish_reason"] == "end_token"
    assert (response.status, response.output[0].status) == ("completed", "completed")
    assert response.incomplete_details is None
    assert response.completed_at >= response.created_at


def test_a_text_that_is_cut_off_is_incomplete(strict_client):
    response = strict_client.responses.create(**make_request(LONG, max_output_tokens=3))
    assert response.usage.output_tokens == 3
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.completed_at is None


def test_a_text_has_all_the_room_there_is(strict_client):
    response = strict_client.responses.create(
        **make_request(LONG, max_output_tokens=None, temperature=0.0)
    )
    assert response.cutaway["params"]["max_tokens"] == 512 - response.usage.input_tokens


def test_what_was_asked_is_told_again(strict_client):
    given = {
        "metadata": {"k" * 64: "v" * 512, "": ""}, "instructions": "", "user": "somebody",
        "prompt_cache_key": "key", "top_p": 0.5,
    }  # fmt: skip
    harmless = {
        "store": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}}, "truncation": "disabled", "background": False,
        "service_tier": "auto", "stream_options": {"include_obfuscation": False},
        "reasoning": {"summary": "auto"}, "previous_response_id": None, "include": [],
    }  # fmt: skip
    response = strict_client.responses.create(**make_request(**given, **harmless))
    assert {name: getattr(response, name) for name in given} == given
    assert (response.temperature, response.max_output_tokens) == (1.0, 60)
    assert response.cutaway["params_source"]["top_p"] == "given"
    assert response.text.format.type == "text"
    assert not (response.store or response.tools or response.background)


def test_the_newer_name_of_a_user_is_logged_as_the_older():
    assert ResponsesRequest(input="a", safety_identifier="somebody").user == "somebody"


# -- events ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "last"), [(WIDE, "completed"), (LONG, "incomplete")])
def test_events_are_in_order_and_numbered(strict_client, seed, last):
    events = list(strict_client.responses.create(**make_request(seed), stream=True))
    deltas = len(events) - len(BEGINNING) - len(ENDING) - 1
    kinds = [*BEGINNING, *[DELTA] * deltas, *ENDING, f"response.{last}"]
    assert [event.type for event in events] == kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    response, item = events[-1].response, events[-1].response.output[0]
    assert events[0].response.status == events[1].response.status == "in_progress"
    assert events[0].response.id == response.id
    assert events[0].response.cutaway["seeds"] == [seed]
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {item.id}
    assert events[2].item.id == item.id
    text_done, part_done, item_done = events[-4:-1]
    assert text_done.text == part_done.part.text == item.content[0].text == response.output_text
    assert item_done.item == item


@pytest.mark.parametrize("seed", [MULTI_LINE, LONG, WIDE])
def test_pieces_are_whole_letters_and_make_the_text(strict_client, seed):
    events = list(strict_client.responses.create(**make_request(seed), stream=True))
    pieces = [event.delta for event in events if event.type == DELTA]
    text = events[-1].response.output_text
    assert all(pieces) and "".join(pieces) == text
    assert len(pieces) < events[-1].response.usage.output_tokens  # some tokens are parts of letters
    assert ("\n" in text) == (seed == MULTI_LINE)
    assert (max(text) > "\uffff") == (seed == WIDE)


def test_events_have_names_and_no_mark_ends_them(strict_client):
    with strict_client.responses.with_streaming_response.create(
        **make_request(), stream=True
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = answer.read().decode().split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        assert data.startswith('data: {"type":"' + name.removeprefix("event: ") + '"')


def test_log_probabilities_are_those_of_chat(strict_client):
    keywords = make_request(WIDE, include=LOGPROBS, top_logprobs=3)
    events = list(strict_client.responses.create(**keywords, stream=True))
    chat = strict_client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "ab"}], temperature=1.0, max_tokens=60,
        logprobs=True, top_logprobs=3, extra_body={"seed": WIDE},
    )  # fmt: skip
    expected = with_bytes([one.to_dict() for one in chat.choices[0].logprobs.content])
    assert len(expected) > 10 and all(len(one["top_logprobs"]) == 3 for one in expected)
    response = events[-1].response
    assert [one.to_dict() for one in response.output[0].content[0].logprobs] == expected
    pieces = [one.to_dict() for e in events if e.type == DELTA for one in e.logprobs]
    assert pieces == expected
    assert response.top_logprobs == 3


def with_bytes(entries):
    """OpenAI's client wants a list of bytes here, also where a token has none."""
    for one in [token for entry in entries for token in (entry, *entry["top_logprobs"])]:
        one["bytes"] = one["bytes"] or []
    return entries


def test_ids_and_traces_come_with_their_pieces(strict_client):
    keywords = make_request(WIDE, ours={"return_token_ids": True, "trace": True, "candidates": 2})
    whole = strict_client.responses.create(**keywords)
    *events, last = strict_client.responses.create(**keywords, stream=True)
    deltas = [event for event in events if event.type == DELTA]
    assert [i for event in deltas for i in event.token_ids] == whole.token_ids
    assert last.response.token_ids == whole.token_ids
    pieces = [r for e in deltas if hasattr(e, "cutaway") for r in e.cutaway["trace"]]
    streamed = pieces + last.response.cutaway["trace"]
    kinds = [record["kind"] for record in whole.cutaway["trace"]]
    assert [record["kind"] for record in streamed] == kinds
    steps = [record["token_id"] for record in streamed if record["kind"] == "step"]
    assert steps == whole.token_ids


# -- a model that can talk ---------------------------------------------------------------------


@pytest.mark.model
def test_a_conversation_with_smollm2(smollm2):
    with client_of(smollm2) as client:
        name, ours = smollm2.service.names.first, {"seed": 1}
        keywords = {"model": name, "max_output_tokens": 24, "temperature": 0, "extra_body": ours}
        said = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        events = list(client.responses.create(**keywords, input=said, stream=True))
        first = client.responses.create(**keywords, input=said)
        assert lasting(first) == lasting(events[-1].response)
        assert "".join(e.delta for e in events if e.type == DELTA) == first.output_text
        assert "Paris" in first.output_text and first.status == "completed"
        said += [*first.output, {"role": "user", "content": "And of Italy?"}]
        second = client.responses.create(**keywords, input=said)
        plain = [said[0], {"role": "assistant", "content": first.output_text}, said[-1]]
        chat = client.chat.completions.create(
            model=name, messages=plain, temperature=0, max_tokens=24
        ).choices[0]
        assert second.output_text == chat.message.content
        assert second.cutaway["fingerprint"] == chat.cutaway["fingerprint"]
        assert second.usage.input_tokens_details.cached_tokens > 0


def test_agents_ask_for_encrypted_thoughts_which_changes_nothing(strict_client):
    """Codex and inspect-ai do so in every request."""
    encrypted = "reasoning.encrypted_content"
    plain = strict_client.responses.create(**make_request())
    asking = strict_client.responses.create(**make_request(include=[encrypted]))
    assert lasting(asking) == lasting(plain)
    both = strict_client.responses.create(**make_request(include=[encrypted, *LOGPROBS]))
    assert both.output[0].content[0].logprobs


# -- answers that later requests continue ------------------------------------------------------


IDS = {"ours": {"return_token_ids": True}}
MESSAGE = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": [{"a": 1}]}],
}  # fmt: skip


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.elsewhere
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_continued_as_if_all_had_been_sent(strict_client, stream):
    create = strict_client.responses.create

    def answer(*seed, **more):
        given = make_request(*seed, **more)
        if not stream:
            return create(**given)
        *_, last = create(**given, stream=True)
        return last.response

    first = answer(WIDE, instructions="not taken over")
    second = answer(MULTI_LINE, input="then", previous_response_id=first.id)
    third = answer(LONG, input="and", previous_response_id=second.id, instructions="b", **IDS)
    turns = [{"role": "user", "content": text} for text in ("ab", "then", "and")]
    whole = [turns[0], *first.output, turns[1], *second.output, turns[2]]
    sent = create(**make_request(LONG, input=whole, instructions="b", **IDS))
    assert third.prompt_token_ids == sent.prompt_token_ids
    assert third.output_text == sent.output_text
    assert (third.previous_response_id, sent.previous_response_id) == (second.id, None)
    assert third.store and third.instructions == "b"


def test_whoever_sends_anothers_request_id_replaces_no_answer(strict_client):
    create, mine = strict_client.responses.create, {"x-request-id": "session-42"}
    first = create(**make_request(input="one"), extra_headers=mine)
    other = create(**make_request(input="another"), extra_headers=mine)
    assert first.id != other.id and first.id.startswith("resp_session-42-")
    assert strict_client.responses.retrieve(first.id).output_text == first.output_text


def test_an_answer_has_several_continuations(strict_client):
    create = strict_client.responses.create
    first = create(**make_request())
    one, other = (
        create(**make_request(input=text, previous_response_id=first.id, **IDS))
        for text in ("a", "b")
    )
    assert one.prompt_token_ids != other.prompt_token_ids
    assert create(**make_request(previous_response_id=one.id)).previous_response_id == one.id


def test_a_kept_answer_is_returned_until_it_is_deleted(strict_client):
    responses = strict_client.responses
    first = responses.create(**make_request(metadata={"k": "v"}))
    assert responses.retrieve(first.id).to_dict() == first.to_dict()
    responses.delete(first.id)
    for gone in (
        lambda: responses.retrieve(first.id),
        lambda: responses.delete(first.id),
        lambda: responses.create(**make_request(previous_response_id=first.id)),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            gone()


def test_what_is_not_to_be_stored_is_not(strict_client):
    first = strict_client.responses.create(**make_request(store=False))
    assert first.store is False
    with pytest.raises(openai.NotFoundError, match="send the whole conversation") as refused:
        strict_client.responses.create(**make_request(previous_response_id=first.id))
    assert refused.value.param == "previous_response_id"
    assert refused.value.code == "response_not_found"


def test_a_conversation_that_has_become_too_long_is_refused(strict_client):
    first = strict_client.responses.create(**make_request(max_output_tokens=None, temperature=0.0))
    with pytest.raises(openai.BadRequestError) as refused:
        strict_client.responses.create(**make_request(previous_response_id=first.id))
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("limit", [0, 100])
def test_answers_for_which_there_is_no_room_say_so(tiny_path, limit):
    settings = ServerSettings(keep_responses=limit)
    with serve(LLM(tiny_path, threads=1), settings) as served, client_of(served) as client:
        first = client.responses.create(**make_request())
        *_, last = client.responses.create(**make_request(), stream=True)
        assert first.store is last.response.store is False
        with pytest.raises(openai.NotFoundError, match=f"{limit} bytes"):
            client.responses.retrieve(first.id)


# -- what is kept ---------------------------------------------------------------------------------


def test_the_oldest_go_first_and_all_fit():
    def size(kept, id):
        return len(kept.document(id)) + len(json.dumps(plain(kept, id)))

    def plain(kept, id):
        return [one.model_dump(mode="json", exclude_none=True) for one in kept.conversation(id)]

    kept = KeptResponses(2000)
    for i in range(9):
        assert kept.keep(b"x" * 400, f"r{i}", [], [MESSAGE])
    here = [id for id in (f"r{i}" for i in range(9)) if _has(kept, id)]
    assert here == [f"r{i}" for i in range(9 - len(here), 9)] and len(here) > 2
    assert sum(size(kept, id) for id in here) <= 2000 < sum(size(kept, id) for id in here) + 700
    assert not kept.keep(b"x" * 2001, "large", [], [])
    assert _has(kept, "r8") and not _has(kept, "large")


def test_one_id_twice_is_the_later_answer():
    kept = KeptResponses(1000)
    for text in (b"first", b"second"):
        for _ in range(20):  # it takes its room once
            assert kept.keep(text, "same", [], [MESSAGE])
    assert kept.document("same") == b"second"


def test_thoughts_and_calls_are_in_one_turn():
    kept = KeptResponses(10000)
    thought = {
        "type": "reasoning", "id": "rs_1", "summary": [], "status": "completed",
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }  # fmt: skip
    call = {
        "type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}",
        "status": "completed",
    }  # fmt: skip
    kept.keep(b"", "said", [], [thought, MESSAGE, call])
    kept.keep(b"", "called", kept.conversation("said"), [thought, call])
    function = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "reasoning_content": "hm", "tool_calls": [function]}
    assert conversation(kept.conversation("called")) == [
        {**turn, "content": "b"},
        {**turn, "content": ""},
    ]


def _has(kept, id):
    try:
        kept.document(id)
    except ApiError:
        return False
    return True
