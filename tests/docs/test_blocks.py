"""The commands, JSON and Python in the blocks of README and docs can be parsed."""

import ast
import json
import re
from contextlib import suppress

import pytest

from doc_blocks import commands
from support.doc_pages import PAGES, blocks, calls, named_in_prose, parser_of

KINDS = {"sh", "python", "json", "console", "js", "yaml", "toml", "text", ""}
DIRECTIVES = {"{eval-rst}", "{toctree}"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_parsed(page):
    for block in blocks(page):
        for command in commands(block.script):
            for words in calls(command):
                parser, argv = parser_of(words)
                with suppress(SystemExit):  # of an option that prints something and ends
                    parser.parse(argv)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_prose_exist_with_their_flags(page):
    for words in named_in_prose(page):
        if words[0] == "COMMAND" or words in (["trace"], ["cache"]):
            continue
        parser, argv = parser_of(words)
        for flag in argv:
            assert not flag.startswith("--") or flag in parser._option_string_actions, words


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.kind in KINDS | DIRECTIVES, block
        if block.kind in ("", "text"):  # or its commands would escape
            assert not re.search(r"^(cutaway|\$) ", block.code, re.MULTILINE), block


@pytest.mark.parametrize("page", PAGES)
def test_json_and_python_are_read(page):
    for block in blocks(page):
        if block.kind == "python":
            ast.parse(block.code)
        elif block.kind == "json":
            for line in block.code.splitlines():
                json.loads(line)
