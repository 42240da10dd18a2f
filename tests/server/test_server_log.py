"""The server's lines: one for each event, whatever is in it and wherever it goes."""

import io
import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.server.http import log

NAMES = ("cutaway.server", "uvicorn.error", "uvicorn.access", "asyncio")
REQUEST = {
    "id": "r1", "client": "127.0.0.1", "method": "POST", "path": "/v1/completions",
    "status": 200, "seconds": 0.123456,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def loggers_as_they_were():
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(x.handlers[:], x.level, x.propagate) for x in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def lines(mode: log.Mode, name: str = "here", /, *, stream=None, **fields) -> list[str]:
    stream = stream or io.StringIO()
    log.configure(mode, stream)
    log.event(name, **fields)
    return stream.getvalue().split("\n")[:-1]


def only(mode: log.Mode, name: str = "here", /, **fields) -> str:
    (line,) = lines(mode, name, **fields)
    return line


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


# -- json --------------------------------------------------------------------------------------


def test_a_line_of_json_begins_with_when_how_bad_and_what():
    line = only("json", "model loaded", level=logging.WARNING, seconds=1.5, name="é")
    assert list(json.loads(line)) == ["time", "level", "event", "seconds", "name"]
    told = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {"level": "warning", "event": "model loaded", "seconds": 1.5, "name": "é"}
    assert "é" in line


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(), some, max_size=3),
    max_leaves=8,
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@given(ANY)
def test_whatever_a_field_holds_is_one_line_of_json(value):
    line = only("json", value=value)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
    line.encode("utf-8")
    json.loads(line, parse_constant=refuse)


def test_a_field_cannot_pretend_to_be_another_event():
    told = json.loads(only("json", "real", event="forged", time="never"))
    assert told["event"] == "real" and told["time"] != "never"


def test_an_exception_is_a_sentence_and_a_traceback():
    told = json.loads(only("json", error=raised(ValueError("no\nway"))))
    assert told["error"] == "ValueError: no\nway"
    assert "in raised" in told["traceback"] and told["traceback"].startswith("Traceback")


def test_json_for_a_stream_that_is_not_utf_8_is_ascii():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "latin-1", errors="backslashreplace")
    log.configure("json", stream)
    log.event("here", name="é漢")
    assert json.loads(raw.getvalue())["name"] == "é漢"


# -- human -------------------------------------------------------------------------------------


def test_a_line_for_people():
    line = only("human", "ready", port=8000, host="a b", none="", many=["x", "y z"])
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d\.\d{3} info    ready        port=8000 host="a b" none="" many=x,"y z"',
        line,
    )


@given(st.text(), st.text())
def test_a_value_cannot_begin_a_line_or_steer_a_terminal(one, other):
    line = only("human", one=one, other=other)
    assert line.isprintable()


def test_values_stay_apart():
    tricky = only("human", user='x" status="200')
    assert tricky.endswith(r'user="x\" status=\"200"')


def test_a_traceback_is_indented_and_escaped():
    head, *trace = lines("human", error=raised(ValueError("no\n00:00:00 forged\x1b[31m")))
    assert head.endswith(r'error="ValueError: no\n00:00:00 forged\x1b[31m"')
    assert trace and all(row.startswith("    ") and row.isprintable() for row in trace)


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_on_a_terminal_that_wants_it(monkeypatch, variable, value):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31merror" in only("human", level=logging.ERROR, stream=Terminal())
    assert "\x1b" not in only("human", level=logging.ERROR, stream=io.StringIO())
    monkeypatch.setenv(variable, value)
    assert "\x1b" not in only("human", level=logging.ERROR, stream=Terminal())


def test_characters_that_the_stream_lacks_are_escaped():
    raw = io.BytesIO()
    log.configure("human", io.TextIOWrapper(raw, "ascii", errors="strict"))
    log.event("here", name="é")
    assert raw.getvalue().endswith(b"name=\\xe9\n")


# -- requests ----------------------------------------------------------------------------------


def test_a_request_without_text():
    stream = io.StringIO()
    log.configure("json", stream)
    log.access(**REQUEST)
    told = json.loads(stream.getvalue())
    del told["time"]
    assert told == {"level": "info", "event": "request", **REQUEST, "seconds": 0.1235}


def test_a_request_with_text_tells_its_figures_and_not_its_prompt():
    stream = io.StringIO()
    log.configure("json", stream)
    figures = {
        "model": "smollm2", "prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 4,
        "finish_reasons": ["max_tokens", "aborted"], "queue_s": 0.5, "ttft_s": 0.75, "user": "u",
    }  # fmt: skip
    log.access(**REQUEST, **figures)
    told = json.loads(stream.getvalue())
    assert {name: told[name] for name in figures} == figures
    assert "prompt" not in told
    with pytest.raises(TypeError):
        log.access(**REQUEST, messages=["secret"])
    log.access(**REQUEST, prompt="wanted")
    assert json.loads(stream.getvalue().splitlines()[-1])["prompt"] == "wanted"


@pytest.mark.parametrize(("status", "level"), [(200, "info"), (499, "info"), (500, "warning")])
def test_a_failure_of_ours_is_a_warning(status, level):
    stream = io.StringIO()
    log.configure("json", stream)
    log.access(**REQUEST | {"status": status})
    assert json.loads(stream.getvalue())["level"] == level


@pytest.mark.parametrize(
    ("path", "status", "written"),
    [("/static/js/main.js", 200, 0), ("/static/none.js", 404, 1), ("/", 200, 1)],
)
def test_the_files_of_the_page_are_not_told(path, status, written):
    """One load of it is a hundred of them."""
    stream = io.StringIO()
    log.configure("json", stream)
    log.access(**REQUEST | {"path": path, "status": status})
    assert len(stream.getvalue().splitlines()) == written


# -- loggers and streams -----------------------------------------------------------------------


def test_configured_twice_a_line_comes_once_and_at_the_new_place():
    first, second = io.StringIO(), io.StringIO()
    log.configure("human", first)
    log.configure("json", second)
    log.event("here")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_the_root_and_others_are_left_alone():
    root, other = logging.getLogger(), logging.Handler()
    before = root.handlers[:], root.level
    logging.getLogger("uvicorn.error").addHandler(other)
    log.configure("json", io.StringIO())
    assert (root.handlers, root.level) == before
    assert other in logging.getLogger("uvicorn.error").handlers


def test_uvicorn_speaks_of_trouble_alone():
    stream = io.StringIO()
    log.configure("json", stream)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 1)
    logging.getLogger("uvicorn.access").info("GET / 200")
    assert not logging.getLogger("uvicorn.access").propagate
    logging.getLogger("uvicorn.error").error("Exception in %s\n", "it", exc_info=raised(OSError()))
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert (told["event"], told["message"]) == ("uvicorn.error", "Exception in it")
    assert told["error"] == "OSError" and "in raised" in told["traceback"]


def test_off_is_silent(capsys):
    log.configure("off")
    log.event("here", level=logging.ERROR)
    logging.getLogger("uvicorn.error").error("trouble")
    assert capsys.readouterr() == ("", "")


def test_the_stream_is_standard_error_as_it_is_now(capsys):
    log.configure("human")
    log.event("here")
    assert "here" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["human", "json"])
def test_a_closed_stream_ends_nothing(mode, capsys):
    stream = io.StringIO()
    log.configure(mode, stream)
    stream.close()
    log.event("here")
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_ends_nothing(capsys):
    stream = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closing it fails, too
    log.configure("json", stream)
    log.event("here")
    with pytest.raises(OSError, match="No space"):
        stream.close()
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_ours_is_not_taken_for_a_full_disk(capsys):
    class Broken:
        def __str__(self) -> str:
            raise KeyError("broken")

    log.configure("human", io.StringIO())
    log.event("here", value=Broken())
    assert "KeyError" in capsys.readouterr().err
