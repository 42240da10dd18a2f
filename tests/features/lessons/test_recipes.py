"""The recipes write what the package contains, byte for byte, on every machine.

The canvas needs no download, and is written anew in the usual run; all lessons are in the slow one.
"""

import pytest

from cutaway.errors import InputError
from cutaway.features.lessons import LESSONS, recipe
from cutaway.features.lessons.desk import record
from cutaway.features.lessons.lesson import _DATA, files_in, read, to_archive


def packaged(name):
    return files_in(_DATA.joinpath(f"{name}.tar.xz").read_bytes())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_recipe_writes_what_the_package_contains(threads):
    assert record("canvas", threads) == packaged("canvas")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("smollm2_path")
@pytest.mark.parametrize("name", LESSONS)
def test_each_recipe_writes_what_the_package_contains(name):
    assert record(name) == packaged(name)


def test_the_package_contains_the_lessons_and_no_others():
    names = {path.name.removesuffix(".tar.xz") for path in _DATA.iterdir()}
    assert names == {*LESSONS}
    assert all(read(name).name == name for name in LESSONS)
    assert len({recipe(name) for name in LESSONS}) == len(LESSONS)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_small(name):
    size = len(_DATA.joinpath(f"{name}.tar.xz").read_bytes())
    assert size < (200_000 if any(run.looks for run in read(name).runs) else 100_000)


@pytest.mark.parametrize("name", LESSONS)
def test_no_record_depends_on_the_machine(name):
    for run in read(name).runs:
        assert (run.trace.head.tier, run.trace.head.threads) == ("any", 1)
        assert {step.phases.run for step in run.trace.steps} == {0.0}


def test_an_archive_has_the_same_bytes_each_time():
    contents = packaged("canvas")
    assert to_archive(contents) == to_archive(contents)
    assert files_in(to_archive(contents)) == contents


def test_an_unknown_lesson_is_named():
    with pytest.raises(InputError, match="lesson must be one of by-hand, softmax"):
        read("luck")
    with pytest.raises(InputError, match="not 'luck'"):
        recipe("luck")
