"""Features: folders, or other people's packages, that the core works without.

Knows the names of their commands and endpoints, and their modules, which are imported on demand.
The core reaches features only through this table. Another package adds a feature by an entry point
of the group ``cutaway.features``; see docs/features.md.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import NamedTuple

from cutaway.errors import CutawayError

GROUP = "cutaway.features"


class Command(NamedTuple):
    """A command of the command line: its help, and its module.

    topic: the topic under which ``cutaway -h`` names it, and only --help explains it; "": -h does
    """

    help: str
    module: str
    topic: str = ""


class Feature(NamedTuple):
    """The commands and endpoints that a folder or a package adds.

    commands: by name, or by two words for a command's verb, such as "trace inside";
    ``cutaway.cli.options.parser.run_command`` says which functions their modules must have
    endpoints: modules with a ``router``. Optional are SCHEMAS, the modules of their answers'
    shapes; OPEN_PATHS, paths that need no API key; PAGES, name -> path of pages for people, which
    the start message names; and ``install(app, settings)``, which sets up state that the endpoints
    share, and returns an object to close with the application
    """

    commands: Mapping[str, Command] = MappingProxyType({})
    endpoints: tuple[str, ...] = ()


def _topical(topic: str, help: str, module: str) -> Command:
    return Command(help, f"{GROUP}.{module}", topic)


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
            "near": _topical("vectors", "show why two texts are near", "inside.near_command"),
        },
        (f"{GROUP}.inside.endpoints",),
    ),
    "lessons": Feature(
        {"lessons": _command("write lessons of a minute, as pages", "lessons.command")},
        (f"{GROUP}.lessons.endpoints",),
    ),
    "practice": Feature(
        {"practice": _topical("exercises", "do a sampling step by hand", "practice.command")},
        (f"{GROUP}.practice.endpoints",),
    ),
    "experiments": Feature(
        {
            "snowball": _topical(
                "experiments",
                "measure what one wrong token changes",
                "experiments.snowball_command",
            ),
            "exposure": _topical(
                "experiments",
                "compare a human text with the model's own",
                "experiments.exposure_command",
            ),
            "compare": _topical(
                "experiments",
                "run one prompt under several settings",
                "experiments.compare_command",
            ),
            "repair": _topical(
                "experiments",
                "measure whether a rule takes mistakes back",
                "experiments.repair_command",
            ),
        }
    ),
    "measure": Feature(
        {
            "bench": _command("measure speed beside the machine's limit", "measure.bench_command"),
            "verify": _topical(
                "evidence",
                "check that logits are bit-identical in any batch",
                "measure.verify_command",
            ),
            "imatrix": _topical(
                "quality", "collect what quantising should keep exact", "measure.imatrix_command"
            ),
            "doctor": _topical(
                "quality", "measure what quantisation costs on your text", "measure.doctor_command"
            ),
            "ab": _topical(
                "quality", "compare two ways to answer, with the same luck", "measure.ab_command"
            ),
        }
    ),
    "evidence": Feature(
        {
            "oracle": _topical(
                "evidence",
                "hold another engine's answers against the model",
                "evidence.oracle_command",
            ),
            "audit": _topical(
                "evidence",
                "find out whether a text was drawn by a seed's luck",
                "evidence.audit_command",
            ),
            "conform": _topical(
                "evidence",
                "compare a server's answers that should be equal",
                "evidence.conform_command",
            ),
            "receipt": _topical(
                "evidence", "sign a run, and check what others signed", "evidence.receipt_command"
            ),
        },
        (f"{GROUP}.evidence.endpoints",),
    ),
}
"""The features by folder, in the order in which commands and endpoints are listed."""


def load_installed() -> Iterator[Feature]:
    """Yield the features of other packages, by entry points; CutawayError for a broken feature.

    The call searches all installed packages, so make it only where their names are needed.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            yield entry.load()
        except Exception as error:  # somebody else's code may raise anything: name the feature
            raise CutawayError(f"the feature {entry.name!r} ({entry.value}): {error}") from error


def endpoints() -> Iterator[ModuleType]:
    """Yield the modules of all endpoints."""
    for feature in (*BUILT_IN.values(), *load_installed()):
        yield from map(import_module, feature.endpoints)


def commands(*within: str, with_installed: bool = True) -> dict[str, Command]:
    """Return the commands of features whose first words are ``within``, by their last word.

    with_installed: include commands of other packages. CutawayError if two have the same name
    """
    by_name: dict[str, Command] = {}
    for feature in (*BUILT_IN.values(), *(load_installed() if with_installed else ())):
        for words, command in feature.commands.items():
            *first, name = words.split()
            if first == [*within]:
                if name in by_name:
                    raise CutawayError(f"two features add the command {words!r}; uninstall one")
                by_name[name] = command
    return by_name


def feature(name: str) -> ModuleType:
    """Import a folder of ``cutaway.features``, or a module in it.

    Only for the few places of the core where a command's option, or a method, belongs to a feature.
    """
    return import_module(f"{GROUP}.{name}")
