"""bench/agent_session.py: the same session each time, whose calls satisfy their schemas."""

import json
from itertools import pairwise

import jsonschema

from agent_session import make_session


def test_a_session_has_its_turns_and_calls_by_schema():
    session = make_session(0.02, lambda text: len(text.split()))
    assert (len(session.turns), len(session.tools)) == (60, 40)
    assert session == make_session(0.02, lambda text: len(text.split()))
    calls = [
        call["function"]
        for message in session.turns[-1].messages
        for call in message.get("tool_calls", ())
    ]
    assert [call["name"] for call in calls] == [turn.tool for turn in session.turns[:-1]]
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), session.parameters(call["name"]))


def test_each_turn_continues_the_one_before():
    turns = make_session(0.02, len).turns
    for earlier, turn in pairwise(turns):
        assert turn.messages[: len(earlier.messages)] == earlier.messages


def test_what_is_read_has_the_edits_before_it():
    messages = make_session(1, lambda text: len(text.split())).turns[-1].messages
    edits = [
        json.loads(message["tool_calls"][0]["function"]["arguments"])["text"]
        for message in messages
        if message.get("tool_calls") and "text" in message["tool_calls"][0]["function"]["arguments"]
    ]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert all(any(text in result for result in results) for text in edits)
