"""Features: what the core does without. Each is a folder, or a package of somebody else.

Knows the names of their commands and endpoints, and in which modules these are; it imports none
before it is asked for. The core reaches features by this table alone. Another package adds one by
an entry point of the group ``cutaway.features``; see docs/features.md.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import NamedTuple

from cutaway.errors import CutawayError

GROUP = "cutaway.features"


class Command(NamedTuple):
    """A command of the command line: its help, and the module that has it.

    rare: ``cutaway -h`` only names it
    """

    help: str
    module: str
    rare: bool = False


class Feature(NamedTuple):
    """What a folder or a package adds.

    commands: by name, or by two words for a verb of a command: "trace inside". Their modules
    are as ``cutaway.cli.options.parser.run_command`` says
    endpoints: modules with a ``router``; where there is more to them, with SCHEMAS, the modules of
    their answers' shapes, and ``install(app, settings)``, which gives the application what they
    share and returns what ends with it
    """

    commands: Mapping[str, Command] = MappingProxyType({})
    endpoints: tuple[str, ...] = ()


def _rare(help: str, module: str) -> Command:
    return Command(help, f"{GROUP}.{module}", rare=True)


def _command(help: str, module: str) -> Command:
    return Command(help, f"{GROUP}.{module}")


BUILT_IN: Mapping[str, Feature] = {
    "anthropic": Feature(endpoints=(f"{GROUP}.anthropic.endpoints",)),
    "ollama": Feature(
        endpoints=(
            f"{GROUP}.ollama.endpoints",
            f"{GROUP}.ollama.models",
        )
    ),
    "llama_cpp": Feature(
        endpoints=(
            f"{GROUP}.llama_cpp.infill",
            f"{GROUP}.llama_cpp.properties",
        )
    ),
    "batches": Feature(endpoints=(f"{GROUP}.batches.endpoints",)),
    "cluster": Feature(),
    "integrations": Feature(),
    "revise": Feature(
        {"revise": _command("write a draft and try its worst tokens again", "revise.command")}
    ),
    "page": Feature({"export": _command("write a model as a page that runs it", "page")}),
    "players": Feature(
        {"trace play": _command("show a run step by step, in the terminal", "players.play")}
    ),
    "inside": Feature(
        {
            "trace inside": _command(
                "show attention, logit attribution and the lens of one step",
                "inside.inside_command",
            ),
            "trace ablate": _command(
                "leave out each part of the text before a step, and show what changes",
                "inside.ablate_command",
            ),
            "near": _rare("show why two texts are near", "inside.near_command"),
        },
        (f"{GROUP}.inside.endpoints",),
    ),
    "practice": Feature(
        {"practice": _rare("do a sampling step by hand", "practice.command")},
        (f"{GROUP}.practice.endpoints",),
    ),
    "experiments": Feature(
        {
            "snowball": _rare(
                "measure what one wrong token changes", "experiments.snowball_command"
            ),
            "exposure": _rare(
                "compare a human text with the model's own", "experiments.exposure_command"
            ),
            "compare": _rare(
                "run one prompt under several settings", "experiments.compare_command"
            ),
            "repair": _rare(
                "measure whether a rule takes mistakes back", "experiments.repair_command"
            ),
        }
    ),
    "measure": Feature(
        {
            "bench": _command("measure speed beside the machine's limit", "measure.bench_command"),
            "verify": _command(
                "check that logits are bit-identical in any batch", "measure.verify_command"
            ),
            "imatrix": _rare(
                "collect what quantising should keep exact", "measure.imatrix_command"
            ),
            "doctor": _rare(
                "measure what quantisation costs on your text", "measure.doctor_command"
            ),
            "ab": _rare("compare two ways to answer, with the same luck", "measure.ab_command"),
        }
    ),
    "evidence": Feature(
        {
            "oracle": _rare(
                "hold another engine's answers against the model", "evidence.oracle_command"
            ),
            "audit": _rare(
                "find out whether a text was drawn by a seed's luck", "evidence.audit_command"
            ),
            "conform": _rare(
                "compare a server's answers that should be equal", "evidence.conform_command"
            ),
            "receipt": _rare(
                "sign a run, and check what others signed", "evidence.receipt_command"
            ),
        },
        (f"{GROUP}.evidence.endpoints",),
    ),
}
"""By folder, in the order in which commands and endpoints are listed."""


def installed() -> Iterator[Feature]:
    """Those of other packages, by their entry points; CutawayError for one that is broken.

    It looks through all packages that are installed: ask only where their names are needed.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            yield entry.load()
        except Exception as error:  # somebody else's code: whatever it is, say whose
            raise CutawayError(f"the feature {entry.name!r} ({entry.value}): {error}") from error


def endpoints() -> Iterator[ModuleType]:
    """The modules of all endpoints."""
    for feature in (*BUILT_IN.values(), *installed()):
        yield from map(import_module, feature.endpoints)


def commands(*within: str, others: bool = True) -> dict[str, Command]:
    """Those of features by name; of two words, those that begin with ``within``.

    others: those of other packages, too. CutawayError where two have one name
    """
    listed: dict[str, Command] = {}
    for feature in (*BUILT_IN.values(), *(installed() if others else ())):
        for words, command in feature.commands.items():
            *first, name = words.split()
            if first == [*within]:
                if name in listed:
                    raise CutawayError(f"two features add the command {words!r}; uninstall one")
                listed[name] = command
    return listed


def feature(name: str) -> ModuleType:
    """A folder of ``cutaway.features``, or a module within: for the few places of the core where
    an option of a command, or a method, belongs to one."""
    return import_module(f"{GROUP}.{name}")
