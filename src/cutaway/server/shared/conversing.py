"""Requests whose prompt is a conversation: their tools, and the schema that the prompt may show."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from cutaway.requests.tools import ToolUse
from cutaway.server.body import Body, doc
from cutaway.server.service import Service
from cutaway.server.shared.request_models import Read
from cutaway.text.messages import with_schema
from cutaway.text.thinking import NO_WISH, ThinkingWish
from cutaway.text.tools import Tool

Messages = list[dict[str, Any]]


class Conversing(Body):
    """A request with a conversation, in any protocol."""

    schema_in_prompt: Annotated[
        bool, doc("ours: false keeps the schema of the format out of the first message")
    ] = True
    _use: ToolUse | None = None

    def use(self, service: Service) -> ToolUse:
        """Its tools, always the same; InputError for those that cannot be.

        The first call reads all of them, and is for a thread.
        """
        self._use = self._use or self._checked(service)
        return self._use

    def _checked(self, service: Service) -> ToolUse:
        raise NotImplementedError

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        return NO_WISH

    @property
    def settled(self) -> Sequence[str]:
        """Notes on how its wish was read."""
        return self._use.notes if self._use else ()

    def conversation(self) -> Messages:
        """The messages as chat templates take them."""
        raise NotImplementedError

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        raise NotImplementedError

    @property
    def own_schema(self) -> Any:
        """The JSON schema that the client gave for the text; None: none."""
        raise NotImplementedError

    @property
    def schema_shown(self) -> bool:
        """Whether the prompt has the schema."""
        return self.schema_in_prompt and self.own_schema is not None

    def shown(self, tools: Sequence[Tool]) -> Messages:
        """The conversation, with the schema if the prompt is to have it."""
        said = self.conversation()
        return with_schema(said, self.own_schema, tools) if self.schema_shown else said

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message."""
        return False

    async def ids(self, service: Service) -> list[int]:
        """The prompt in the model's template."""
        # Of 32,000 messages 0.4 s, of the largest tools 0.1 s.
        said = await asyncio.to_thread(lambda: self.shown(self.use(service).tools))
        use = self.use(service)
        found = await service.chat_ids(said, use.tools, goes_on=self.goes_on, **use.variables)
        use.behind(found, said[-1] if self.goes_on else None)
        return found

    async def read(self, service: Service) -> Read:
        """The prompt, the keywords and the tools."""
        given = await asyncio.to_thread(self.keywords)
        return Read([await self.ids(service)], given, self.use(service))
