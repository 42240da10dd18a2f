"""The models of ``cutaway serve``: one that stays, several that come and go, or replicas."""

import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import existing
from cutaway.cli import arguments, console, namespace
from cutaway.errors import InputError
from cutaway.files.hub import DEFAULT_MODEL
from cutaway.registry import feature

if TYPE_CHECKING:
    from cutaway.api.async_model import AsyncModel
    from cutaway.server.on_demand import OnDemandLLM

_NAME = re.compile(r"[\w.:+-]+")
_ADAPTER = (
    "load an adapter that a request has by giving NAME as its model; X (default 1) multiplies what "
    "it adds; NAME=FILE:X,FILE:X adds several; repeat for more. It applies to the --model before "
    "it, as --lora does"
)
_MORE = (
    ". Repeat it for several models: each is loaded when a request names it; NAME=PATH gives it "
    "a name"
)
_MEMORY = (
    "what all models may take together, KV cache included, as in 8GB or 6GiB: to make room, idle "
    "models are unloaded, least recently used first; default: the memory that is free at the start"
)
_UNLOAD = "unload a model that nobody has used for S seconds; default: when its room is needed"
_CLUSTER = (
    ("--replicas", str, "N", "run N copies of the model behind this server, each a process of its "
     "own, by Ray (pip install 'cutaway[ray]'); 1..8 scales with the load. "
     "If a replica dies, another continues its texts, with the same tokens"),
    ("--cores", int, "K", "processors that each replica has to itself; default: all, divided by "
     "the largest number of replicas"),
    ("--address", str, "ADDR", "a Ray cluster of which this machine is a node, or auto; without it "
     "one is started on this machine"),
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """Which models, how each is loaded, and which of them are in memory."""
    arguments.add_model_arguments(parser, several=True, more=_MORE, lora=_AfterModel)
    parser.add_argument(
        "--adapter", dest="adapters", type=_adapter, action=_AfterModel, metavar="NAME=FILE[:X]",
        default=SUPPRESS, help=_ADAPTER,
    )  # fmt: skip
    several = parser.add_argument_group("memory: of several models", argument_default=SUPPRESS)
    several.add_argument("--memory", type=arguments.size, metavar="SIZE", help=_MEMORY)
    several.add_argument("--unload-after", type=float, metavar="S", help=_UNLOAD)
    cluster = parser.add_argument_group("replicas", argument_default=SUPPRESS)
    for flag, as_type, metavar, text in _CLUSTER:
        cluster.add_argument(flag, type=as_type, metavar=metavar, help=text)


def named(args: Namespace) -> list[tuple[str | None, str]]:
    """(name, model) of each --model; name None: it was given by its path.

    InputError where two have one name.
    """
    given = getattr(args, "model", None) or [DEFAULT_MODEL]
    found = [_split(text) for text in given]
    _check_names([name for name, _ in found if name is not None])
    return found


@contextmanager
def served(
    args: Namespace, options: dict[str, Any], tell: Callable[..., object]
) -> "Iterator[AsyncModel | Mapping[str, AsyncModel]]":
    """One model, or several by their names.

    options  keywords of all requests
    tell     called with an event's name and fields
    """
    each, cluster = named(args), {k: getattr(args, k) for k in ("cores", "address") if k in args}
    asked = models(args)
    comes_and_goes = len(each) > 1 or "memory" in args or "unload_after" in args
    if "replicas" in args:
        if comes_and_goes:
            raise InputError(
                "--replicas is for one model that stays in memory: leave out --memory, "
                "--unload-after and each --model but one"
            )
        plan = feature("cluster.plan").Plan.of(
            args.replicas, cluster.get("cores"), namespace.model_options(asked[0]), options
        )
        with feature("cluster.launch").launched(
            plan, cluster.get("address"), progress=not args.quiet, **options
        ) as replicated:
            yield replicated
    elif cluster:
        raise InputError(f"--{min(cluster)} is for replicas: add --replicas N")
    elif comes_and_goes:
        llms = _on_demand(asked, [name for name, _ in each], options, tell)
        yield llms if len(llms) > 1 else next(iter(llms.values()))
    else:
        from cutaway.api.async_llm import AsyncLLM

        yield AsyncLLM(console.load(asked[0]), **options)


def models(args: Namespace) -> list[Namespace]:
    """The arguments of each model, with the adapters that are its own. InputError as ``named``."""
    each = [
        Namespace(**{**vars(args), "model": path, "lora": None, "adapters": {}})
        for _, path in named(args)
    ]
    for before, file in getattr(args, "lora", []):
        one = _of(each, before, f"--lora {file}")
        if one.lora is not None:
            raise InputError(
                f"--lora {file}: the model has one already: --lora {one.lora},{file} adds both"
            )
        one.lora = file
    for before, (name, file) in getattr(args, "adapters", []):
        one = _of(each, before, f"--adapter {name}")
        if name in one.adapters:
            raise InputError(f"--adapter: {name} is the name of two: give one another")
        one.adapters[name] = file
    return each


def _of(each: Sequence[Namespace], before: int, said: str) -> Namespace:
    """The model that an option applies to, which has ``before`` --model options before it."""
    if len(each) > 1 and not before:
        raise InputError(f"{said} comes before each --model: put it after the one that it is for")
    return each[max(before - 1, 0)]


def _on_demand(
    asked: Sequence[Namespace], given: Sequence[str | None], options: dict[str, Any],
    tell: Callable[..., object],
) -> "dict[str, OnDemandLLM]":  # fmt: skip
    """The models; the first is loaded at once, so that its errors show before any request."""
    from cutaway.base.resources import free_memory
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.compute.loading.setup import Setup
    from cutaway.engine import Policy
    from cutaway.server.model_cache import ModelCache
    from cutaway.server.on_demand import OnDemandLLM

    each, args = [namespace.model_options(one) for one in asked], asked[0]
    setups = [
        Setup(**{k: v for k, v in one.items() if k in Setup.__dataclass_fields__}) for one in each
    ]
    others = {k: v for k, v in each[0].items() if k not in {*Setup.__dataclass_fields__, "model"}}
    policy, show = Policy(**others), not args.quiet
    free = free_memory(swap=False)
    cache = ModelCache(
        getattr(args, "memory", free and free.free), idle_s=_unload_after(args), tell=tell,
        max_waiting=None if policy.max_waiting is None else max(1, policy.max_waiting),
    )  # fmt: skip
    opened = [
        LoadedModel.open(one["model"], setup, progress=show, weights=False)
        for one, setup in zip(each, setups, strict=True)
    ]
    names = [name or model.name for name, model in zip(given, opened, strict=True)]
    _check_names(names)
    for model in opened:
        cache.check(model)
    opened[0].load(show=show)
    made = zip(names, opened, strict=True)
    return {name: OnDemandLLM(model, cache, policy, **options) for name, model in made}


def _split(text: str) -> tuple[str | None, str]:
    """(name, model) of a --model. A path gives no name: the model has one of its own."""
    path = existing(text)
    name, equals, model = text.partition("=")
    if equals and path is None:
        if not _NAME.fullmatch(name) or not model:
            raise InputError(f"--model {text!r}: write NAME=PATH, a name without spaces or slashes")
        return name, model
    return (None if path else text), text


def _check_names(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--model: two models have the name {twice[0]}: write NAME=PATH for one")


def _unload_after(args: Namespace) -> float | None:
    seconds: float | None = getattr(args, "unload_after", None)
    if seconds is not None and not (seconds >= 0 and isfinite(seconds)):
        raise InputError(f"--unload-after must be seconds, 0 or more, not {seconds:g}")
    return seconds


def _adapter(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise ArgumentTypeError(f"must be NAME=FILE or NAME=FILE:X, not {text}")
    return name, path


class _AfterModel(Action):
    """Each value, with the number of --model options before it."""

    def __call__(
        self, _parser: ArgumentParser, args: Namespace, values: Any, _option: str | None = None
    ) -> None:
        found = getattr(args, self.dest, [])
        setattr(args, self.dest, [*found, (len(getattr(args, "model", [])), values)])
