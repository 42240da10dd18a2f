"""The middleware: who may send requests, and what each request is called."""

import re
from socket import gethostname

import pytest

from cutaway.errors import InputError
from cutaway.server.http.guard import OPEN_PATHS, Guard
from support.asgi_client import Done, Echo, call, scope_of

BEARER = {"authorization": "Bearer sesame"}


# -- the name of a request ---------------------------------------------------------------------


@pytest.mark.parametrize("id", ["a", "A.b_c-9", "x" * 128])
def test_the_clients_name_for_a_request_is_kept(id):
    app = Echo()
    answer = call(Guard(app), scope_of(headers={"x-request-id": id}))
    assert answer.header("x-request-id") == id == app.seen[0]["state"]["request_id"]
    assert answer.header("x-kept") == "1"


@pytest.mark.parametrize("id", ["", "a b", "x" * 129, "a\n", "ä", "a/b"])
def test_any_other_name_is_replaced(id):
    app = Echo()
    answers = [call(Guard(app), scope_of(headers={"x-request-id": id})) for _ in range(2)]
    ids = [answer.header("x-request-id") for answer in answers]
    assert all(re.fullmatch("[0-9a-f]{32}", made) for made in ids)
    assert len({*ids}) == 2
    assert ids == [scope["state"]["request_id"] for scope in app.seen]


def test_the_states_of_the_server_are_kept():
    app = Echo()
    call(Guard(app), scope_of() | {"state": {"engine": 1}})
    assert app.seen[0]["state"].keys() == {"engine", "request_id"}


# -- host names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "box.lan:1",
        "192.168.1.5:8000", "[fe80::1%25eth0]:8000", "10.0.0.1", f"{gethostname()}:8000",
    ],
)  # fmt: skip
def test_local_and_allowed_names_pass(host):
    guard = Guard(Echo(), allow_hosts=["Box.lan:8000"])
    assert call(guard, scope_of(headers={"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "[::1",
        "localhost:x",
        "",
        "1.2.3",
        "0x7f.0.0.1",
        "[evil.example]",
        "::1",
        "[127.0.0.1]",
        "127.0.0.1.",
        "host.local",
    ],
)
def test_another_name_is_refused(host):
    app = Echo()
    answer = call(Guard(app, allow_hosts=()), scope_of(headers={"host": host}))
    assert (answer.status, app.seen) == (403, [])
    assert answer.error()["code"] == "host_not_allowed"
    assert "--allow-host" in answer.error()["message"]
    assert answer.header("x-request-id")
    assert call(Guard(app), scope_of(headers={"host": host})).status == 200


def test_a_request_without_a_host_is_refused():
    assert call(Guard(Echo(), allow_hosts=()), scope_of()).status == 403


# -- the key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["Bearer sesame", "bearer sesame", "BEARER  sesame "])
def test_who_has_the_key_passes(given):
    guard = Guard(Echo(), api_key="sesame")
    assert call(guard, scope_of(path="/v1", headers={"authorization": given})).status == 200


@pytest.mark.parametrize(
    "given",
    [None, "", "sesame", "Bearer", "Bearer sesam", "Bearer sesame2", "Basic sesame", "Bearer é"],
)
def test_who_has_not_is_refused_and_the_key_is_not_told(given):
    app, done = Echo(), Done()
    headers = {} if given is None else {"authorization": given}
    guard = Guard(app, api_key="sesame", done=done)
    answer = call(guard, scope_of(path="/v1", headers=headers))
    assert (answer.status, app.seen, done) == (401, [], [401])
    assert answer.header("www-authenticate") == "Bearer"
    assert answer.error()["code"] == "invalid_api_key"
    assert answer.error()["type"] == "authentication_error"
    assert b"sesam" not in answer.body
    assert answer.header("x-request-id")
    assert answer.header("connection") is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "sesame"}, 200),
        ({"x-api-key": "sesame", "authorization": "Bearer other"}, 200),
        ({"x-api-key": "other", "authorization": "Bearer sesame"}, 200),
        ({"x-api-key": "Bearer sesame"}, 401),
        ({"x-api-key": "sesam"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_the_key_may_come_as_anthropics_clients_send_it(headers, status):
    guard = Guard(Echo(), api_key="sesame")
    assert call(guard, scope_of(path="/v1", headers=headers)).status == status


def test_a_key_may_have_any_characters():
    guard = Guard(Echo(), api_key="schlüssel-日本")
    given = "Bearer schlüssel-日本".encode().decode("latin-1")
    assert call(guard, scope_of(path="/v1", headers={"authorization": given})).status == 200
    assert call(guard, scope_of(path="/v1", headers=BEARER)).status == 401


@pytest.mark.parametrize("key", ["", " ", "two words", "sesame\n"])
def test_a_key_that_no_client_could_send_is_refused(key):
    with pytest.raises(InputError, match="one word"):
        Guard(Echo(), api_key=key)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/health", 200),
        ("/ready", 200),
        ("/static/a.js", 200),
        ("/static/", 200),
        ("/static", 401),
        ("/healthy", 401),
        ("/health/", 401),
        ("//", 401),
        ("/v1/models", 401),
        ("/metrics", 401),
    ],
)
def test_open_paths_need_no_key(path, status):
    guard = Guard(Echo(), api_key="sesame", open_paths=(*OPEN_PATHS, "/static/"))
    assert call(guard, scope_of(path=path)).status == status


def test_a_preflight_needs_no_key_and_a_bare_options_does():
    guard = Guard(Echo(), api_key="sesame")
    asked = {"origin": "http://a", "access-control-request-method": "POST"}
    assert call(guard, scope_of("OPTIONS", "/v1", asked)).status == 200
    assert call(guard, scope_of("POST", "/v1", asked)).status == 401
    assert call(guard, scope_of("OPTIONS", "/v1", {"origin": "http://a"})).status == 401
