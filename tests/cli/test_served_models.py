"""Which models ``cutaway serve`` has, and what they are called."""

import signal

import httpx
import pytest

from cutaway import InputError
from cutaway.cli import serve
from cutaway.cli.options import arguments
from support.random_llama import write_tiny_llama
from support.server_processes import serve_arguments, server


@pytest.fixture
def path(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf")


def test_what_each_is_called(path):
    def named(*models):
        return serve.named(serve_arguments(*(word for m in models for word in ("-m", m))))

    assert named() == [("smollm2", "smollm2")]
    assert named(str(path)) == [(None, str(path))]
    assert named(f"own={path}") == [("own", str(path))]
    assert named("smollm2", f"own={path}") == [("smollm2", "smollm2"), ("own", str(path))]
    assert named("smollm2", str(path.parent))[1] == (None, str(path.parent))
    assert named(str(path.parent)) == [(None, str(path.parent))]
    assert named("a" * 5000) == [("a" * 5000, "a" * 5000)]
    odd = path.rename(path.parent / "a=b.gguf")
    assert named(str(odd)) == [(None, str(odd))]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-m", "a=x", "-m", "a=y"], "two models have the name a: write NAME=PATH for one"),
        (["-m", "a b=x"], "write NAME=PATH, a name without spaces or slashes"),
        (["-m", "a="], "write NAME=PATH"),
        (["-m", "a", "-m", "b", "--served-model-name", "c"], "--served-model-name is for one"),
        (["-m", "a", "-m", "b", "--replicas", "2"], "--replicas is for one model that stays"),
        (["--memory", "8GB", "--replicas", "2"], "--replicas is for one model that stays"),
        (["--unload-after", "-1"], "--unload-after must be seconds, 0 or more"),
        (["--unload-after", "inf"], "--unload-after must be seconds, 0 or more"),
        (["-m", "a=x", "-m", "b", "--cores", "2"], "--cores is for replicas"),
    ],
)  # fmt: skip
def test_what_cannot_be(words, told):
    args = serve_arguments(*words, "-q")
    with pytest.raises(InputError, match=told):
        serve._settings(args)
        with serve.served(args, {}, print):
            pass


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8_000_000_000), ("8g", 8_000_000_000), ("6GiB", 6 << 30), ("1.5 M", 1_500_000),
     ("100", 100), ("2KiB", 2048)],
)  # fmt: skip
def test_a_size_is_read_as_people_write_it(text, size):
    assert arguments.size(text) == size


@pytest.mark.parametrize("text", ["", "8X", "-1G", "0", "many"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(Exception, match="write a size as 8GB or 6GiB"):
        arguments.size(text)


def test_a_model_that_can_never_fit_is_refused_before_anything_is_loaded(path):
    args = serve_arguments("-m", f"a={path}", "-m", f"b={path}", "--memory", "1kB", "-q")
    told = r"memory: tiny takes .* with its keys and values, and all models together may have 1.0"
    with pytest.raises(InputError, match=told), serve.served(args, {}, print):
        pass


def test_two_files_of_one_name_need_other_names(path):
    args = serve_arguments("-m", str(path), "-m", str(path), "-q")
    told = pytest.raises(InputError, match="two models have the name tiny")
    with told, serve.served(args, {}, print):
        pass


def test_a_server_of_two_models_ends_at_a_signal(path):
    other = write_tiny_llama(path.parent / "other.gguf", seed=1)
    body = {"prompt": "ab", "seed": 1, "max_tokens": 5, "ignore_eos": True}
    with server(f"a={path}", "-m", f"b={other}", "--memory", "3MB") as (child, url):
        each = [
            httpx.post(f"{url}/v1/completions", json={**body, "model": name}).json()["choices"]
            for name in ("a", "b", "tiny", "other", "a")
        ]
        prints = [choices[0]["cutaway"]["fingerprint"] for choices in each]
        assert prints == [prints[0], prints[1], prints[0], prints[1], prints[0]]
        assert prints[0] != prints[1]
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
