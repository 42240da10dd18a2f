"""Each keyword of a request is a field of each form of requests, or the table says why not."""

import re
from pathlib import Path

import pytest

from cutaway.features.anthropic.requests import MessagesRequest
from cutaway.features.ollama.requests import OllamaGenerateRequest, OllamaOptions
from cutaway.requests.keywords import KEYWORDS, NOT_THERE, Absent
from cutaway.server.openai.chat import ChatRequest
from cutaway.server.openai.completions import CompletionRequest
from cutaway.server.openai.responses_request import ResponsesRequest
from support.keyword_table import keyword_table, written

FACES = {
    "chat": ChatRequest.model_fields,
    "completions": CompletionRequest.model_fields,
    "responses": ResponsesRequest.model_fields,
    "messages": MessagesRequest.model_fields,
    "ollama": {**OllamaGenerateRequest.model_fields, **OllamaOptions.model_fields},
}
PARAMETERS = Path(__file__).parents[2] / "src/cutaway/trace/web/js/compose/parameters.js"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", KEYWORDS)
def test_a_keyword_is_there_or_it_is_said_why_not(name, face):
    row = KEYWORDS[name]
    if field := row.field(name, face):
        assert field in FACES[face]
        return
    why = row.fields.why if isinstance(row.fields, Absent) else NOT_THERE[face]
    assert len(why) > 10 and name not in FACES[face]


def test_the_page_has_the_controls_that_the_table_says():
    script = PARAMETERS.read_text()
    named = set(re.findall(r'"(\w+)"', script[script.index("export const LENGTH") :]))
    numbers = {name for name, row in KEYWORDS.items() if row.kind == "number"}
    controls = {name for name, row in KEYWORDS.items() if row.page}
    assert controls - numbers - {"denoise"} == named & KEYWORDS.keys() - numbers
    assert numbers <= controls and NOT_THERE["page"]


def test_the_docs_have_the_table():
    assert written() == keyword_table(), "PYTHONPATH=tests python -m support.keyword_table"
