"""The environment of chat templates: nothing of Python in reach, and no more made than is due."""

import re
import tomllib
import tracemalloc
from pathlib import Path

import jinja2
import pytest
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.text import ChatTemplate, sandbox
from cutaway.text.sandbox import render_pieces
from support.chat_templates import FOLDER

OUT = (
    "{{ ('{0.__globals__[json].codecs.sys.modules[os].environ}' | attr('format'))(strftime_now) }}"
)


@pytest.fixture(autouse=True)
def unmade():
    sandbox.environment.cache_clear()
    yield
    sandbox.environment.cache_clear()


def test_a_template_does_not_format_its_way_to_the_environment():
    with pytest.raises(SecurityError, match="__globals__"):
        render_pieces(sandbox.environment().from_string(OUT).generate, 0)


@pytest.mark.parametrize("version", ["3.1.5", "3.1", "2.11.3", "3.0.99", "3.1.6", "3.2.0rc1"])
def test_a_jinja_that_lets_templates_out_is_refused(version, monkeypatch):
    monkeypatch.setattr(jinja2, "__version__", version)
    if version in ("3.1.6", "3.2.0rc1"):
        assert sandbox.environment()
        return
    with pytest.raises(CutawayError, match=rf"Jinja2 {re.escape(version)} .*jinja2>=3\.1\.6"):
        sandbox.environment()


@pytest.mark.parametrize(("name", "safe"), [("jinja2", (3, 1, 6)), ("filelock", (3, 20, 1))])
def test_no_dependency_with_a_known_hole_is_allowed(name, safe):
    """jinja2: CVE-2025-27516 and before. filelock: CVE-2025-68146."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    wanted = tomllib.loads(project.read_text())["project"]["dependencies"]
    bound = next(re.fullmatch(rf"{name}>=([\d.]+).*", each) for each in wanted if name in each)
    assert tuple(map(int, bound[1].split("."))) >= safe


def test_the_sentence_about_an_old_jinja_reaches_whoever_asks(monkeypatch):
    """It is not the template that is broken."""
    monkeypatch.setattr(jinja2, "__version__", "3.1.5")
    with pytest.raises(CutawayError, match=r"^Jinja2 3\.1\.5") as caught:
        ChatTemplate("{{ messages }}", "", "").render([{"role": "user", "content": "a"}])
    assert not isinstance(caught.value, InputError)


# -- time and memory; published templates fit --------------------------------------------------

ASK = [{"role": "user", "content": "hi"}]
GROWING = (
    "{% set ns = namespace(s=%s) %}{% for i in range(60) %}{% set ns.s = %s %}{% endfor %}"
    "{{ ns.s }}"
)


def growing(first: str, step: str) -> str:
    return GROWING.replace("%s", first, 1).replace("%s", step, 1)


LONG = "('a' * 1000000)"
HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that write": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}"
    "{% endfor %}",
    "plus": growing("'ab'", "ns.s + ns.s"),
    "tilde": growing("'ab'", "ns.s ~ ns.s"),
    "join": growing("'ab'", "[ns.s, ns.s] | join"),
    "lists": growing("[1]", "[ns.s, ns.s]"),
    "lists added": growing("[1]", "ns.s + ns.s"),
    "objects": growing("{}", "{'a': ns.s, 'b': ns.s}"),
    "dicts": growing("{}", "dict(a=ns.s, b=ns.s)"),
    "numbers": growing("9", "ns.s * ns.s"),
    "blocks": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
    "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}"
    "{{ f(0) }}",
    "a macro in itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "width in percent": "{{ '%1000000000d' | format(1) }}",
    "width by an operator": "{{ '%1000000000d' % 1 }}",
    "width given": "{{ '%*d' % (1000000000, 1) }}",
    "width in braces": "{{ '{:1000000000}'.format(1) }}",
    "width in braces, given": "{{ '{:{a[w]}}'.format(1, a={'w': 1000000000}) }}",
    "many places": "{{ ('{0}' * 100000).format(" + LONG + ") }}",
    "many names": "{{ ('%(a)s' * 100000) % {'a': " + LONG + "} }}",
    "many widths": "{{ ('%9999d' * 100000) % ([1] * 100000) }}",
    "indented JSON": "{{ messages | tojson(indent=10 ** 9) }}",
    "JSON indented by a text": "{{ messages | tojson(indent=" + LONG + ") }}",
    "JSON with a separator": "{{ messages | tojson(separators=(" + LONG + ", ':')) }}",
    "wordwrap": "{{ ('a ' * 5000000) | wordwrap(1) }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "indent": r"{{ ('\n' * 1000000) | indent(" + LONG + ") }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "sum": "{{ [[1]] | sum(start=[]) }}",
    "replace": "{{ " + LONG + ".replace('a', " + LONG + ") }}",
    "replace, a filter": "{{ " + LONG + " | replace('a', " + LONG + ") }}",
    "a long separator": "{{ range(99999) | join(" + LONG + ") }}",
    "a long separator's method": "{{ " + LONG + ".join(range(99999) | map('string')) }}",
    "translate": "{{ 'a'.translate({97: 'b'}) }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "bytes": "{{ (5).to_bytes(10 ** 9, 'big') }}",
}


LONG_LOOPS = ("loops", "loops that write", "macros", "a long separator's method")


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_take_for_ever_or_all_memory_is_refused(name):
    template = ChatTemplate(HOSTILE[name], "<s>", "</s>")
    if name not in LONG_LOOPS:  # in which counting memory takes most of the time
        tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"^tokenizer\.chat_template fails"):
            template.render(ASK)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 300e6


def test_what_is_given_makes_room():
    """A long conversation may take more than a short one."""
    source = (
        "{% for m in messages %}{{ m.content }}{% for i in range(90000) %}{% endfor %}{% endfor %}"
    )
    many = [{"role": "user", "content": "a" * 20000}] * 60
    template = ChatTemplate(source, "<s>", "</s>")
    assert len(template.render(many)) == 60 * 20000
    with pytest.raises(FormatError, match="TooMuchError: it does more than"):
        template.render([{"role": "user", "content": "a"}] * 60)


def test_what_templates_do_with_values_is_as_in_jinja():
    source = (
        "{{ messages[0].content.center(8) }}|{{ messages | tojson(indent=4) }}|"
        "{{ ['a', 1] | join('-') }}|"
        "{{ 'a-b'.replace('-', '+') }}|{{ '%05d %s' % (3, 'x') }}|{{ '{:>5}'.format('a') }}|"
        r"{{ 'a\nb' | indent(2) }}|{{ [3, 1] | sort | first }}|{{ 7 // 2 * 3 ** 2 - 1 % 2 }}|"
        "{{ 1 ~ none }}|{{ ('x',) + ('y',) }}|"
        "{% for a, b in {'k': 1}.items() %}{{ a }}{{ b }}{{ loop.last }}{{ loop.length }}"
        "{% endfor %}|"
        "{% for i in range(3) if i %}{{ loop.index }}{{ loop.nextitem }}{% endfor %}|{{ nope }}"
    )
    kept = {"messages": ASK}
    assert ChatTemplate(source, "", "").render(ASK) == _plain().from_string(source).render(**kept)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.jinja")), ids=lambda path: path.stem)
def test_a_published_template_writes_what_jinja_alone_writes(path):
    """Also two hundred messages."""
    source, template = path.read_text("utf-8"), ChatTemplate(path.read_text("utf-8"), "<s>", "</s>")
    plain = _plain().from_string(source)
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": parameters},
    }
    turns = [*ASK, {"role": "assistant", "content": "yes " * 20}] * 100
    for messages, tools in ((ASK, None), (ASK, [tool]), ([*turns, *ASK], None)):
        given = {"tools": tools} if tools else {}
        kept = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", **given}
        try:
            expected = plain.render(eos_token="</s>", **kept)
        except Exception:  # it needs more of a conversation
            continue
        assert template.render_prepared(messages, tools, {}) == expected


def _plain() -> ImmutableSandboxedEnvironment:
    """What templates are written for, without bounds."""
    extensions = ["jinja2.ext.loopcontrols", sandbox._Generation]
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    made.filters["tojson"] = sandbox._to_json
    made.globals |= {"raise_exception": sandbox._refuse, "strftime_now": sandbox._now}
    return made
