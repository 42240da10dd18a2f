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
    """At this scale a result is a whole file, so each later result is known, and is not cut."""
    messages = make_session(15, lambda text: len(text.split())).turns[-1].messages
    files: dict[str, list[str]] = {}
    checked = dict.fromkeys(("search", "read_file", "run_tests"), 0)
    for call, result in pairwise(messages):
        if not call.get("tool_calls"):
            continue
        function = call["tool_calls"][0]["function"]
        arguments = json.loads(function["arguments"])
        path, name, line = arguments["path"], function["name"], arguments.get("line", 1)
        seen = result["content"].split("; ")
        if name == "read_file":
            first = len(seen) - line + 1
            whole = [*seen[first:], *seen[:first]]
            checked[name] += files.setdefault(path, whole) == whole
            assert files[path] == whole
        elif path in files and name == "edit_file":
            files[path][line - 1] = arguments["text"]
        elif path in files:
            lines = {
                "search": [text for text in files[path] if arguments.get("word", "") in text],
                "run_tests": [f"test of {text.split()[0]} passed" for text in files[path]],
            }
            assert seen == lines[name]
            checked[name] += 1
    assert all(count > 4 for count in checked.values())
