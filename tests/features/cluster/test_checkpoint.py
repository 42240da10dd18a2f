"""A folder of finished rows: added to, never mixed, and closed to whoever was killed."""

import json

import pytest

from cutaway import CutawayError, InputError
from cutaway.features.cluster.rows import Checkpoint, part_name, write_part

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[test-ray]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install '.[test-ray]'")
ABOUT = {"model": "m", "options": {"seed": 3}}


def rows(*ids):
    return pa.table({"id": list(ids)})


def found(parts):
    return sorted(i for file in parts.files() for i in parquet.read_table(file)["id"].to_pylist())


def test_a_run_continues_one_that_was_killed(tmp_path):
    first = Checkpoint(tmp_path / "new" / "folder", ABOUT)
    run = first.open()
    write_part(run, rows(1, 2), part_name([1, 2]))
    (run / ".half-written").write_bytes(b"PAR1")  # killed here
    second = Checkpoint(first.path, ABOUT)
    assert found(second) == [1, 2] and not list(first.path.glob("*/.half*"))
    write_part(second.open(), rows(3), part_name([3]))
    second.close()
    assert found(Checkpoint(first.path, ABOUT)) == [1, 2, 3]
    assert not list(first.path.glob("*.open"))


def test_leftover_workers_of_a_killed_run_cannot_write(tmp_path):
    run = Checkpoint(tmp_path, ABOUT).open()
    write_part(run, rows(1), part_name([1]))
    later = Checkpoint(tmp_path, ABOUT)
    now = later.open()
    with pytest.raises(CutawayError, match="another run has taken over"):
        write_part(run, rows(2), part_name([2]))
    write_part(now, rows(2), part_name([2]))
    assert found(later) == [1, 2]


def test_rows_that_are_written_again_are_there_once(tmp_path):
    parts = Checkpoint(tmp_path, ABOUT)
    run = parts.open()
    for _ in range(3):
        write_part(run, rows(1, 2), part_name([1, 2]))
    assert found(parts) == [1, 2]


def test_names_follow_from_the_ids():
    assert part_name([1, 2]) == part_name([1, 2])
    assert len({part_name(ids) for ids in ([1, 2], [2, 1], ["1", 2], [12], [])}) == 5


def test_rows_of_another_job_are_not_added_to(tmp_path):
    Checkpoint(tmp_path, ABOUT)
    with pytest.raises(InputError, match=r'were written with model="m", not "other"'):
        Checkpoint(tmp_path, ABOUT | {"model": "other"})
    with pytest.raises(InputError, match=r'options=\{"seed": 3\}, not \{"seed": 4\}'):
        Checkpoint(tmp_path, ABOUT | {"options": {"seed": 4}})


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="holds other files: name a new folder"):
        Checkpoint(tmp_path, ABOUT)
    with pytest.raises(InputError, match="mine: File exists"):
        Checkpoint(tmp_path / "mine", ABOUT)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("told", ["", "[]", "{}", json.dumps(ABOUT | {"more": 1})])
def test_a_damaged_description_is_refused(tmp_path, told):
    (tmp_path / "_about.json").write_text(told)
    with pytest.raises(InputError, match="is not one that cutaway wrote"):
        Checkpoint(tmp_path, ABOUT)
