"""``/v1/receipts``: a signed receipt of each answer, and the log that has them all.

Knows when an answer has ended, and writes its receipts in a thread of its own. ``receipt`` defines
a receipt.
"""

import asyncio
import logging
import pathlib
import re
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Annotated, Any, Self, cast

from fastapi import APIRouter, FastAPI, Path, Request
from starlette.responses import JSONResponse, Response

from cutaway.errors import CutawayError, InputError
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.evidence.receipt_log import ReceiptLog
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.requests.generation import Generation
from cutaway.server.body import StrictRoute
from cutaway.server.document import replies
from cutaway.server.http import log
from cutaway.server.http.errors import ApiError
from cutaway.server.http.settings import ServerSettings
from cutaway.server.shared.plain_schemas import AnswerReceipts, ProvenReceipt, ReceiptsHead
from cutaway.trace.write import end_of

router = APIRouter(route_class=StrictRoute, tags=["receipts"])

AnswerId = Annotated[str, Path(description="of an answer", examples=["resp_example"])]

_PREFIX = re.compile(r"^(chatcmpl-|cmpl-|resp_|msg_)")
"""The prefix of an answer's id; the id of its request follows it."""


class Receipts:
    """The log of a server's receipts. One thread signs and writes, in the order of the answers."""

    def __init__(self, folder: str | PathLike[str], key: str | PathLike[str]) -> None:
        """Raise InputError where the folder or the key cannot be used."""
        self.log = ReceiptLog(folder, PrivateKey.read(key))
        self._thread = ThreadPoolExecutor(1, "receipts")

    def keep(self, request_id: str, texts: list[Generation]) -> None:
        """Queue the receipts of an answer's finished texts for the thread that writes them."""
        self._thread.submit(self._keep, request_id, texts)

    async def find(self, request_id: str) -> list[ProvenReceipt]:
        """Return the receipts of an answer, once those of all earlier answers are written."""
        return cast(list[ProvenReceipt], await self._run(self.log.find, request_id))

    async def head(self) -> ReceiptsHead:
        """The signed head of the log."""
        return cast(ReceiptsHead, await self._run(self.log.head))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write the queued receipts, and close the log."""
        self._thread.shutdown()
        try:
            self.log.close()
        except CutawayError as error:
            log.event("receipt", level=logging.ERROR, message=str(error))

    def _keep(self, request_id: str, texts: list[Generation]) -> None:
        for text in texts:
            if text.ended is None or text.ended.error:
                continue  # it never began, or an error ended it, which nobody can check
            try:
                if text.between and text.between.drawn:
                    raise InputError(
                        "suffix", ": this text was chosen among others; it has no receipt"
                    )
                end = end_of(text.ended)
                receipt = Receipt.sign_run(text.head(), text.steps, end, self.log.key)
                self.log.append(request_id, receipt)
            except InputError as error:  # such as a canvas, which has no receipt
                log.event("receipt", request=request_id, message=str(error))
            except CutawayError as error:
                log.event("receipt", level=logging.ERROR, request=request_id, message=str(error))

    async def _run(self, work: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def install(app: FastAPI, settings: ServerSettings) -> Receipts | None:
    """Open the log where the settings ask for receipts, and have each answer sent to it."""
    receipts: Receipts | None = None
    if settings.receipts is not None and settings.receipt_key is not None:
        folder = pathlib.Path(settings.receipts).expanduser()
        receipts = Receipts(folder, settings.receipt_key)
        app.state.keep = receipts.keep
    app.state.receipts = receipts
    return receipts


@router.get("/v1/receipts", responses=replies(ReceiptsHead, 404))
async def head(request: Request) -> Response:
    """The signed head of the log: keep it elsewhere, and no receipt can be taken out unseen."""
    return JSONResponse(await _receipts(request).head())


@router.get("/v1/receipts/{answer_id}", responses=replies(AnswerReceipts, 404))
async def of_answer(answer_id: AnswerId, request: Request) -> Response:
    """The receipts of an answer, one a text, each with the proof that the log has it."""
    receipts = _receipts(request)
    data = await receipts.find(answer_id) or await receipts.find(
        _PREFIX.sub("", answer_id, count=1)
    )
    if not data:
        raise ApiError(
            404, f"answer_id: there is no receipt of {answer_id!r:.60}", param="answer_id"
        )
    answer: AnswerReceipts = {"object": "receipts", "id": answer_id, "data": data}
    return JSONResponse(answer)


def _receipts(request: Request) -> Receipts:
    receipts: Receipts | None = request.app.state.receipts
    if receipts is None:
        raise ApiError(404, "this server writes no receipts: start it with --receipts FOLDER")
    return receipts
