"""The page "A class of 45 minutes" as HTML: a plan, and paragraphs that open lessons.

Knows no text of the class (class_text.py) but its frame, needs no script, and folds answers with
the elements that HTML has for it.
"""

import re
from html import escape
from itertools import accumulate
from pathlib import Path

from cutaway.features.lessons import pages
from cutaway.features.lessons.class_text import CHAPTERS, MACHINE, Chapter, Paragraph
from cutaway.trace.web.bundle import style

TITLE = f"A class of {sum(chapter.minutes for chapter in CHAPTERS)} minutes"
_FIGURE = re.compile(r"\{(.+?)\}")


def class_page(folder: str = "", suffix: str = ".html", static: str | None = None) -> str:
    """Return the document.

    folder, suffix: the beginning and the end of a lesson's address
    static: where its style is; None: the document contains it, and there is no other page
    """
    ends = accumulate(chapter.minutes for chapter in CHAPTERS)
    times = [(end - chapter.minutes, end) for chapter, end in zip(CHAPTERS, ends, strict=True)]
    timed = [*zip(CHAPTERS, times, strict=True)]
    sheet = f"<style>{style('style.css', 'css/class.css')}</style>"
    links = {"The page that writes": "./"} if static else {}
    links["All lessons"] = f"{folder}index{suffix}" if suffix else folder.rstrip("/")
    return _PAGE.format(
        title=TITLE,
        styles=_links(static) if static else sheet,
        links=" ".join(f'<a href="{to}">{words}</a>' for words, to in links.items()),
        machine=" → ".join(f"<b>{word}</b>" for word in MACHINE),
        plan="\n".join(_plan_row(chapter, *minutes) for chapter, minutes in timed),
        chapters="\n".join(_section(*pair, folder, suffix) for pair in timed),
    )


def write_class(out: Path, static: str) -> None:
    """Write the class beside an exported page, and the lessons into a folder of their own."""
    home = {TITLE: "../class.html", "The page": "../"}
    lessons = out / "lessons"
    pages.write(lessons, addresses=pages.Addresses(static=f"../{static}"))
    (lessons / "index.html").write_text(pages.index(home), "utf-8")
    (out / "class.html").write_text(class_page("lessons/", static=static), "utf-8")


def _links(static: str) -> str:
    sheets = (f'<link rel="stylesheet" href="{static}/{name}.css">' for name in ("page", "class"))
    return "\n  ".join([f'<link rel="icon" href="{static}/icon.svg">', *sheets])


def place(paragraph: Paragraph, folder: str = "lessons/", suffix: str = "") -> str:
    """Return the address of the sentence that a paragraph opens, from the class page on."""
    return f"{folder}{paragraph.lesson}{suffix}#point={paragraph.point}"


def plain(text: str) -> str:
    """Return a paragraph's text without the marks of its figures."""
    return _FIGURE.sub(r"\1", text)


def slug(title: str) -> str:
    """Return what a title is called in an address."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _plan_row(chapter: Chapter, begin: int, end: int) -> str:
    return (
        f'<tr><td>{begin}–{end}</td><th scope="row"><a href="#{slug(chapter.title)}">'
        f"{escape(chapter.title)}</a></th><td>{chapter.minutes} minutes</td></tr>"
    )


def _section(chapter: Chapter, minutes: tuple[int, int], folder: str, suffix: str) -> str:
    begin, end = minutes
    name = slug(chapter.title)
    paragraphs = "\n".join(_article(paragraph, folder, suffix) for paragraph in chapter.paragraphs)
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(chapter.title)} '
        f"<small>minutes {begin}–{end}</small></h2>\n{paragraphs}\n</section>"
    )


def _article(paragraph: Paragraph, folder: str, suffix: str) -> str:
    text = _FIGURE.sub(r'<b class="figure">\1</b>', escape(paragraph.text, quote=False))
    title, name = escape(paragraph.title), slug(paragraph.title)
    return (
        f'<article aria-labelledby="{name}">\n<h3 id="{name}">{title}</h3>\n'
        f'<p>{text}</p>\n<p class="place"><a href="{place(paragraph, folder, suffix)}" '
        f'aria-label="See it: {title}">See it</a></p>\n'
        f"<details><summary>{escape(paragraph.question)}</summary>\n"
        f"<p>{escape(paragraph.answer)}</p></details>\n</article>"
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title} · cutaway</title>
  {styles}
</head>
<body class="class">
<header>
  <h1>{title}</h1>
  <nav aria-label="Pages">{links}</nav>
  <label><input type="checkbox" id="large"> Large type</label>
</header>
<main>
<p>How does a machine write? It guesses the next word, and the next, and the next. Every paragraph
is a claim that you can look at: <em>See it</em> opens a text that a small model really wrote, at
the place where the claim shows. <b class="figure">Figures</b> in this type are taken from it. Ask
the question first, then unfold the answer.</p>
<p class="machine">{machine} <span>→ and again</span></p>
<table class="plan">
<caption>The plan</caption>
<thead>
<tr><th scope="col">When</th><th scope="col">Chapter</th><th scope="col">Length</th></tr>
</thead>
<tbody>
{plan}
</tbody>
</table>
{chapters}
</main>
</body>
</html>
"""
