"""A conversation that is saved and continued: ``cutaway chat --resume FILE``.

FILE has its messages, as JSON. FILE.prefix has their KV cache, which is computed again if the file
is lost.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from cutaway.base import strict_json
from cutaway.base.checks import shown
from cutaway.base.progress import say, say_error
from cutaway.base.whole_files import check_place, whole_file
from cutaway.cli.terminal import console
from cutaway.errors import CutawayError, InputError
from cutaway.files.hub import cache_dir
from cutaway.text.messages import to_template_messages

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.base import Message

_VERSION = 1


class Talk(NamedTuple):
    """A conversation: its system message, or None, and all other messages."""

    system: str | None
    messages: "list[Message]"


class SavedChat:
    """The files of a conversation, locked until they are closed or this process ends.

    failed: whether the messages could not be written
    """

    def __init__(self, name: str, system: str | None) -> None:
        """InputError if the file cannot be read, is of another kind, or is open elsewhere.

        system: the text of --system; a conversation that continues must have the same one
        """
        self.path = Path(name).expanduser()
        self.prefix = self.path.with_name(f"{self.path.name}.prefix")
        self.failed = False
        self._open = ExitStack()
        check_place(self.path)
        self._lock()
        try:
            self.talk = self._read()
            self._check_system(system)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        """InputError if another process has the file open: one of the two would lose messages."""
        from filelock import FileLock, Timeout

        name = sha256(os.fsencode(os.path.realpath(self.path))).hexdigest()
        lock = cache_dir() / "conversations" / f"{name}.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            self._open.enter_context(FileLock(lock, timeout=0))
        except Timeout:
            raise InputError(
                f"--resume: {self.path} is open in another chat; end that, or name another file"
            ) from None
        except OSError as error:
            raise InputError(
                f"--resume: {lock.parent} cannot be written to, where open conversations are "
                f"noted ({error.strerror}); set CUTAWAY_HOME to a folder that can"
            ) from error

    def _read(self) -> Talk | None:
        """Return the conversation in the file; None if there is no file yet."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"--resume: {self.path} cannot be read: {error.strerror}") from error
        try:
            return _talk(strict_json.parse(data, "the file"))
        except InputError as error:
            raise InputError(
                f"--resume: {self.path} is no conversation of cutaway: {error}"
            ) from None

    def _check_system(self, system: str | None) -> None:
        if self.talk and self.talk.messages and system not in (None, self.talk.system):
            raise InputError(
                f"--system: {self.path} has its own system message; leave it out, or type "
                "/system TEXT to start over"
            )

    def restore(self, llm: "LLM") -> bool:
        """Restore the KV cache from its file; return False if that fails."""
        try:
            return bool(llm.restore_prefix(self.prefix))
        except CutawayError:  # the file is missing, damaged, or of another model
            return False

    def write(self, llm: "LLM", talk: Talk, prompt: Sequence[int] | None) -> None:
        """Save the messages and, unless ``prompt`` is None, the KV cache of these token ids.

        A file that cannot be written is reported, and the conversation continues.
        """
        document: dict[str, Any] = {
            "cutaway_chat": _VERSION, "model": llm.name, "system": talk.system,
            "messages": talk.messages,
        }  # fmt: skip
        data = json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n"
        with _private():
            self._write(llm, data, prompt)

    def _write(self, llm: "LLM", data: bytes, prompt: Sequence[int] | None) -> None:
        try:
            unbroken = console.handling({SIGINT: lambda _number, _frame: None})
            with console.leaving_nothing(), unbroken, whole_file(self.path) as out:
                out.write(data)
            self.failed = False
        except CutawayError as error:
            self.failed = True
            say_error(str(error))
        if prompt is None:
            return
        try:
            with console.leaving_nothing():
                llm.save_prefix(self.prefix, prompt, compute=False)
        except CutawayError as error:
            say(f"note: {error}; the conversation will be computed again")
        except KeyboardInterrupt:  # Ctrl-C for the answer, which had just ended
            say("(what was said is kept; it will be computed again)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process open the conversation."""
        self._open.close()


@contextmanager
def _private() -> Iterator[None]:
    """Let only the user read files that the block makes."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _talk(document: Any) -> Talk:
    """Return the conversation in a JSON document; InputError if it has none."""
    if not isinstance(document, dict) or "cutaway_chat" not in document:
        raise InputError("it lacks the key cutaway_chat; name another file")
    if document["cutaway_chat"] != _VERSION:
        raise InputError(
            f"it is of version {shown(document['cutaway_chat'])}, and this cutaway reads version "
            f"{_VERSION}"
        )
    system, messages = document.get("system"), document.get("messages")
    if not isinstance(system, str | None) or not isinstance(messages, list):
        raise InputError("system must be a text or null, and messages a list")
    if messages:
        to_template_messages(messages)
    return Talk(system, messages)
