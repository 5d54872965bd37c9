"""The command line: the C++ program that lies in the package, with the same arguments."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from . import _core


def main() -> NoReturn:
    """Becomes the program."""
    program = Path(_core.__file__).parent / "bin" / "flashwok"
    if not program.exists():
        sys.exit("flashwok: this installation was built without the command line")
    os.execv(program, ["flashwok", *sys.argv[1:]])


if __name__ == "__main__":
    main()
