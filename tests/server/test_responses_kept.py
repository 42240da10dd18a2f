"""Answers of /v1/responses that later requests continue, through OpenAI's own client."""

import json

import openai
import pytest

from cutaway import LLM
from cutaway.server.http.errors import ApiError
from cutaway.server.http.settings import ServerSettings
from cutaway.server.openai.responses_request import KeptResponses, conversation
from support.responses_client import LONG, MULTI_LINE, WIDE, asked, client_of
from support.served import serve

IDS = {"ours": {"return_token_ids": True}}
MESSAGE = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": [{"a": 1}]}],
}  # fmt: skip


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_continued_as_if_all_had_been_sent(strict_client, stream):
    create = strict_client.responses.create

    def answer(*seed, **more):
        given = asked(*seed, **more)
        if not stream:
            return create(**given)
        *_, last = create(**given, stream=True)
        return last.response

    first = answer(WIDE, instructions="not taken over")
    second = answer(MULTI_LINE, input="then", previous_response_id=first.id)
    third = answer(LONG, input="and", previous_response_id=second.id, instructions="b", **IDS)
    turns = [{"role": "user", "content": text} for text in ("ab", "then", "and")]
    whole = [turns[0], *first.output, turns[1], *second.output, turns[2]]
    sent = create(**asked(LONG, input=whole, instructions="b", **IDS))
    assert third.prompt_token_ids == sent.prompt_token_ids
    assert third.output_text == sent.output_text
    assert (third.previous_response_id, sent.previous_response_id) == (second.id, None)
    assert third.store and third.instructions == "b"


def test_whoever_sends_anothers_request_id_replaces_no_answer(strict_client):
    create, mine = strict_client.responses.create, {"x-request-id": "session-42"}
    first = create(**asked(input="one"), extra_headers=mine)
    other = create(**asked(input="another"), extra_headers=mine)
    assert first.id != other.id and first.id.startswith("resp_session-42-")
    assert strict_client.responses.retrieve(first.id).output_text == first.output_text


def test_an_answer_has_several_continuations(strict_client):
    create = strict_client.responses.create
    first = create(**asked())
    one, other = (
        create(**asked(input=text, previous_response_id=first.id, **IDS)) for text in ("a", "b")
    )
    assert one.prompt_token_ids != other.prompt_token_ids
    assert create(**asked(previous_response_id=one.id)).previous_response_id == one.id


def test_a_kept_answer_is_returned_until_it_is_deleted(strict_client):
    responses = strict_client.responses
    first = responses.create(**asked(metadata={"k": "v"}))
    assert responses.retrieve(first.id).to_dict() == first.to_dict()
    responses.delete(first.id)
    for gone in (
        lambda: responses.retrieve(first.id),
        lambda: responses.delete(first.id),
        lambda: responses.create(**asked(previous_response_id=first.id)),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            gone()


def test_what_is_not_to_be_stored_is_not(strict_client):
    first = strict_client.responses.create(**asked(store=False))
    assert first.store is False
    with pytest.raises(openai.NotFoundError, match="send the whole conversation") as refused:
        strict_client.responses.create(**asked(previous_response_id=first.id))
    assert refused.value.param == "previous_response_id"
    assert refused.value.code == "response_not_found"


def test_a_conversation_that_has_become_too_long_is_refused(strict_client):
    first = strict_client.responses.create(**asked(max_output_tokens=None, temperature=0.0))
    with pytest.raises(openai.BadRequestError) as refused:
        strict_client.responses.create(**asked(previous_response_id=first.id))
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("limit", [0, 100])
def test_answers_for_which_there_is_no_room_say_so(tiny_path, limit):
    settings = ServerSettings(keep_responses=limit)
    with serve(LLM(tiny_path, threads=1), settings) as served, client_of(served) as client:
        first = client.responses.create(**asked())
        *_, last = client.responses.create(**asked(), stream=True)
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
