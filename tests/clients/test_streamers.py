"""A stream read as transformers' streamers are. Slow: transformers takes seconds to import."""

from threading import Thread
from types import SimpleNamespace

import pytest

from support.page_sections import blocks

transformers = pytest.importorskip(
    "transformers", reason="pip install 'cutaway[test-transformers]'"
)
pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def page():
    """What the examples define."""
    known = {}
    for block in blocks("integrations.md", "Streamers of transformers", "python", ""):
        exec(compile(block, "integrations.md", "exec"), known)
    yield known
    known["cutaway"].close()


def decoder(page):
    """All that a streamer asks of a tokenizer."""
    return SimpleNamespace(decode=lambda ids, **_: page["cutaway"].detokenize(ids))


def test_a_text_streamer_prints_the_text(page, capsys):
    streamer = transformers.TextStreamer(decoder(page), skip_prompt=True)
    stream = page["cutaway"].stream("The sky is", seed=3, max_tokens=20)
    page["feed"](streamer, stream)
    assert capsys.readouterr().out == stream.text + "\n"


def test_an_iterator_in_another_thread(page):
    streamer = transformers.TextIteratorStreamer(decoder(page), timeout=60)
    stream = page["cutaway"].stream("The sky is", seed=3, max_tokens=20)
    thread = Thread(target=page["feed"], args=(streamer, stream))
    thread.start()
    parts = [*streamer]
    thread.join()
    assert "".join(parts) == "The sky is" + stream.text
    assert len(parts) > 5
