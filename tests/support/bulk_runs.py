"""Records that ``cutaway generate --input`` wrote, and their parts that must not change."""

import json
import sys

PYTHON = [sys.executable, "-m", "cutaway", "generate"]


def records(path):
    if not path.exists():
        return None
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def index_by_line(records):
    assert len({record["line"] for record in records}) == len(records)
    return {record["line"]: record for record in records}


def essence(document):
    return [document[k] for k in ("text", "token_ids", "seed", "fingerprint", "finish_reason")]
