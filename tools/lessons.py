"""Write the lessons' recorded runs anew, by their recipes, into the package.

    python tools/lessons.py             all lessons
    python tools/lessons.py LESSON …    those that are named

A lesson whose files are the same keeps its archive. SmolLM2 is fetched if it is not in the cache.
"""

import argparse
from pathlib import Path

from cutaway.features.lessons import LESSONS
from cutaway.features.lessons.desk import record
from cutaway.features.lessons.lesson import files_in, to_archive

DATA = Path(__file__).parents[1] / "src/cutaway/features/lessons/data"


def main() -> None:
    """Write the archives that changed, and print the size of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="LESSON", help="default: all")
    names = parser.parse_args().names or [*LESSONS]
    DATA.mkdir(exist_ok=True)
    for name in names:
        path, contents = DATA / f"{name}.tar.xz", record(name)
        changed = not path.exists() or files_in(path.read_bytes()) != contents
        if changed:
            path.write_bytes(to_archive(contents))
        print(f"{name:16} {path.stat().st_size / 1e3:6.1f} kB {'changed' if changed else ''}")


if __name__ == "__main__":
    main()
