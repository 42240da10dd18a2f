"""``/lessons``: pages that share one script, and need neither a key nor a model."""

import pytest
from starlette.testclient import TestClient

from cutaway import AsyncLLM
from cutaway.features.lessons import LESSONS
from cutaway.features.lessons.lesson import read
from cutaway.server.app import create_app
from cutaway.server.http.settings import ServerSettings
from cutaway.trace.web.bundle import served_files


@pytest.fixture(scope="module")
def client():
    app = create_app(AsyncLLM("toy-writer"), ServerSettings(api_key="secret"))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def test_the_index_names_each_lesson(client):
    answer = client.get("/lessons")
    assert answer.status_code == 200
    for name in LESSONS:
        assert f'href="lessons/{name}"' in answer.text


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_contains_its_runs_and_fetches_the_script_of_all(client, name):
    answer = client.get(f"/lessons/{name}")
    assert answer.status_code == 200
    assert answer.text.count('class="trace"') == len(read(name).runs)
    address = f"/{served_files().folder}/viewer.js"
    assert f'src="..{address}"' in answer.text
    assert client.get(address).headers["cache-control"].endswith("immutable")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert int(answer.headers["content-length"]) < 350_000  # as gzip


@pytest.mark.parametrize("path", ["/lessons", "/class"])
def test_a_slash_at_the_end_is_forgiven(client, path):
    answer = client.get(f"{path}/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, f"..{path}")
    assert client.get(f"{path}/").url.path == path


def test_an_unknown_lesson_is_not_found(client):
    answer = client.get("/lessons/luck")
    assert answer.status_code == 404
    assert "there is no lesson 'luck': GET /lessons lists them" in answer.text
