"""``cutaway.features.cluster.generate`` on a real Ray: killed and resumed; mistakes."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from cutaway import LLM
from cutaway.features.cluster.rows import BulkJob

OPTIONS = {"max_tokens": 150, "temperature": 1.0, "ignore_eos": True, "seed": 5}
ROWS = 400
ENDS = 120  # seconds that a run may take

DRIVER = """
import sys, ray, ray.data
from cutaway import CutawayError
from cutaway.features.cluster import generate
ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
{body}
"""


def test_importing_the_room_needs_no_ray():
    code = (
        "import sys, cutaway.features.cluster; "
        "print([m for m in sys.modules if m.startswith('ray')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_without_the_extra_it_says_what_is_missing():
    code = """if True:
        import sys
        sys.modules["ray"] = None
        from cutaway import InputError
        from cutaway.features.cluster import generate
        try: generate(None)
        except InputError as error: print(error)
    """
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.endswith("pip install 'cutaway[ray-data]'\n") and said.count("\n") == 1


class Driver:
    """A process that starts a Ray of its own, and runs the lines of ``body``."""

    def __init__(self, folder, body):
        self.mark = f"CUTAWAY_TEST_OF={folder}"
        env = os.environ | dict([self.mark.split("=", 1)]) | {"RAY_TMPDIR": "/tmp"}
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER.format(body=body)],
                stdout=subprocess.PIPE, stderr=log, env=env, text=True,
            )  # fmt: skip

    def of_it(self, name=""):
        """The processes of its Ray, by the beginning of their command."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = self.mark.encode() in (place / "environ").read_bytes().split(b"\0")
                if ours and (place / "cmdline").read_bytes().startswith(name.encode()):
                    found.append(int(place.name))
        return found

    def answer(self):
        said, _ = self.process.communicate(timeout=ENDS)
        assert self.process.returncode == 0, self.log.read_text()[-4000:]
        return json.loads(said.splitlines()[-1])

    def end(self):
        self.process.kill()
        self.process.wait()
        patience = monotonic() + 20
        while left := self.of_it():
            if monotonic() > patience:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            sleep(0.1)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def driver(tmp_path):
    pytest.importorskip("ray.data", reason="needs ray: pip install '.[test-ray]'")
    drivers = []

    def start(body):
        drivers.append(Driver(tmp_path, body))
        return drivers[-1]

    yield start
    for one in drivers:
        one.end()


def until(true, driver):
    patience = monotonic() + ENDS
    while not true():
        assert driver.process.poll() is None and monotonic() < patience, driver.log.read_text()
        sleep(0.02)


@pytest.mark.slow
def test_killed_it_goes_on_and_every_row_is_there_once(tmp_path, tiny_path, driver):
    folder, source = tmp_path / "kept", tmp_path / "rows.jsonl"
    rows = [{"id": f"row {i}", "prompt": "ab" * (i % 7 + 1)} for i in range(ROWS)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = f"""
import json
written = generate(ray.data.read_json({str(source)!r}), model={str(tiny_path)!r}, replicas=(1, 2),
                   batch_size=96, checkpoint={str(folder)!r}, token_ids=True, **{OPTIONS!r})
print(json.dumps(written.take_all()))
"""

    def parts():
        return len(list(folder.glob("run-*/*.parquet")))

    first = driver(body)
    until(lambda: parts() >= 1, first)
    before = first.of_it("ray::MapWorker")
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    kept = parts()
    until(lambda: parts() >= kept + 2, first)  # others have taken their place
    assert not set(before) & set(first.of_it("ray::MapWorker"))
    first.process.kill()
    first.end()
    kept = parts()
    assert 3 <= kept < ROWS / 32
    second = driver(body)
    found = second.answer()
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in rows)
    with LLM(tiny_path, progress=False) as llm:
        seed = BulkJob(None, options=OPTIONS).seed
        for row in found:
            alone = llm.generate(row["prompt"], **OPTIONS | {"seed": seed(row["id"])})
            assert row["token_ids"] == list(alone.token_ids), row
            assert (row["text"], row["fingerprint"]) == (alone.text, alone.fingerprint)
            assert (row["seed"], row["error"]) == (alone.seed, None)


MISTAKES = [
    ("id: the dataset has no column 'name'; it has id, prompt", {"id": "name"}),
    ("prompt: the dataset has no column 'text'", {"prompt": "text"}),
    ("column_prefix: the dataset has a column 'text' already: set a prefix",
     {"id": "prompt", "dataset": "ray.data.from_items([{'prompt': 'a', 'text': 'b'}])"}),
    ("id: several rows have the id 1", {"dataset": "twice"}),
    ("dataset has no rows", {"dataset": "ray.data.from_items([])"}),
    ("dataset must be one of Ray Data", {"dataset": "[1]"}),
    ("temperature must be", {"temperature": -1}),
    ("n must be 1", {"n": 2}),
    ("trace: ", {"trace": "x"}),
    ("load: threads is none of backend", {"load": {"threads": 2}}),
    ("context must be between", {"load": {"context": 1}}),
    ("does not exist; check the path", {"model": "/nowhere/x.gguf"}),
    ("cores must be 3 or fewer: no node has 4", {"cores": 4}),
    ("replicas: 3 with 1 cores each leave none of the cluster's 3", {"replicas": 3}),
    ("replicas must be 1 or more", {"replicas": 0}),
    ("replicas must be a number or (fewest, most)", {"replicas": (1, 2, 3)}),
    ("batch_size must be", {"batch_size": 0}),
]  # fmt: skip


@pytest.mark.slow
def test_mistakes_are_one_sentence(tmp_path, tiny_path, driver):
    cases = [(tiny_path, tmp_path, case) for _, case in MISTAKES]
    body = f"""
import json
one = ray.data.from_items([{{"id": 1, "prompt": "a"}}])
twice = one.union(one)
said = []
for place, case in enumerate({[case for *_, case in cases]!r}):
    given = dict(model={str(tiny_path)!r}, checkpoint={str(tmp_path)!r} + f"/kept{{place}}") | case
    try:
        generate(eval(given.pop("dataset", "one")), **given)
        said.append("nothing")
    except CutawayError as error:
        said.append(str(error))
# A dataset that changes under a folder of finished rows
same = dict(model={str(tiny_path)!r}, checkpoint={str(tmp_path)!r} + "/kept", max_tokens=2)
said.append(generate(one, **same).count())
said.append(generate(one, **same).count())
other, gone = ({{"id": 1, "prompt": "b"}}, {{"id": 2, "prompt": "a"}})
for dataset, case in ((one, dict(max_tokens=3)), (ray.data.from_items([other]), {{}}),
                      (ray.data.from_items([gone]), {{}})):
    try: said.append(generate(dataset, **same | case).count())
    except CutawayError as error: said.append(str(error))
# Lazy, without a folder
rows = generate(one, model={str(tiny_path)!r}, column_prefix="my_", max_tokens=2).take_all()
said.append(sorted(rows[0]))
print(json.dumps(said))
"""
    *said, one, again, options, prompt, gone, columns = driver(body).answer()
    assert len(said) == len(MISTAKES)
    for sentence, told in zip((sentence for sentence, _ in MISTAKES), said, strict=True):
        assert sentence in told and "\n" not in told
    assert one == again == 1
    assert 'were written with options={"max_tokens": 2}, not {"max_tokens": 3}' in options
    assert "with the id 1 had another prompt" in prompt
    assert "with the id 1 is not in the dataset" in gone
    names = ("error", "finish_reason", "fingerprint", "seed", "system_fingerprint", "text")
    assert columns == sorted(["id", "prompt", *(f"my_{name}" for name in names)])
