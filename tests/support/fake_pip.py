"""Replaces pip: ``python fake_pip.py download ... --dest FOLDER REQUIREMENT ...``.

The program takes its wheels from $FAKE_WHEELS, and writes a line per run to $FAKE_LOG and its
process id to $FAKE_LOG.pid. Half-way it waits until no process holds the lock of $FAKE_GATE. It
fails with the text of $FAKE_ERROR, if that is set.
"""

import fcntl
import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    arguments = sys.argv[1:]
    after_dest = arguments[arguments.index("--dest") + 1 :]
    folder, requirements = Path(after_dest[0]), after_dest[1:]
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(" ".join(requirements) + "\n")
    Path(os.environ["FAKE_LOG"] + ".pid").write_text(str(os.getpid()))
    Path(os.environ["TMPDIR"], "half.whl").write_bytes(b"half")
    if gate := os.environ.get("FAKE_GATE"):
        with Path(gate).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    if error := os.environ.get("FAKE_ERROR"):
        print(error, file=sys.stderr)
        return 1
    for wheel in Path(os.environ["FAKE_WHEELS"]).glob("*.whl"):
        shutil.copy(wheel, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
