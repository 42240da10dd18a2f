"""The environment of chat templates: nothing of Python is in reach, by an old Jinja2 neither."""

import re
import tomllib
from pathlib import Path

import jinja2
import pytest
from jinja2.exceptions import SecurityError

from cutaway.errors import CutawayError, InputError
from cutaway.text import sandbox
from cutaway.text.chat import ChatTemplate
from cutaway.text.sandbox import rendered

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
        rendered(sandbox.environment().from_string(OUT).generate, 0)


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
