"""``cutaway generate --input``: a file of requests, and a record with the result of each.

Knows the file of requests and the file of records; with both, a killed run can be resumed.
``requests`` decides which fields a request may have.
"""

import json
import re
import shutil
import sys
from argparse import Namespace
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from cutaway.base import system
from cutaway.base.progress import Bar, say, say_error
from cutaway.base.strict_json import parse
from cutaway.cli.terminal import console
from cutaway.cli.terminal.reports import Totals, document
from cutaway.errors import CutawayError, InputError
from cutaway.files import hub

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.api.text_writer import Result, Results


_HEAD = re.compile(rb'\{"line": (\d{1,18}), "')
_CUT_HEAD = re.compile(rb'\{"line": \d{1,18}(, ?)?')
_START = b'{"line": '


def open_input(path: str) -> IO[bytes]:
    """Return a seekable file; standard input ("-") and pipes are copied into a temporary file."""
    try:
        if path == "-":
            return _copy(sys.stdin.buffer)
        source = Path(path).open("rb")  # noqa: SIM115  the caller closes it, or the copy's block
        if source.seekable():
            return source
        with source:
            return _copy(source)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _copy(source: IO[bytes]) -> IO[bytes]:
    copy = TemporaryFile()  # noqa: SIM115  the caller closes it
    shutil.copyfileobj(source, copy)
    return copy


class Lines:
    """The lines of a file, numbered from 1; each takes nine bytes of memory.

    count   lines that are not blank
    done    lines that have a record
    failed  records that have an error
    """

    def __init__(self, file: IO[bytes], salt: str) -> None:
        """salt: what a text depends on besides its line; each record's hash includes the salt."""
        self._file, self._salt = file, salt.encode() + b"\n"
        self._starts, self._is_open, start = array("Q"), bytearray(), 0
        file.seek(0)
        for line in file:
            self._starts.append(start)
            self._is_open.append(not line.isspace())
            start += len(line)
        self.count, self.done, self.failed = sum(self._is_open), 0, 0

    def left(self) -> Iterator[int]:
        """Return the numbers of the lines without a record, in order."""
        return (number for number, is_open in enumerate(self._is_open, 1) if is_open)

    def read(self, number: int) -> bytes:
        """Return a line without its end."""
        self._file.seek(self._starts[number - 1])
        return self._file.readline().rstrip(b"\r\n")

    def head(self, number: int) -> dict[str, Any]:
        """Return a record's first fields: the line's number, and the hash of the request."""
        digest = sha256(self._salt + self.read(number)).hexdigest()
        return {"line": number, "request_sha256": digest}

    def wants(self, number: int) -> bool:
        """Whether the line of this number exists, is not blank and has no record."""
        return 0 < number <= len(self._is_open) and bool(self._is_open[number - 1])

    def close(self, record: dict[str, Any]) -> None:
        """Note that a line has its record."""
        self._is_open[record["line"] - 1] = 0
        self.done += 1
        self.failed += bool(record.get("error"))  # null if the request succeeded


class Records:
    """A file of records, each of which is appended whole; "-" is standard output, never read.

    An existing file is checked first: if it has anything but records of these lines, InputError is
    raised and the file stays as it is. A last record that was cut off in the middle is removed.
    """

    def __init__(self, path: str, lines: Lines) -> None:
        self._path, self._lines, self._file = path, lines, _open_output(path)
        if self._file.readable():
            try:
                self._lock()
                self._resume()
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if self._path == "-":
            return
        try:
            self._file.close()
        except OSError:
            if raised is None:
                raise  # else the block's own error is raised

    def write(self, record: dict[str, Any]) -> None:
        """Append a line's record, which begins with the line's head."""
        try:
            self._file.write(json.dumps(record).encode("ascii") + b"\n")
            self._file.flush()
        except OSError as error:
            if self._path == "-":
                raise
            raise CutawayError(f"cannot write {self._path}: {error.strerror}") from error
        self._lines.close(record)

    def _lock(self) -> None:
        """Lock the file until this process ends: a second run would write every line twice."""
        try:
            system.lock(self._file.fileno())
        except BlockingIOError:
            raise InputError(f"{self._path}: another process writes to it: wait for it") from None

    def _resume(self) -> None:
        whole = 0
        self._file.seek(0)
        for place, text in enumerate(self._file, 1):
            if not text.endswith(b"\n"):
                if not self._is_begun(text):
                    raise self._refusal("its end is not the beginning of a record of this input")
                self._file.truncate(whole)
                return
            self._check(place, text)
            whole += len(text)

    def _check(self, place: int, text: bytes) -> None:
        record: Any = None
        with suppress(ValueError, RecursionError):
            record = json.loads(text)
        number = record.get("line") if isinstance(record, dict) else None
        if type(number) is not int:
            raise self._refusal(f"line {place} is not a record that cutaway wrote")
        if not (self._lines.wants(number) and record | self._lines.head(number) == record):
            raise self._refusal(
                f"line {place} is a record of another input, model or options, or not the first "
                "of its line"
            )
        self._lines.close(record)

    def _is_begun(self, text: bytes) -> bool:
        """Whether a text is the beginning of a record, and so may be removed."""
        if not (match := _HEAD.match(text)):
            return _START.startswith(text) or bool(_CUT_HEAD.fullmatch(text))
        if not self._lines.wants(number := int(match[1])):
            return False
        head = json.dumps(self._lines.head(number)).encode().removesuffix(b"}")
        return text.startswith(head) or head.startswith(text)

    def _refusal(self, reason: str) -> InputError:
        return InputError(f"{self._path}: {reason}: choose another output, or move this one away")


def _open_output(path: str) -> IO[bytes]:
    """Open a file to append to; a regular one can be read, too."""
    if path == "-":
        return sys.stdout.buffer
    try:
        plain = Path(path).is_file() or not Path(path).exists()
        return Path(path).open("a+b" if plain else "ab")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


# -- the command -----------------------------------------------------------------------------------


_LOADED = ("backend", "context", "quantize", "kv", "lora")
"""Options for loading the model; a text depends on each of them."""


def run(args: Namespace, options: dict[str, Any]) -> int:
    """Process every line without a record; return 0, 1 if lines failed, or 130 after Ctrl-C."""
    model = str(getattr(args, "model", hub.DEFAULT_MODEL))
    loaded = {name: getattr(args, name) for name in _LOADED if hasattr(args, name)}
    salt = json.dumps({"model": model, "options": options, **loaded}, sort_keys=True)
    with open_input(args.input) as file:
        lines = Lines(file, salt)
        with Records(args.output, lines) as records:
            if lines.done and not args.quiet:
                say(f"{lines.done} of {lines.count} lines have their record already")
            if lines.done < lines.count:
                _answer(args, options, lines, records)
    place, again = "", ""
    if args.output != "-":
        place, again = f" in {args.output}", "; run the same command again to resume"
    if lines.done < lines.count:
        say(f"interrupted: {lines.done} of {lines.count} lines are done{place}{again}")
        return 130
    if lines.failed:
        reason = f"{lines.failed} of {lines.count} lines failed; their records{place} say why"
        say_error(reason)
    return 1 if lines.failed else 0


def _answer(args: Namespace, options: dict[str, Any], lines: Lines, records: Records) -> None:
    """Write each line's record when its text ends, until all have a record, or until Ctrl-C."""
    llm = console.load(args)
    started, before, totals = perf_counter(), lines.done, Totals()
    heads: dict[int, dict[str, Any]] = {}
    with llm.generate_each(_requests(llm, lines, heads), **options) as results:
        with console.stoppable(results), _bar(results, lines, show=not args.quiet) as bar:
            for index, result in results:
                records.write(heads.pop(index) | _answers(result, totals, args))
                bar.update(lines.done)
        seconds = perf_counter() - started
        if not args.quiet:
            done = lines.done - before
            parts = [f"{done} {'line' if done == 1 else 'lines'} in {seconds:.1f} s",
                     f"{results.tokens / seconds:.1f} tokens/s"]  # fmt: skip
            say(totals.line(parts, args.price))


def _bar(results: "Results", lines: Lines, *, show: bool) -> Bar:
    """Return a bar that is redrawn after every step, and not only when a line finishes."""

    def figures(done: int, total: int, seconds: float) -> str:
        return f"{done} of {total} lines, {results.tokens / seconds:.0f} tokens/s"

    bar = Bar("generating", lines.count, show=show, figures=figures)
    bar.update(lines.done)
    results.on_step = lambda: bar.update(lines.done)
    return bar


def _requests(llm: "LLM", lines: Lines, heads: dict[int, dict[str, Any]]) -> Iterator[Any]:
    """Yield the request of each line without a record; put the record's head into ``heads``."""
    for index, number in enumerate(lines.left()):
        head = heads[index] = lines.head(number)
        try:
            request: Any = _request(llm, lines.read(number), head)
        except CutawayError as error:
            request = error
        yield request


def _answers(result: "Result", totals: Totals, args: Namespace) -> dict[str, Any]:
    """Return the fields of a record that follow its head."""
    if isinstance(result, CutawayError):
        return {"error": str(result)}
    samples = result if isinstance(result, list) else [result]
    documents = [document(sample, args.price) for sample in samples]
    for sample in samples:
        totals.add(sample)
    return {"samples": documents} if isinstance(result, list) else documents[0]


def _request(llm: "LLM", line: bytes, head: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the prompt and the options of a line; add the line's id to the head of its record."""
    from cutaway.requests.tools import ToolUse
    from cutaway.text.thinking_switch import ThinkingWish

    request = parse(line.removeprefix(BOM_UTF8), "this line")
    if isinstance(request, str):
        return request, {}
    if isinstance(request, dict) and "id" in request:
        head["id"] = request.pop("id")
    if not isinstance(request, dict) or ("prompt" in request) == ("messages" in request):
        raise InputError('a line must be a string, or an object with "prompt" or "messages"')
    if "trace" in request:  # a resumed run could not overwrite the killed run's trace
        raise InputError("trace", ": a line of a batch file cannot be traced: leave it out")
    if isinstance(bias := request.get("logit_bias"), dict):  # JSON's keys are strings
        request["logit_bias"] = {_token_id(name): by for name, by in bias.items()}
    if "prompt" in request:
        return request.pop("prompt"), request
    if not isinstance(messages := request.pop("messages"), list):
        raise InputError("messages", " must be a list")
    continues = request.pop("continue_final_message", False)
    names = ("think", "think_budget", "chat_template_kwargs")
    think, budget, variables = (request.pop(name, None) for name in names)
    use = ToolUse(llm.model, wish=ThinkingWish(think, budget, variables or {}))
    ids = llm.chat_ids(messages, continue_final_message=continues, **use.variables)
    use.set_prompt(ids, messages[-1] if continues else None)
    return ids, use.options(request)


def _token_id(name: str) -> int | str:
    return int(name) if re.fullmatch("0|[1-9][0-9]{0,18}", name) else name
