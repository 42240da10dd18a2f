"""The machines that wheels are built for, and zig's Clang as a cross compiler for each.

Knows the switches of CMake and zig, and nothing of wheels.
"""

from dataclasses import dataclass
from pathlib import Path

X86 = ("amx", "avx512", "avxvnni", "avx2", "generic", "amx-plain")
ARM = ("i8mm", "neon", "generic", "amx-plain")


@dataclass(frozen=True)
class Target:
    """One kind of machine.

    zig       its name in zig
    system    its operating system's name in CMake
    platform  its name in Python, by sysconfig.get_platform()
    tag       of its wheel: the oldest operating system that the wheel serves
    takes     the tags that pip accepts on the oldest system with wheels of all requirements
    tiers     the instruction sets that the wheel has kernels for
    """

    name: str
    zig: str
    system: str
    platform: str
    tag: str
    takes: tuple[str, ...]
    tiers: tuple[str, ...]

    @property
    def machine(self) -> str:
        """The processor's name in CMake and in tags."""
        return "arm64" if self.platform.endswith("arm64") else self.zig.partition("-")[0]


def _takes(machine: str) -> tuple[str, ...]:
    """The tags from glibc 2.31 on, which llguidance's wheels need."""
    minors = (31, 28, 27, 26, 24, 17)
    return (*(f"manylinux_2_{n}_{machine}" for n in minors), f"manylinux2014_{machine}")


_INTEL_MAC = tuple(f"macosx_{n}_x86_64" for n in ("11_0", "10_15", "10_13", "10_12", "10_9"))

TARGETS = (
    Target("linux-x86_64", "x86_64-linux-gnu.2.28", "Linux", "linux-x86_64",
           "manylinux_2_28_x86_64", _takes("x86_64"), X86),
    Target("linux-aarch64", "aarch64-linux-gnu.2.28", "Linux", "linux-aarch64",
           "manylinux_2_28_aarch64", _takes("aarch64"), ARM),
    Target("macos-arm64", "aarch64-macos.11.0", "Darwin", "macosx-11.0-arm64",
           "macosx_11_0_arm64", ("macosx_11_0_arm64",), ARM),
    Target("macos-x86_64", "x86_64-macos.11.0", "Darwin", "macosx-11.0-x86_64",
           "macosx_11_0_x86_64", _INTEL_MAC, X86),
    Target("windows-x86_64", "x86_64-windows-gnu", "Windows", "win-amd64",
           "win_amd64", ("win_amd64",), X86),
)  # fmt: skip

# zig uses LLVM's names for an ARM processor's features. For macOS, zig's linker reads no argument
# files and crashes when it links a bundle. CMake wants this machine's libdl also for Windows.
# Without -O2 in CMake's compiler test, zig would compile a second libc++, for debugging.
COMPILER = """#!/bin/sh
for word; do
  shift
  case $word in
    -march=armv8.2-a+dotprod+fp16*)
      word=-mcpu=generic+v8_2a+dotprod+fullfp16${{word#-march=armv8.2-a+dotprod+fp16}} ;;
    -Wl,@*darwin-ld*) word=-Wl,-undefined,dynamic_lookup ;;
    -bundle) word=-dynamiclib ;;
    -ldl) case {zig} in *windows*) continue ;; esac ;;
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
    for name, tool in (("ar", "ar"), ("ranlib", "ranlib"), ("windres", "rc")):
        programs[name] = TOOL.format(python=python, tool=tool)
    programs["install_name_tool"] = "#!/bin/sh\n"  # nothing is renamed
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.machine,
        "CMAKE_CXX_COMPILER": str(folder / "c++"),
        "CMAKE_AR": str(folder / "ar"),
        "CMAKE_RANLIB": str(folder / "ranlib"),
        "CMAKE_RC_COMPILER": str(folder / "windres"),
        "CMAKE_INSTALL_NAME_TOOL": str(folder / "install_name_tool"),
    }
