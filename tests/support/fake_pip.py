"""Stands in for pip: ``python fake_pip.py download ... --dest FOLDER REQUIREMENT ...``.

Takes its wheels from $FAKE_WHEELS, writes a line to $FAKE_LOG per run and its process id to
$FAKE_LOG.pid, waits $FAKE_SLEEP seconds
half-way, and fails with the text of $FAKE_ERROR.
"""

import os
import shutil
import sys
import time
from pathlib import Path


def main() -> int:
    arguments = sys.argv[1:]
    after_dest = arguments[arguments.index("--dest") + 1 :]
    folder, requirements = Path(after_dest[0]), after_dest[1:]
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(" ".join(requirements) + "\n")
    Path(os.environ["FAKE_LOG"] + ".pid").write_text(str(os.getpid()))
    Path(os.environ["TMPDIR"], "half.whl").write_bytes(b"half")
    time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
    if error := os.environ.get("FAKE_ERROR"):
        print(error, file=sys.stderr)
        return 1
    for wheel in Path(os.environ["FAKE_WHEELS"]).glob("*.whl"):
        shutil.copy(wheel, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
