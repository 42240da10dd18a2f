"""How a server is set up; checked once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from cutaway.checks import check_int
from cutaway.errors import InputError

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What whoever starts a server decides.

    names          by which the model may be asked for; empty: the model's own
    api_key        needed from every client; None: nobody needs one
    allow_hosts    names in the Host header that are welcome beside the local ones; None: all are
    cors           origins whose pages may ask, "*" for all; empty: none
    max_body       bytes of a request
    keep_alive     seconds of silence after which a stream says that it is there
    read_timeout   seconds for a request's body
    write_timeout  seconds for one message to a client that does not read
    log_prompts    whether the log shows prompts

    Raises InputError naming the field.
    """

    names: Sequence[str] = ()
    api_key: str | None = None
    allow_hosts: Sequence[str] | None = None
    cors: Sequence[str] = ()
    max_body: int = 4 << 20
    keep_alive: float = 10.0
    read_timeout: float = 30.0
    write_timeout: float = 60.0
    log_prompts: bool = False

    def __post_init__(self) -> None:
        check_int("max_body", self.max_body, 1)
        for name in ("keep_alive", "read_timeout", "write_timeout"):
            seconds = getattr(self, name)
            if not (isinstance(seconds, (int, float)) and isfinite(seconds) and seconds > 0):
                raise InputError(f"{name} must be a number of seconds above 0, not {seconds!r}")
        check_key(self.api_key)
        for origin in self.cors:
            if not _ORIGIN.fullmatch(origin):
                raise InputError(
                    f"cors: {origin!r} is no origin; write it as http://localhost:3000, or *"
                )


def check_key(key: str | None) -> None:
    """InputError for a key that no client could send."""
    if key is not None and key.split() != [key]:
        raise InputError("api_key must be one word; leave it out to let everyone in")
