"""``cutaway.features.cluster.generate`` on a real Ray: killed and resumed; mistakes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.features.cluster.rows import COLUMNS, BulkJob, digest
from support.adapters import adapter_of

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


# -- rows ------------------------------------------------------------------------------------------

# A row of a dataset, written without Ray: its columns, its seed, and its own mistakes.


ROW_OPTIONS = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True}
IDS = st.one_of(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1))


@pytest.fixture(scope="module")
def llm(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        yield llm


def written(llm, rows, **job):
    job = BulkJob(None, options=ROW_OPTIONS | job.pop("options", {}), **job)
    found = dict(job.write(llm, rows))
    assert sorted(found) == list(range(len(rows)))
    return [found[place] for place in range(len(rows))]


def test_a_row_is_what_one_model_writes_with_its_seed(llm):
    rows = [("a", "abc"), (7, [1, 9, 4]), ("chat", [{"role": "user", "content": "ab", "x": None}])]
    prompts = ["abc", [1, 9, 4], llm.chat_prompt([{"role": "user", "content": "ab"}])]
    for row, prompt in zip(written(llm, rows, token_ids=True), prompts, strict=True):
        alone = llm.generate(prompt, seed=row["seed"], **ROW_OPTIONS)
        assert row["text"] == alone.text and row["fingerprint"] == alone.fingerprint
        assert row["token_ids"] == list(alone.token_ids)
        assert (row["finish_reason"], row["error"]) == ("max_tokens", None)
        assert row["system_fingerprint"] == llm.model.system_fingerprint


def test_rows_of_an_adapter_say_whose_bits_they_are(tiny_path, tmp_path):
    lora = adapter_of(tiny_path, tmp_path / "poet.gguf")
    with LLM(tiny_path, adapters={"poet": lora}) as llm:
        [row] = written(llm, [("a", "abc")], options={"adapter": "poet"})
    with LLM(tiny_path, lora=lora) as alone:
        done = alone.generate("abc", seed=row["seed"], **ROW_OPTIONS)
        told = done.fingerprint, alone.model.system_fingerprint
    assert (row["fingerprint"], row["system_fingerprint"]) == told


@given(st.lists(IDS, unique=True, min_size=2, max_size=6), st.data())
def test_what_a_row_becomes_does_not_depend_on_the_others(llm, ids, data):
    rows = [(name, "ab") for name in ids]
    order = data.draw(st.permutations(rows))
    some = order[: data.draw(st.integers(1, len(order)))]
    apart = dict(zip(ids, written(llm, rows), strict=True))
    assert written(llm, some) == [apart[name] for name, _ in some]


@given(st.lists(st.one_of(IDS, IDS.map(str)), unique_by=lambda x: (type(x), x), min_size=2))
def test_each_id_has_a_seed_of_its_own_that_follows_from_it(ids):
    seeds = [BulkJob(None).seed(name) for name in ids]
    assert len(set(seeds)) == len(ids) and all(0 <= seed < 2**53 for seed in seeds)
    assert seeds == [BulkJob(None, options={"seed": None}).seed(name) for name in ids]
    assert not set(seeds) & {BulkJob(None, options={"seed": 1}).seed(name) for name in ids}


def test_a_mistake_is_told_in_its_row_and_the_others_go_on(llm):
    rows = [("a", "abc"), ("b", None), (1.5, "abc"), (None, "abc"), ("c", [1] * 600), ("d", [[]]),
            ("e", [{"role": "nobody's"}]), (True, "abc"), ("f", "abc")]  # fmt: skip
    found = written(llm, rows)
    good, bad = [found[0], found[-1]], found[1:-1]
    assert all(row["error"] is None and row["text"] for row in good)
    assert all(row["text"] is row["fingerprint"] is None for row in bad)
    for row, sentence in zip(bad, (
        "prompt must be a string", "id must be a text or a whole number, not 1.5", "not None",
        "prompt has 600 tokens", "prompt must be a string", "messages", "not True",
    ), strict=True):  # fmt: skip
        assert sentence in row["error"]


def test_an_error_of_the_engine_is_told_too(llm):
    def fail(tokens, logits):
        raise RuntimeError("mine")

    [row] = written(llm, [("a", "abc")], options={"processors": (fail,)})
    assert "RuntimeError: mine" in row["error"]


def test_the_columns(llm):
    [row] = written(llm, [("a", "abc")], before="my_")
    assert tuple(row) == COLUMNS
    assert BulkJob(None, before="my_").added_columns == {name: f"my_{name}" for name in COLUMNS}
    assert list(BulkJob(None, token_ids=True).added_columns) == [*COLUMNS, "token_ids"]


def test_a_message_is_the_same_with_fields_that_only_others_have():
    assert digest([{"role": "a", "b": None}]) == digest([{"role": "a"}])
    assert len({digest(prompt) for prompt in (None, "", "1", [1], [[1]], ["1"])}) == 6


def test_what_the_model_cannot_load_is_refused(tiny_path):
    with pytest.raises(InputError, match="context"):
        BulkJob(str(tiny_path), load={"context": 1}).open()
    for keyword in ("threads", "owner", "progress"):
        with pytest.raises(InputError, match=f"load: {keyword} is none of adapters, backend"):
            BulkJob(None, load={keyword: None}).check_load()


# -- spark -----------------------------------------------------------------------------------------

# The two blocks of docs/spark.md, run by a Spark of this machine.


DOCS = Path(__file__).parents[3] / "docs/spark.md"
RUN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = [(i, "ab" * (i % 7 + 1)) for i in range(40)] + [(40, "much too long" * 200)]
spark.createDataFrame(rows, "id long, prompt string").write.parquet("prompts")
exec(open("job.py").read())
print([tuple(row) for row in spark.read.parquet("written").collect()])
"""


@pytest.mark.slow
def test_the_example_writes_what_one_model_does(tmp_path, tiny_path):
    if not (find_spec("pyspark") and find_spec("pandas") and shutil.which("java")):
        pytest.skip("needs PySpark, pandas and Java")
    writer, job = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "writer.py").write_text(
        writer.replace('"smollm2", threads=4', f'"{tiny_path}", threads=1')
    )
    (tmp_path / "job.py").write_text(job.replace('.config("spark.task.cpus", 4)', ""))
    env = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }
    run = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=env, text=True, capture_output=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found = {row[0]: row[1:] for row in eval(run.stdout.splitlines()[-1])}
    assert sorted(found) == list(range(41))
    text, fingerprint, error = found.pop(40)
    assert text is None and fingerprint is None and "prompt" in error
    with LLM(tiny_path, progress=False) as llm:
        for i, told in found.items():
            alone = llm.generate("ab" * (i % 7 + 1), max_tokens=100, seed=i)
            assert told == (alone.text, alone.fingerprint, None)
