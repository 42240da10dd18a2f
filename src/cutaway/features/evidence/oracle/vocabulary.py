"""A model's tokens by their bytes, as servers that tell no ids name them."""

import re
from collections.abc import Iterable
from functools import cached_property

from cutaway.errors import InputError
from cutaway.requests.base import BaseLLM

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # what no text is cut into that has a token of its own
_ESCAPED = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")


class TokenWords:
    """Token ids by bytes; of tokens with the same bytes the lowest, and ordinary ones first."""

    def __init__(self, llm: BaseLLM) -> None:
        self.llm = llm

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        of, found = self.llm.tokenizer, dict[bytes, int]()
        every = range(of.vocab_size)
        names = {i: of.token_name(i) for i in every}
        for token_id in sorted(every, key=lambda i: bool(_BYTE.fullmatch(names[i]))):
            if data := of.token_bytes(token_id):
                found.setdefault(data, token_id)
        for token_id in every:
            if not of.token_bytes(token_id):
                found.setdefault(names[token_id].encode(), token_id)
        return found

    def id_of(self, data: bytes) -> int:
        """InputError where the model has no such token."""
        if (found := self._ids.get(data)) is None:
            raise InputError(
                f"the server tells a token {data!r}, which {self.llm.name} has not: another model, "
                "or a server that tells no whole tokens"
            )
        return found

    def named(self, token: str) -> bytes:
        """The bytes of a token's text, which OpenAI writes as bytes:\\xe2 where it is no text."""
        if found := _ESCAPED.fullmatch(token):
            return bytes.fromhex(found[1].replace("\\x", ""))
        return token.encode()

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens by name."""
        return self.llm.detokenize(ids, special=True)
