"""Python's headers and import library for a compiler for Windows, made from this machine's Python.

They suffice to try compiling and linking against the stable ABI. Published wheels are built on
Windows, with its own Python.
"""

import shutil
from pathlib import Path

from release_report import Report

# All parts of the limited API's headers that differ on Windows.
PYCONFIG = """\
#include <stdio.h>
#define MS_WINDOWS
#define MS_WIN32
#define MS_WIN64
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED 1
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_VOID_P 8
#define SIZEOF_WCHAR_T 2
"""
# abi3audit knows the stable ABI; this prints it for a linker.
NAMES = """\
import abi3info
print("LIBRARY python3.dll", "EXPORTS", sep="\\n")
for names, kind in ((abi3info.FUNCTIONS, ""), (abi3info.DATAS, " DATA")):
    for symbol in names:
        print(f"  {symbol.name}{kind}")
"""


def python_of_windows(
    report: Report, python: Path, minor: int, tools: Path, folder: Path
) -> dict[str, str]:
    """Make an import library; return CMake's variables of it and of this ``python``'s headers.

    Raises:
        CheckError: if zig cannot make the library.
    """
    said = "import sysconfig; print(sysconfig.get_path('include'))"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(report.run(python, "-c", said).strip(), folder)
    (folder / "pyconfig.h").write_text(PYCONFIG)
    names, library = folder / "python3.def", folder / "python3.lib"
    names.write_text(report.run(tools / "python", "-c", NAMES))
    report.run(tools / "python", "-m", "ziglang", "dlltool", "-m", "i386:x86-64",
               "-d", names, "-l", library)  # fmt: skip
    return {
        "Python_INCLUDE_DIR": str(folder),
        "Python_SABI_LIBRARY": str(library),
        # Not linked, but CMake wants a library of this name.
        "Python_LIBRARY": str(shutil.copy(library, folder / f"python3{minor}.lib")),
    }
