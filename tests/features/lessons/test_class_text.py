"""The class's text: its figures are those of the lessons that it opens, its words no jargon."""

import re
from pathlib import Path

import pytest

from cutaway.features.lessons.class_page import TITLE, class_page, place, plain, slug
from cutaway.features.lessons.class_text import CHAPTERS, MACHINE
from cutaway.features.lessons.lesson import read

DOCS = Path(__file__).parents[3] / "docs"
PARAGRAPHS = [paragraph for chapter in CHAPTERS for paragraph in chapter.paragraphs]
BY_TITLE = {paragraph.title: paragraph for paragraph in PARAGRAPHS}
FIGURE = re.compile(r"\{(.+?)\}")
NUMBER = re.compile(r"[−+]?\d+(?:,\d{3})*(?:\.\d+)?%?")
KNOWN = {"2.72"}  # the number e
CLAIMS = 22


def sentence(paragraph):
    return read(paragraph.lesson).points[paragraph.point - 1].text


@pytest.mark.parametrize("title", BY_TITLE)
def test_its_figures_are_in_the_sentence_that_it_opens(title):
    paragraph = BY_TITLE[title]
    figures = FIGURE.findall(paragraph.text)
    assert figures, "a claim has a figure"
    for figure in figures:
        whole = rf"(?<![\d.,]){re.escape(figure)}(?![.,]?\d)"
        assert re.search(whole, sentence(paragraph)), figure


@pytest.mark.parametrize("title", BY_TITLE)
def test_all_its_numbers_are_in_the_lesson(title):
    paragraph = BY_TITLE[title]
    lesson = read(paragraph.lesson)
    said = " ".join([lesson.question, lesson.answer, *(point.text for point in lesson.points)])
    asked = f"{plain(paragraph.text)} {paragraph.question} {paragraph.answer}"
    missing = {*NUMBER.findall(asked)} - {*NUMBER.findall(said)} - KNOWN
    assert not {number for number in missing if number not in ("0", "1")}


def test_it_takes_as_long_as_its_name_says():
    assert sum(chapter.minutes for chapter in CHAPTERS) == 45
    assert TITLE == "A class of 45 minutes"


def test_no_word_is_one_of_the_glossary():
    rows = re.findall(r"^\| ([^|]+) \| ", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    own = [word for word in rows if word not in ("word", "---")]
    assert len(own) > 15
    for paragraph in PARAGRAPHS:
        words = " ".join(paragraph[i] for i in (0, 1, 4, 5)).lower()
        used = [word for word in own if re.search(rf"\b{word}s?\b", words)]
        assert not used, paragraph.title


def test_the_machine_has_its_five_words_in_their_order():
    assert MACHINE == ("forward pass", "logits", "softmax", "sample", "append")
    page = class_page()
    assert " → ".join(f"<b>{word}</b>" for word in MACHINE) in page
    assert " → ".join(MACHINE) in read("by-hand").question
    loop = [point.text.split(".")[0].lower() for point in read("by-hand").points]
    assert loop == [*MACHINE]


def test_each_paragraph_has_its_own_address():
    assert len({slug(paragraph.title) for paragraph in PARAGRAPHS}) == len(PARAGRAPHS)
    page = class_page("lessons/", "")
    for paragraph in PARAGRAPHS:
        assert f'href="{place(paragraph)}"' in page


def test_the_table_of_claims_names_paragraphs_and_their_addresses():
    table = (DOCS / "class.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+?) \| `/(.+?)` \| (\d) \|$", table, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == [*range(1, CLAIMS + 1)]
    for _, title, address, clicks in rows:
        assert place(BY_TITLE[title]) == address
        assert clicks == "2"
