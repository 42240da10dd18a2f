"""JSON without liberties: what is refused, and that the rest is what json reads."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.base.strict_json import MAX_DEPTH, MAX_NESTS, MAX_VALUES, parse
from cutaway.errors import InputError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip
# Fragments that make almost-JSON far more often than random bytes do.
almost = st.lists(
    st.sampled_from([
        b"{", b"}", b"[", b"]", b":", b",", b'"', b'"a"', b"1", b"-", b"e9", b".5", b"1e999",
        b"NaN", b"Infinity", b"null", b"true", b" ", b"\n", b"\\", b"\\ud83d", b"\\ude00",
        b"\\u0041", b"\\n", b"\xc3\xa9", b"\xff", b"\x00", b"\xed\xa0\x80",
    ])
).map(b"".join)  # fmt: skip


def refused(body: bytes) -> str:
    with pytest.raises(InputError) as caught:
        parse(body)
    return str(caught.value)


@given(values, st.booleans())
def test_what_json_writes_is_read_again(value, ascii_only):
    assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary() | almost)
def test_any_bytes_are_read_as_json_does_or_refused(body):
    try:
        value = parse(body)
    except InputError as error:
        assert "\n" not in str(error)
        str(error).encode()
    else:
        assert value == json.loads(body)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\u0041", "\\\\", "\\n", "u", "d83d", "x"]))
)
def test_a_string_is_refused_when_it_cannot_be_encoded(parts):
    body = f'"{"".join(parts)}"'.encode()
    try:
        json.loads(body).encode()
    except UnicodeEncodeError:
        assert "half of a surrogate pair" in refused(body)
    else:
        assert parse(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is empty; give a JSON value"),
        (b" \n", "the body is empty; give a JSON value"),
        (b"\xef\xbb\xbf{}", "the body begins with a byte order mark; leave it out"),
        (b'{\n"\xc3\xa9\xff"}', "the body is not UTF-8 at line 2, column 3"),
        ('{"a": 1}'.encode("utf-16"), "the body is not UTF-8 at column 1"),
        (b"[NaN]", "NaN is not JSON; give a finite number"),
        (b"[-Infinity]", "-Infinity is not JSON; give a finite number"),
        (b"1e999", "the number 1e999 is too large; its size must be below 1.8e308"),
        (b"[1,]", "the body is not JSON: "),
        (b'{"a": 1}\n x', "the body is not JSON: extra data at line 2, column 2"),
        (b'["a', "the body is not JSON: unterminated string starting at column 2"),
        (b'"a\nb"', "the body is not JSON: invalid control character at column 3"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' is given twice in one object"),
        (b'["a\\ud800"]', r"\ud800 at column 4 is half of a surrogate pair"),
    ],
)
def test_a_refusal_says_what_and_where(body, told):
    assert refused(body).startswith(told)


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_integers_of_thousands_of_digits_are_refused(sign):
    assert "(5000 characters) is too large" in refused(b"9" * 5000)
    assert "is too large" in refused(sign + b"9" * 309)
    assert parse(sign + b"9" * 308) == int(sign + b"9" * 308)


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_depth_has_a_limit(opened, closed):
    def nested(levels):
        inner = "{}" if closed == "}" else "[]"
        return (opened * (levels - 1) + inner + closed * (levels - 1)).encode()

    assert parse(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    assert "deeper than 64 levels" in refused(nested(MAX_DEPTH + 1))
    assert "deeper than 64 levels" in refused(nested(MAX_NESTS))
    assert "more than 32768 lists and objects" in refused(nested(100_000))


@pytest.mark.parametrize(
    ("item", "most", "told"),
    [
        (b"1", MAX_VALUES - 1, "more than 262144 values"),  # the list itself is one
        (b"[]", MAX_NESTS - 1, "more than 32768 lists and objects"),
        (b'{"a":1}', MAX_NESTS - 1, "more than 32768 lists and objects"),
        (b'{"a":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}', 14_563, "more than 262144 values"),
    ],
)
def test_the_number_of_values_has_a_limit(item, most, told):
    assert len(parse(b"[" + b",".join([item] * most) + b"]")) == most
    more = b"[" + b",".join([item] * (most + 1)) + b"]"
    assert told in refused(more)
    assert len(parse(more, max_values=None)) == most + 1


def test_hostile_megabytes_take_no_time():
    for body in (b"[" * (4 << 20), b'{"a":' * (1 << 20), b"9" * (4 << 20), b"[[]," * (1 << 20)):
        began = time.process_time()
        refused(body)
        assert time.process_time() - began < 0.5  # a few milliseconds, on a shared machine


def test_the_data_has_the_name_that_it_was_given():
    with pytest.raises(InputError, match=r"^line 3 is empty; give"):
        parse(b"", "line 3")
