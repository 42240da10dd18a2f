"""Argparse's namespace, read as the keywords of ``LLM`` and its requests.

Knows which names in a namespace are keywords, and which of them need the model's tokenizer. Does
not know which flags set them (arguments.py), nor what a keyword does.
"""

import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.whole_files import read_all, read_bounded
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM

_MODEL = (
    "model", "backend", "threads", "context", "kv_tokens", "prefix_cache", "max_num_seqs",
    "max_waiting", "step_ms", "cache_dir", "cache_size", "quantize", "kv",
    "offload_folder", "lora", "adapters",
)  # fmt: skip


def model_options(args: Namespace) -> dict[str, Any]:
    """Return the keywords of LLM in the namespace."""
    return {name: getattr(args, name) for name in _MODEL if hasattr(args, name)}


def request_options(args: Namespace) -> dict[str, Any]:
    """Return the keywords of the request; InputError for a bad one, before a model is fetched."""
    from cutaway.requests.options import OPTIONS, parse_options

    options = {name: value for name, value in vars(args).items() if name in OPTIONS}
    options.pop("track", None)  # still a text: read_track_option makes token ids of it
    if hasattr(args, "control_vector"):
        options["interventions"] = [*options.get("interventions", ()), *_control_vectors(args)]
    if "logit_bias" in options:
        options["logit_bias"] = _each_once(options["logit_bias"])
    if "trace" not in options and (hasattr(args, "track") or "candidates" in options):
        raise InputError("--candidates and --track choose what a trace records: add --trace FILE")
    # Breakers are still texts: only the model's tokenizer knows their ids.
    checked = {name: value for name, value in options.items() if name != "dry_breakers"}
    parse_options(checked)
    return options


def _control_vectors(args: Namespace) -> list[Any]:
    """Return the interventions that add the control vectors in files."""
    from cutaway.engine.interventions.intervention import control_vector

    files = (control_vector(path, strength) for path, strength in args.control_vector)
    return [intervention.to_json() for vectors in files for intervention in vectors]


def read_track_option(args: Namespace, llm: "LLM") -> dict[str, Any]:
    """Return {"track": token ids} for --track, by the model's tokenizer; {} without --track."""
    texts = getattr(args, "track", [])
    return {"track": [i for text in texts for i in _token_ids(text, llm)]} if texts else {}


def _token_ids(text: str, llm: "LLM") -> list[int]:
    """Return the ids that a text means: the number itself, or all tokens that have this text."""
    of, everything = llm.tokenizer, range(llm.tokenizer.vocab_size)
    if text.isdecimal():
        if int(text) not in everything:
            raise InputError(f"--track {text}: the model's token ids are 0 to {everything[-1]}")
        return [int(text)]
    data = text.encode("utf-8", "surrogateescape")
    ids = [i for i in everything if (of.token_bytes(i) or of.token_name(i).encode()) == data]
    if not ids:
        raise InputError(f"--track {text!r}: the model has no such token; see 'cutaway tokenize'")
    return ids


def token(text: str | None) -> int | str | None:
    """Return a text of digits as a token id, and any other text or None unchanged."""
    return int(text) if text and text.isdecimal() else text


def _each_once(biases: list[tuple[int, float]]) -> dict[int, float]:
    for token_id, times in Counter(token_id for token_id, _ in biases).items():
        if times > 1:
            raise InputError(f"--logit-bias: token {token_id} is given {times} times: give it once")
    return dict(biases)


def read_text(text: str) -> str:
    """Return the argument; for "-", return standard input without one newline at its end."""
    return read_file("-").removesuffix("\n") if text == "-" else text


def read_file(path: str, flag: str = "") -> str:
    """Return the text of a file, or for "-" of standard input; InputError if it cannot be read.

    flag: the option that names the file, for the error
    """
    name = "standard input" if path == "-" else f"{flag}: {path}".removeprefix(": ")
    try:
        data = read_all(sys.stdin.buffer, name) if path == "-" else read_bounded(path)
        return data.decode("utf-8")
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start})") from error


def gguf_output(name: str, *, force: bool) -> Path:
    """Return the .gguf file to write; InputError if it cannot be written, or exists."""
    path = Path(name).expanduser()
    if path.suffix.lower() != ".gguf":
        raise InputError(f"OUT must be a name that ends in .gguf, not {name!r}")
    if not path.parent.is_dir():
        raise InputError(f"OUT: there is no folder {path.parent}; make it first")
    if path.exists() and not path.is_file():
        raise InputError(f"OUT: {path} is not a regular file; name a new one")
    if path.exists() and not force:
        raise InputError(f"OUT: {path} exists; name a new file, or add --force to replace it")
    return path
