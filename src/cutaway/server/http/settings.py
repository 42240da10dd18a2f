"""The settings of a server, checked once."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from os import PathLike

from cutaway.base.checks import check_int
from cutaway.errors import InputError

_ROOT_PATH = re.compile(r"(/[\w.~-]+)*", re.ASCII)
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")


KEY_VARIABLE = "CUTAWAY_API_KEY"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server.

    names          model names that requests may use; empty: the model's own name
    api_key        the key that every client must send; None: no key is needed
    allow_hosts    names accepted in the Host header beside addresses and this machine's; None: any
    cors           origins whose pages may send requests, "*" for all; empty: none
    max_body       largest request body, in bytes
    keep_alive     seconds without an event after which a stream sends a comment
    keep_responses bytes of /v1/responses' answers that are kept for later requests; 0: none
    read_timeout   seconds for a request's body to arrive
    write_timeout  seconds for the client to read one message
    root_path      the path under which a proxy serves this server, such as "/models"; "": the root
    batches        the folder of files and batches; None: their endpoints are off
    receipts       the folder that gets a signed receipt of each answer; None: no receipts
    receipt_key    the file of the key that signs receipts
    log_prompts    whether the log shows prompts
    allow_interventions  whether requests may change activations, for their own texts
    allow_adapters  whether requests may load adapters from the server's disk, and unload them

    InputError for a bad setting, which the error names.
    """

    names: Sequence[str] = ()
    api_key: str | None = None
    allow_hosts: Sequence[str] | None = None
    cors: Sequence[str] = ()
    max_body: int = 4 << 20
    keep_alive: float = 10.0
    keep_responses: int = 64 << 20
    read_timeout: float = 30.0
    write_timeout: float = 60.0
    root_path: str = ""
    batches: str | PathLike[str] | None = None
    receipts: str | PathLike[str] | None = None
    receipt_key: str | PathLike[str] | None = None
    log_prompts: bool = False
    allow_interventions: bool = False
    allow_adapters: bool = False

    def __post_init__(self) -> None:
        check_int("max_body", self.max_body, 1)
        check_int("keep_responses", self.keep_responses, 0)
        for name in ("keep_alive", "read_timeout", "write_timeout"):
            seconds = getattr(self, name)
            if not (isinstance(seconds, (int, float)) and isfinite(seconds) and seconds > 0):
                raise InputError(name, f" must be a number of seconds above 0, not {seconds!r}")
        if (self.receipts is None) != (self.receipt_key is None):
            raise InputError("receipts", " and receipt_key belong together: give both")
        check_key(self.api_key)
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise InputError(
                "root_path",
                f" must begin with / and not end with one, as in /models, not {self.root_path!r}",
            )
        for field in ("names", "allow_hosts"):
            if not all(name.strip() for name in getattr(self, field) or ()):
                raise InputError(field, ": an empty name cannot be asked for; leave it out")
        for origin in self.cors:
            if not _ORIGIN.fullmatch(origin):
                raise InputError(
                    "cors",
                    f": {origin!r} is not an origin; write one as http://localhost:3000, or *",
                )


def key_in_environment() -> str | None:
    """Return the key in the environment; None if the variable is unset, InputError if empty."""
    key = os.environ.get(KEY_VARIABLE)
    if key == "":  # as from a Kubernetes Secret without its value
        raise InputError(
            f"{KEY_VARIABLE} is set and empty: give it a key, or unset it to serve without"
        )
    return key


def check_key(key: str | None) -> None:
    """Check that a client can send the key in a header; InputError if not."""
    if key is not None and key.split() != [key]:
        raise InputError(
            "api_key", " must be one word without spaces; leave it out for a server without a key"
        )
