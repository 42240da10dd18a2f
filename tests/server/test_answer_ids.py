"""The ids of answers: no two are equal, whatever the client calls its requests."""

import pytest

from support.thoughts import ASK

ANSWERED = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/messages": {"messages": ASK, "max_tokens": 1},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"], "method": "cosine"},
}


@pytest.mark.parametrize("path", ANSWERED)
def test_one_request_id_sent_twice_gives_two_ids(client, path):
    headers = {"x-request-id": "same-id"}
    answers = [client.post(path, json=ANSWERED[path], headers=headers) for _ in range(2)]
    ids = [answer.json()["id"] for answer in answers]
    assert all("same-id-" in id for id in ids), answers[0].text
    assert ids[0] != ids[1]
    assert {answer.headers["x-request-id"] for answer in answers} == {"same-id"}
