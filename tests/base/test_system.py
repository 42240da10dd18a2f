"""What a process may use, on machines and in containers that are folders of files.

What a system does not offer does nothing.
"""

import os
import re
import subprocess
import sys
import sysconfig
from mmap import PAGESIZE
from pathlib import Path

import pytest

import cutaway
from cutaway import InputError
from cutaway.base import child, resources, system
from cutaway.base.progress import Bar, say_error
from cutaway.base.resources import Memory, Threads, default_threads, free_memory
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import FetchError
from cutaway.features.page import cores
from cutaway.files.hub import fetch
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from support.hostile_modules import write_hostile_modules
from support.random_llama import write_tiny_llama

PLAIN = {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:     500 kB\nSwapFree: 20 kB\n"}
V2 = PLAIN | {"proc/self/cgroup": "0::/a/b\n"}
V1 = PLAIN | {"proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_ROOT", tmp_path)
    monkeypatch.setattr(system, "processors", lambda: set(range(8)))

    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return write


# -- threads -------------------------------------------------------------------------------------


def test_a_plain_machine_uses_what_the_process_may_use(machine):
    machine(PLAIN)
    assert default_threads() == Threads(8, "all 8 processors that this process may use")


@pytest.mark.parametrize(("cores", "count"), [("0-3", 4), ("0,2,4-5", 4), ("6-20", 2)])
def test_of_a_hybrid_intel_the_performance_cores(machine, cores, count):
    machine({"sys/devices/cpu_core/cpus": cores + "\n", "sys/devices/cpu_atom/cpus": "21-29"})
    assert default_threads() == Threads(count, f"the {count} performance cores of 8")


def test_a_process_that_may_use_slow_cores_alone_uses_them(machine):
    machine({"sys/devices/cpu_core/cpus": "8-11"})
    assert default_threads().count == 8


@pytest.mark.parametrize(
    ("capacities", "count"), [([1024] * 8, 8), ([400] * 4 + [1024] * 4, 4), ([300, 900, 1024], 2)]
)
def test_of_an_arm_the_cores_with_more_than_half_the_capacity(machine, capacities, count):
    cpus = "sys/devices/system/cpu/cpu{}/cpu_capacity"
    machine({cpus.format(i): f"{capacity}\n" for i, capacity in enumerate(capacities)})
    assert default_threads().count == count


@pytest.mark.parametrize(
    ("quota", "count"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8)]
)
def test_a_containers_share_of_the_processors(machine, quota, count):
    machine(V2 | {"sys/fs/cgroup/a/cpu.max": quota + "\n"})
    assert default_threads().count == count
    if count < 8:
        processors = int(quota.split()[0]) / 100_000
        assert default_threads().reason == f"its container's limit of {processors:g} processors"


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("300000", 3)])
def test_a_share_in_control_groups_of_version_1(machine, quota, count):
    folder = "sys/fs/cgroup/cpu"
    machine(V1 | {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000\n"})
    assert default_threads().count == count


# -- memory --------------------------------------------------------------------------------------


def test_a_system_that_says_nothing_limits_nothing(machine):
    assert free_memory() is None
    machine(PLAIN)
    assert free_memory() == Memory(520 * 1024, "this machine")


def test_the_tightest_container_counts_and_file_pages_are_free(machine):
    group = "sys/fs/cgroup/a"
    machine(V2 | {
        f"{group}/b/memory.max": "max\n", f"{group}/memory.max": "300000\n",
        f"{group}/memory.current": "200000\n",
        f"{group}/memory.stat": "anon 9\nfile 80000\ninactive_file 50000\nactive_file 10000\n",
    })  # fmt: skip
    assert free_memory() == Memory(160_000 + 20 * 1024, "its container")


def test_control_groups_of_version_1(machine):
    group = "sys/fs/cgroup/memory/docker/x"
    machine(V1 | {
        f"{group}/memory.limit_in_bytes": "100000\n", f"{group}/memory.usage_in_bytes": "90000\n",
        f"{group}/memory.stat": "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 7\n",
    })  # fmt: skip
    assert free_memory() == Memory(10_507 + 20 * 1024, "its container")
    machine({f"{group}/memory.limit_in_bytes": "9223372036854771712"})
    assert free_memory() == Memory(520 * 1024, "this machine")


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(machine, tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    machine({"proc/meminfo": "MemAvailable: 40 kB\nSwapFree: 0 kB\n"})
    with pytest.raises(InputError) as caught:
        LoadedModel(path, Setup(context=64))
    assert "tiny needs" in str(caught.value)
    assert "only 41.0 kB of this machine are free" in str(caught.value)
    machine({"proc/meminfo": "MemAvailable: 4000 kB\nSwapFree: 0 kB\n"})
    LoadedModel(path, Setup(context=64)).close()


# -- what a system lacks ---------------------------------------------------------------------------


linux = pytest.mark.skipif(sys.platform != "linux", reason="calls of Linux")

LOCKED = """
import ctypes, sys
if ctypes.CDLL(None, use_errno=True).mlockall(3):
    sys.exit(77)
from cutaway import LLM
print(LLM("toy-writer", threads=1, progress=False).generate("a", max_tokens=2, seed=1).token_ids)
"""


@linux
def test_a_host_that_locked_its_memory_loads_models():
    """Of locked pages some advice is EINVAL."""
    done = subprocess.run(
        [sys.executable, "-c", LOCKED], check=False, capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip("mlockall is not allowed here")
    assert (done.returncode, done.stderr) == (0, "")


def _refuse(*_):
    raise OSError(38, "Function not implemented")


@linux
def test_calls_that_a_sandbox_refuses_change_nothing(monkeypatch):
    monkeypatch.setattr(os, "posix_fadvise", _refuse)
    monkeypatch.setattr(os, "sched_getaffinity", _refuse)
    system.keep_no_copy(0, PAGESIZE)
    assert system.processors() == set(range(os.cpu_count()))


# -- the tests themselves --------------------------------------------------------------------------


def test_numpy_is_not_imported_before_it_is_told_of_its_threads():
    code = "import conftest, os, sys; print('numpy' in sys.modules, os.environ['OMP_NUM_THREADS'])"
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False 1\n"


# -- child -----------------------------------------------------------------------------------------

# Processes that are started beside this one, in a folder that a stranger filled.


MODULES = ["json", "site", "sitecustomize", "usercustomize", "pip", "ssl", "subprocess"]
PACKAGES = ["numpy", "encodings", "llguidance", "cutaway", "pip"]
SOURCES = Path(cutaway.__file__).parent


@pytest.fixture
def entered(tmp_path, monkeypatch):
    """The current folder, full of a stranger's modules."""
    folder = tmp_path / "model"
    names = [f"{name}.py" for name in MODULES] + [f"{name}/__init__.py" for name in PACKAGES]
    write_hostile_modules(folder, tmp_path / "ran", names)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@pytest.fixture(params=[None, "", ".", "/nowhere:", "HERE"])
def ran(request, entered, tmp_path, monkeypatch):
    """The file that one of them would write."""
    folder, ran = entered, tmp_path / "ran"
    if request.param is not None:
        monkeypatch.setenv("PYTHONPATH", request.param.replace("HERE", str(folder)))
    # As python -m has it, and as PYTHONPATH adds it:
    monkeypatch.setattr(sys, "path", [str(folder), "", ".", *sys.path])
    return ran


def compile_a_grammar(folder):
    sandbox = CompileSandbox()
    try:
        assert sandbox.source_of(Grammar("json_schema", '{"type":"integer"}', compact=True))
    finally:
        sandbox.close()


def fetch_a_wheel(folder):
    with pytest.raises(FetchError, match="pip said"):
        fetch.download(["nothing==1"], folder, Bar("wheel", 1))


def compile_cores(folder):
    sources = folder / "native"
    (sources / "web").mkdir(parents=True)
    script = "echo 1; exec \"$PYTHON\" -c 'import json' >&2\n"
    (sources / "web/build.sh").write_text(script)
    cores._compile(sources, folder)


STARTS = {
    "text/grammar/compile_sandbox.py": compile_a_grammar,
    "files/hub/fetch.py": fetch_a_wheel,
    "features/page/cores.py": compile_cores,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_file_of_the_current_folder_is_run(start, ran, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    start(tmp_path / "wheels")
    assert not ran.exists()


COMMANDS = {
    "cutaway": ([str(Path(sysconfig.get_path("scripts"), "cutaway"))], False),
    "python -P -m cutaway": ([sys.executable, "-P", "-m", "cutaway"], False),
    "python -m cutaway": ([sys.executable, "-m", "cutaway"], True),  # as Python does with any
}


@pytest.mark.parametrize(("command", "runs_it"), COMMANDS.values(), ids=COMMANDS)
def test_which_command_runs_a_file_of_the_current_folder(command, runs_it, entered, tmp_path):
    if not Path(command[0]).exists():
        pytest.skip("cutaway is not installed here: pip install .")
    words = ["generate", "-m", "toy-writer", "It is", "--max-tokens", "2", "--choice", "a"]
    done = subprocess.run([*command, *words], capture_output=True, timeout=120, check=False)
    assert (done.returncode == 0) == (not runs_it)
    assert (tmp_path / "ran").exists() == runs_it


def test_each_file_that_starts_a_process_is_in_the_test_above():
    starts = re.compile(
        r"Popen\(|subprocess\.\w*(run|call|output)|os\.(system|popen|exec|spawn)"
        "|multiprocessing|ProcessPool|import webbrowser"
    )
    texts = {file: file.read_text("utf-8") for file in SOURCES.rglob("*.py")}
    files = {file for file, text in texts.items() if starts.search(text)}
    assert {file.relative_to(SOURCES).as_posix() for file in files} == STARTS.keys()
    for file in files:
        # A script of sh starts Python with PYTHONSAFEPATH, which the environment has.
        assert "child.command(" in texts[file] or '["sh", ' in texts[file]
        assert "_environment()" in texts[file]


def test_keys_and_settings_stay_in_this_process(monkeypatch):
    monkeypatch.setenv("CUTAWAY_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONSTARTUP", "x.py")
    monkeypatch.setenv("PIP_INDEX_URL", "https://own.example")
    own, foreign = child.own_environment(), child.foreign_environment()
    assert not own.keys() & {"CUTAWAY_API_KEY", "HF_TOKEN", "PYTHONSTARTUP", "PIP_INDEX_URL"}
    assert not foreign.keys() & {"CUTAWAY_API_KEY", "PYTHONSTARTUP"}
    assert foreign["PIP_INDEX_URL"] == "https://own.example"
    assert foreign["PATH"] == own["PATH"] == os.environ["PATH"]


# -- progress --------------------------------------------------------------------------------------

# What is said on standard error.


def test_an_error_that_quotes_a_long_name_keeps_its_beginning_and_its_end(capsys):
    say_error(f"unknown format {'x' * 100_000}: choose one of q8_0, q4_0")
    said = capsys.readouterr().err
    assert said.startswith("cutaway: error: unknown format xxx") and " … " in said
    assert said.endswith("xxx: choose one of q8_0, q4_0\n")
    assert len(said) < 1300


def test_an_error_of_a_usual_length_is_whole(capsys):
    sentence = f"choose one of {', '.join(map(str, range(200)))}"
    say_error(sentence)
    assert capsys.readouterr().err == f"cutaway: error: {sentence}\n"
