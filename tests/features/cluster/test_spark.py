"""The two blocks of docs/spark.md, run by a Spark of this machine."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutaway import LLM

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
