"""The example of docs/structured.md runs."""

import re
from pathlib import Path


def test_the_example_runs(smollm2_path):
    text = Path(__file__, "../../../docs/structured.md").resolve().read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "docs/structured.md", "exec"), {})
