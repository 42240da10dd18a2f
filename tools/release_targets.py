"""The machines that wheels are built for, and zig's Clang as a cross compiler for each.

Knows the switches of CMake and zig. Refuses to know what is done with a wheel.
"""

from dataclasses import dataclass
from pathlib import Path

X86 = ("avx512", "avxvnni", "avx2", "generic")
ARM = ("i8mm", "neon", "generic")


@dataclass(frozen=True)
class Target:
    """One kind of machine.

    zig       what zig calls it
    platform  what Python calls it, as of sysconfig.get_platform()
    tag       the wheel's own, of the oldest systems that it serves
    takes     the tags of wheels that pip takes on the oldest system that has wheels of everything
    tiers     the instruction sets that the wheel has kernels for
    """

    name: str
    zig: str
    platform: str
    tag: str
    takes: tuple[str, ...]
    tiers: tuple[str, ...]

    @property
    def machine(self) -> str:
        """The processor, as CMake and tags have it."""
        return self.zig.partition("-")[0]


def _takes(machine: str) -> tuple[str, ...]:
    """From glibc 2.31 on, which llguidance's wheels ask for."""
    minors = (31, 28, 27, 26, 24, 17)
    return (*(f"manylinux_2_{n}_{machine}" for n in minors), f"manylinux2014_{machine}")


TARGETS = (
    Target("linux-x86_64", "x86_64-linux-gnu.2.28", "linux-x86_64",
           "manylinux_2_28_x86_64", _takes("x86_64"), X86),
    Target("linux-aarch64", "aarch64-linux-gnu.2.28", "linux-aarch64",
           "manylinux_2_28_aarch64", _takes("aarch64"), ARM),
)  # fmt: skip

# zig names what an ARM processor has as LLVM does. Without -O2 where CMake tries the compiler out,
# it would compile a second libc++, for debugging.
COMPILER = """#!/bin/sh
for word; do
  shift
  case $word in
    -march=armv8.2-a+dotprod+fp16*)
      word=-mcpu=generic+v8_2a+dotprod+fullfp16${{word#-march=armv8.2-a+dotprod+fp16}} ;;
  esac
  set -- "$@" "$word"
done
exec '{python}' -m ziglang c++ -target {zig} -O2 "$@"
"""
TOOL = """#!/bin/sh
exec '{python}' -m ziglang {tool} "$@"
"""


def toolchain(target: Target, python: Path, folder: Path) -> dict[str, str]:
    """CMake's variables for the target, with programs of ``folder`` that run this Python's zig."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = {"c++": COMPILER.format(python=python, zig=target.zig)}
    for tool in ("ar", "ranlib"):
        programs[tool] = TOOL.format(python=python, tool=tool)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_CXX_COMPILER": str(folder / "c++"),
        "CMAKE_AR": str(folder / "ar"),
        "CMAKE_RANLIB": str(folder / "ranlib"),
    }
