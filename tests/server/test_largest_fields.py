"""Every field, header and part at its largest size: others are answered beside it.

What is asked is found in the server's routes, so that a new field is among it by itself
(bench/request_fields.py). bench/largest_fields.py writes what each makes others wait.
"""

import os

import httpx
import pytest

from asked_beside import Beside
from cutaway import LLM
from cutaway.server.app import ROUTERS
from cutaway.server.http.settings import ServerSettings
from largest_fields import rows
from request_fields import places
from support.served import serve

# Processor seconds of the whole server while /health waits: 0.25 is the aim on an idle machine.
MOST_S = 1.0
PATHS = [*sorted({route.path for router in ROUTERS for route in router.routes}), "any"]


@pytest.fixture(scope="module")
def every_place():
    return [*places()]


@pytest.fixture(scope="module")
def asked(tiny_path, tmp_path_factory):
    """What asks a server with all its endpoints, and what asks for its health beside that."""
    settings = ServerSettings(batches=tmp_path_factory.mktemp("batches"))
    with (
        serve(LLM(tiny_path, threads=1, progress=False), settings) as served,
        Beside(served.url, os.getpid(), of_texts=False) as beside,
        httpx.Client(base_url=served.url, timeout=120) as client,
    ):
        yield client, beside


def check(asked, wanted):
    for place, content, status, waited in rows(*asked, wanted):
        said = f"{place.endpoint} {place.name}, {content}"
        assert status < 500, f"{said}: {status}"
        assert waited.health < MOST_S, f"{said}: /health waited for {waited.health:.2f} s"


def test_what_is_asked_has_every_endpoint_and_kind(every_place):
    """And fields at any depth."""
    found = {(place.endpoint, place.name) for place in every_place}
    assert found >= {
        ("POST /v1/chat/completions", "messages[0].content[0].text"),
        ("POST /v1/completions", "denoise.block"),
        ("POST /v1/responses", "input[0].content"),
        ("POST /v1/messages", "tools[0].input_schema"),
        ("POST /api/generate", "options.num_predict"),
        ("POST /page/practice", "start"),
        ("POST /v1/files", "head of file"),
        ("GET /v1/models/{name}", "name"),
        ("any", "header authorization"),
        ("any", "header x-request-id"),
    }
    with_body = {
        route.path
        for router in ROUTERS
        for route in router.routes
        if getattr(route, "body_field", None)
    }
    assert with_body <= {place.endpoint.rpartition(" ")[2] for place in every_place}


def test_health_is_answered_beside_some(asked, every_place):
    """Two contents of each 250th place; the slow test has all of all."""
    check(asked, [place._replace(contents=_first(place)) for place in every_place[::250]])


def _first(place):
    return lambda: iter([*place.contents()][:2])


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_health_is_answered_beside_each(asked, every_place, path):
    check(asked, [place for place in every_place if place.endpoint.rpartition(" ")[2] == path])
