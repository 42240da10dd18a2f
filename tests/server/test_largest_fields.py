"""Every field at the largest size that a body may have: `/health` is answered beside it."""

import json
import time
from threading import Event, Thread

import httpx
import pytest

from cutaway.server.openai.chat import ChatRequest
from cutaway.server.openai.completions import CompletionRequest

pytestmark = [pytest.mark.slow, pytest.mark.model]

SIZE = (4 << 20) - 4096
MOST_S = 10.0  # of a busy machine; what is quadratic takes minutes
MESSAGES = [{"role": "user", "content": "a"}]
FORMS = {
    "/v1/completions": (CompletionRequest, {"prompt": "a", "max_tokens": 1}),
    "/v1/chat/completions": (ChatRequest, {"messages": MESSAGES, "max_completion_tokens": 1}),
}
FIELDS = [
    (path, field.alias or name)
    for path, (form, _) in FORMS.items()
    for name, field in form.model_fields.items()
]
CONTENTS = {
    "digits": "1" * SIZE + "a",
    "spaces": " " * SIZE + "1",
    "letters": "a" * SIZE,
    "parentheses": "(" * (SIZE // 2) + ")" * (SIZE // 2),
    "numbers": [*range(SIZE // 9)],
    "bytes": [0] * (SIZE // 3),
    "words": [f"w{i:0>7}" for i in range(SIZE // 12)],
    "lists": [[]] * (SIZE // 4),
    "names": {f"{i:0>7}": i for i in range(SIZE // 21)},
    "objects": [{"role": "user", "content": "a"}] * (SIZE // 34),
    "few words": [f"ÿ{i:0>3}" for i in range(500)],
    "few names": {str(i): 1 for i in range(500)},
}


class Health:
    """Asks for a server's health as often as it answers, in a thread; ``worst`` in seconds."""

    def __init__(self, url):
        self._url, self._over, self.worst = f"{url}/health", Event(), 0.0
        self._thread = Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _ask(self):
        with httpx.Client(timeout=60) as client:
            while not self._over.wait(0.01):
                asked = time.monotonic()
                assert client.get(self._url).status_code == 200
                self.worst = max(self.worst, time.monotonic() - asked)


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_health_is_answered_beside_it(smollm2, path, field):
    with Health(smollm2.url) as health, httpx.Client(timeout=120) as client:
        for name, content in CONTENTS.items():
            body = json.dumps({**FORMS[path][1], field: content}, separators=(",", ":"))
            health.worst = 0.0
            headers = {"content-type": "application/json"}
            status = client.post(f"{smollm2.url}{path}", content=body, headers=headers).status_code
            assert status < 500, f"{name}: {status}"
            assert health.worst < MOST_S, f"{name}: {health.worst:.1f} s"
