"""The parser of forms: what clients send, and what nobody should."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.features.batches.endpoints import _header_options, read_form
from cutaway.server.http.errors import ApiError

TYPE = "multipart/form-data; boundary=b"


def form(disposition, content=b"x"):
    head = b"Content-Disposition: " + disposition.encode()
    return b"--b\r\n" + head + b"\r\n\r\n" + content + b"\r\n--b--\r\n"


@pytest.mark.parametrize(
    ("options", "filename"),
    [
        ('name="file"; filename="a b.jsonl"', "a b.jsonl"),
        ("name=file;filename=a.jsonl", "a.jsonl"),
        ('NAME="file" ; FileName = "é;=.jsonl" ', "é;=.jsonl"),
        (r'name="file"; filename="say \"hi\" \\ now"', r'say "hi" \ now'),
        ('name="file"; filename=""', ""),
        ('name="file"', None),
        ('name="file"; filename="a"; filename*=utf-8\'\'b', "a"),
        ('name="file"; filename="a' + ";" * 100, '"a'),
    ],
)
def test_a_part_is_named_as_clients_do(options, filename):
    assert read_form(TYPE, form(f"form-data; {options}")) == {"file": (filename, b"x")}


@given(st.lists(st.tuples(st.text("ab", min_size=1), st.text('a;=" \\é')), max_size=4))
def test_quoted_values_are_read_as_they_were_written(options):
    quoted = ((name, value.replace("\\", "\\\\").replace('"', '\\"')) for name, value in options)
    value = "; ".join(["form-data", *(f'{name}="{value}"' for name, value in quoted)])
    assert _header_options(value) == ("form-data", dict(options))


HOSTILE = {
    "semicolons": 'form-data; name="file"; filename="a"' + ";" * 1_000_000,
    "quotes": 'form-data; name="file"; a=' + '";a="' * 200_000,
    "spaces": "form-data; name" + " " * 1_000_000,
    "lines": "form-data; x\r\na: b" * 50_000,
}


@pytest.mark.parametrize("disposition", HOSTILE.values(), ids=HOSTILE)
def test_a_long_head_is_refused_at_once(disposition):
    began = time.process_time()
    with pytest.raises(ApiError, match=r"headers of a part have .* bytes; at most 8192"):
        read_form(TYPE, form(disposition))
    assert time.process_time() - began < 1


@pytest.mark.parametrize("options", [";" * 8000, ';a="' * 2000, ";a=" + '"' * 7000, "; " * 4000])
def test_the_longest_head_takes_no_time(options):
    began = time.process_time()
    with pytest.raises(ApiError, match="Content-Disposition"):
        read_form(TYPE, form("form-data" + options))
    assert time.process_time() - began < 0.5


def test_a_body_of_boundaries_is_refused_at_once():
    with pytest.raises(ApiError, match="more than 32 parts"):
        read_form(TYPE, b"--b\r\n" * 800_000 + b"--b--")
