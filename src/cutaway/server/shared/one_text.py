"""The answer to a request for one text: what Responses, Messages and Ollama's forms share."""

from functools import cached_property
from typing import Any

from cutaway.engine import Event, Step
from cutaway.server.events import Events
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared import common
from cutaway.server.shared.schemas import Ending, InForce


class OneText(Events):
    """An answer with one text.

    body  the request; id: the request's, of which those in the answer are made
    """

    def __init__(self, service: Service, body: Any, job: TextJob, id: str) -> None:
        self._job, self._body, self._text, self._id = job, body, job.texts[0], id
        self._name = service.names.named(body.model)
        self._fingerprint = service.names.fingerprint(body.model)
        self._tokenizer = service.llm.tokenizer

    @cached_property
    def _settings(self) -> InForce:
        return common.settings(self._job, self._body)

    def _ending(self) -> Ending:
        """How the text ended, with the records of its trace that were not sent before."""
        ours = common.ending(self._job, 0, self._body.readings)
        if self._body.trace:
            ours["trace"] = self._job.traces[0].take()
        return ours

    def _beside(self, event: Event) -> dict[str, Any]:
        """What is sent beside a piece of text, if asked for: its token and trace records."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids and isinstance(event, Step):
            fields["token_ids"] = [event.token_id]
        if self._body.trace and (records := self._job.traces[0].take()):
            fields["cutaway"] = {"trace": records}
        return fields

    def _token_ids(self) -> dict[str, Any]:
        """The ids of the prompt and of the text, if asked for."""
        if not self._body.return_token_ids:
            return {}
        written = [step.token_id for step in self._text.steps]
        return {"prompt_token_ids": list(self._text.prompt_token_ids), "token_ids": written}
