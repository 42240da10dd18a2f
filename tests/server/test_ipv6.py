"""``cutaway serve`` at addresses of IPv6: the URL that it names answers, to its own names alone."""

import socket
from contextlib import closing

import httpx
import pytest

from support.server_processes import server

HERE = "[::1]"


@pytest.fixture(scope="module", autouse=True)
def ipv6():
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
            pass
    except OSError as error:
        pytest.skip(f"needs IPv6: {error}")


def test_requests_under_its_own_names_are_answered(tiny_path):
    with server(tiny_path, host="::1", host_of_url=HERE) as (_, url):
        port = url.rpartition(":")[2]

        def status(host):
            return httpx.get(f"{url}/v1/models", headers={"Host": host}).status_code

        # An address is nobody's domain, so it cannot be made to point here.
        for name in (f"{HERE}:{port}", HERE, f"localhost:{port}", f"[::2]:{port}"):
            assert status(name) == 200, name
        for name in ("::1", "example.org"):
            assert status(name) == 403, name


def test_the_url_of_all_addresses_is_one_that_answers(tiny_path):
    with server(tiny_path, host="::", host_of_url=HERE) as (_, url):
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
