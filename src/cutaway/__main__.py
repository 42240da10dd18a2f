"""``python -m cutaway`` is the command ``cutaway``."""

import sys

from cutaway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
