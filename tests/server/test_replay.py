"""Answers that go on where they were cut: whole, the same, and an error where they would not be."""

import json

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {
    TEXT: {"prompt": "ab"},
    CHAT: {"messages": [{"role": "user", "content": "ab"}]},
    "/v1/responses": {"input": "ab"},
}
MORE = {"seed": 5, "temperature": 1.2}


def asked(path, **more):
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    ids = {} if "responses" in path else {"return_token_ids": True}
    return ASKED[path] | MORE | {limit: 30} | ids | more


def told(client):
    choice = client.post(TEXT, json=asked(TEXT, ignore_eos=True)).json()["choices"][0]
    return choice["token_ids"]


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("cut", [0, 1, 20, 30])
def test_an_answer_with_a_replay_is_whole(client, path, cut):
    whole = client.post(path, json=asked(path, ignore_eos=True)).json()
    [choice] = whole["choices"]
    assert len(choice["token_ids"]) == 30
    more = {"ignore_eos": True, "replay": choice["token_ids"][:cut]}
    [again] = client.post(path, json=asked(path, **more)).json()["choices"]
    assert again["token_ids"] == choice["token_ids"]
    assert again.get("text", again.get("message")) == choice.get("text", choice.get("message"))
    assert again["cutaway"]["fingerprint"] == choice["cutaway"]["fingerprint"]


def events(client, path, **more):
    with client.stream("POST", path, json=asked(path, stream=True, **more)) as stream:
        return [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]


def test_a_stream_with_a_replay_tells_all_of_it_again(client):
    ids = told(client)
    whole = events(client, TEXT, ignore_eos=True)
    again = events(client, TEXT, ignore_eos=True, replay=ids[:17])
    assert tokens(again) == tokens(whole) == ids
    ends = [one[-1]["choices"][0]["cutaway"]["fingerprint"] for one in (whole, again)]
    assert ends[0] == ends[1]


def tokens(told):
    return [i for event in told for choice in event["choices"] for i in choice.get("token_ids", [])]


@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/responses"])
def test_one_that_differs_is_told_where(client, path):
    answer = client.post(path, json=asked(path, replay=[5, 5]))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (409, "replay")
    assert error["code"] == "replay_differs"
    assert error["message"].startswith("replay: token ")


def test_in_a_stream_an_event_says_so_and_nothing_follows(client):
    ids = told(client)
    *_, last = events(client, TEXT, ignore_eos=True, replay=[*ids[:9], ids[9] ^ 1])
    assert last["error"]["code"] == "replay_differs"
    assert last["error"]["message"].startswith("replay: token 9 is ")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"replay": [1] * 31}, "replay has 31 token ids, and max_tokens is 30"),
        ({"replay": [1], "n": 2}, "replay is of one text: leave out n"),
        ({"replay": [1], "prompt": ["a", "b"]}, "replay is of one text: ask for one prompt"),
        ({"replay": [1], "forced": [2]}, "replay: token 0 is 1, and forced has 2 there"),
        ({"replay": [9999]}, "replay: token id 9999 is not between 0 and "),
    ],
)
def test_what_cannot_be_is_refused_by_name(client, more, sentence):
    answer = client.post(TEXT, json=asked(TEXT, **more))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(sentence)
    assert answer.json()["error"]["param"] == "replay"
