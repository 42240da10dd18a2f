"""``/lessons`` and ``/class``, which share the served page's script and style."""

import gzip
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from threading import Lock

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from cutaway.features.lessons import LESSONS
from cutaway.features.lessons.class_page import TITLE, class_page
from cutaway.features.lessons.lesson import read
from cutaway.features.lessons.pages import INDEX_STYLE, Addresses, index, page
from cutaway.server.body import StrictRoute
from cutaway.server.http.errors import ApiError
from cutaway.server.routes.page import POLICY, REVALIDATED, PageFile
from cutaway.trace.web.bundle import served_files

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

PAGES = {"lessons": "/lessons", "class": "/class"}
OPEN_PATHS = ("/class", "/class/", "/lessons", "/lessons/")
"""Paths that need no key: the lessons have nothing of the served model."""
_LOCK = Lock()
_STYLE_HASH = f"'sha256-{b64encode(sha256(INDEX_STYLE.encode()).digest()).decode()}'"
_INDEX_POLICY = {
    "content-security-policy": POLICY["content-security-policy"].replace(
        "style-src 'self'", f"style-src {_STYLE_HASH}"
    )
}


@router.get("/lessons")
def lessons(request: Request) -> Response:
    """Answer with the index of the lessons; a thread reads them when it is first asked for."""
    answer = _compose(_index).answer(request.headers)
    answer.headers.update(POLICY | _INDEX_POLICY)
    return answer


@router.get("/lessons/{name}")
def lesson(name: str, request: Request) -> Response:
    """Answer with a lesson's page; a thread composes it when it is first asked for."""
    if name not in LESSONS:
        raise ApiError(404, f"there is no lesson {name!r:.100}: GET /lessons lists them")
    answer = _compose(_page, name).answer(request.headers)
    answer.headers.update(POLICY)
    return answer


@router.get("/class")
def lesson_plan(request: Request) -> Response:
    """Answer with the page of the class."""
    answer = _compose(_class).answer(request.headers)
    answer.headers.update(POLICY)
    return answer


@router.get("/lessons/")
def lessons_without_slash() -> Response:
    """Redirect to the index, whose links are relative to a path without a slash."""
    return RedirectResponse("../lessons", 308)


@router.get("/class/")
def class_without_slash() -> Response:
    """Redirect to the class, likewise."""
    return RedirectResponse("../class", 308)


def _compose(document: Callable[..., PageFile], *names: str) -> PageFile:
    """Return a document, which is composed once, though many ask for it at first."""
    with _LOCK:
        return document(*names)


@cache
def _class() -> PageFile:
    return _document(class_page("lessons/", "", served_files().folder))


@cache
def _index() -> PageFile:
    return _document(index({TITLE: "class", "The page": "./"}, "lessons/", ""))


@cache
def _page(name: str) -> PageFile:
    static = f"../{served_files().folder}"
    return _document(page(read(name), Addresses("../lessons", "", static, "../")))


def _document(text: str) -> PageFile:
    content = text.encode()
    return PageFile(content, gzip.compress(content), "text/html", REVALIDATED)
