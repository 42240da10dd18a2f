"""The workflows name jobs, files and targets that there are; GitHub alone can run them."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["check", "docs", "wheels"])
def test_what_a_workflow_names_is_there(name):
    jobs = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert {needs} <= set(jobs) if isinstance(needs, str) else {*needs} <= set(jobs)
        for command in [step["run"] for step in job["steps"] if "run" in step]:
            for file in re.findall(r"\S+\.py\b", command):
                assert (ROOT / file).is_file()
            for target in re.findall(r"^make (\w+)", command):
                assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_wheels_are_tried_where_they_are_built():
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    built, tried = (jobs[name]["strategy"]["matrix"]["machine"] for name in ("wheels", "tried"))
    assert built == tried and jobs["publish"]["needs"] == ["tried", "source"]


def test_forms_ask_for_what_commands_print():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert [path.stem for path in forms] == ["fault", "model", "wrong-number"]
    for path in forms:
        form = yaml.safe_load(path.read_text())
        asked = {field["id"]: field["attributes"] for field in form["body"] if "id" in field}
        assert "`python tools/report.py" in asked["report"]["description"]
        assert {*form} == {"name", "description", "labels", "body"}
