"""README's first look: commands, and what each of them prints.

    python bench/first_look.py [--write README.md]

Runs them one after the other in one folder, which is empty at first and deleted at the end. A
command's standard output is followed by its standard error, which has the statistics. An output of
more than LINES lines is cut, and ends in "…".
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from script import check_page, parser_of, publish

BLOCKS = (
    (
        'cutaway generate "The capital of France is" --temperature 0 --stop .',
        'cutaway generate "A city as JSON:" --temperature 0 --json-schema true',
    ),
    (
        'cutaway generate "The sky is" --seed 7 --max-tokens 24 --trace run.jsonl',
        "cutaway trace why run.jsonl",
        'cutaway trace branch run.jsonl --at 2 --token " never" --quiet',
    ),
    ('cutaway fill "Paris is the [MASK] of France."',),
)
LINES = 6
"""How many lines of an output are shown; one more, if that is all."""


def shown(command: str, folder: Path) -> str:
    """The command after a prompt, and its output."""
    program = f'"{sys.executable}" -m {command}'
    done = subprocess.run(
        program, shell=True, cwd=folder, capture_output=True, text=True, check=True
    )
    out = [done.stdout.rstrip("\n"), done.stderr.rstrip("\n")]
    lines = "\n".join(filter(None, out)).splitlines()
    cut = [*lines[:LINES], "…"] if len(lines) > LINES + 1 else lines
    return "\n".join([f"$ {command}", *cut])


def main() -> int:
    args = parser_of(__doc__, model=False, write="README.md").parse_args()
    check_page(args.write, "first-look")
    with tempfile.TemporaryDirectory() as folder:
        texts = [[shown(command, Path(folder)) for command in block] for block in BLOCKS]
    page = "\n\n".join("```console\n" + "\n\n".join(block) + "\n```" for block in texts)
    publish(page, {"commands": sum(map(len, BLOCKS))}, args.write, "first-look")
    return 0


if __name__ == "__main__":
    sys.exit(main())
