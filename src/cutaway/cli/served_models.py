"""The models of ``cutaway serve``: the options that name them, and how they are opened.

One model stays in memory, several are loaded on demand, and replicas of one run on Ray.
"""

import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import existing
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
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


def add_models(parser: ArgumentParser) -> None:
    """Add the options that name models, and the options for loading them and their memory."""
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


def named_models(args: Namespace) -> list[tuple[str | None, str]]:
    """Return (name, model) for each --model; the name is None for a path without NAME=.

    InputError if two models have one name.
    """
    texts = getattr(args, "model", None) or [DEFAULT_MODEL]
    pairs = [_split(text) for text in texts]
    _check_names([name for name, _ in pairs if name is not None])
    return pairs


@contextmanager
def open_models(
    args: Namespace, options: dict[str, Any], tell: Callable[..., object]
) -> "Iterator[AsyncModel | Mapping[str, AsyncModel]]":
    """Open one model, or several as name -> model.

    options  default keywords of all requests
    tell     called with an event's name and fields, for the log
    """
    pairs, cluster = (
        named_models(args),
        {k: getattr(args, k) for k in ("cores", "address") if k in args},
    )
    model_args = models(args)
    comes_and_goes = len(pairs) > 1 or "memory" in args or "unload_after" in args
    if "replicas" in args:
        if comes_and_goes:
            raise InputError(
                "--replicas is for one model that stays in memory: leave out --memory, "
                "--unload-after and each --model but one"
            )
        plan = feature("cluster.plan").Plan.from_arguments(
            args.replicas, cluster.get("cores"), namespace.model_options(model_args[0]), options
        )
        with feature("cluster.launch").launch(
            plan, cluster.get("address"), progress=not args.quiet, **options
        ) as replicated:
            yield replicated
    elif cluster:
        raise InputError(f"--{min(cluster)} is for replicas: add --replicas N")
    elif comes_and_goes:
        llms = _on_demand(model_args, [name for name, _ in pairs], options, tell)
        yield llms if len(llms) > 1 else next(iter(llms.values()))
    else:
        from cutaway.api.async_llm import AsyncLLM

        yield AsyncLLM(console.load(model_args[0]), **options)


def models(args: Namespace) -> list[Namespace]:
    """Return the arguments of each model, with its own adapters; InputError if names clash."""
    model_args = [
        Namespace(**{**vars(args), "model": path, "lora": None, "adapters": {}})
        for _, path in named_models(args)
    ]
    for before, file in getattr(args, "lora", []):
        model = _find_model(model_args, before, f"--lora {file}")
        if model.lora is not None:
            raise InputError(
                f"--lora {file}: the model has one already: --lora {model.lora},{file} adds both"
            )
        model.lora = file
    for before, (name, file) in getattr(args, "adapters", []):
        model = _find_model(model_args, before, f"--adapter {name}")
        if name in model.adapters:
            raise InputError(f"--adapter: {name} is the name of two: give one another")
        model.adapters[name] = file
    return model_args


def _find_model(model_args: Sequence[Namespace], before: int, flag: str) -> Namespace:
    """Return the arguments of the model that the option ``flag`` is for.

    before: how many --model options come before the flag
    """
    if len(model_args) > 1 and not before:
        raise InputError(f"{flag} comes before each --model: put it after the one that it is for")
    return model_args[max(before - 1, 0)]


def _on_demand(
    model_args: Sequence[Namespace], given_names: Sequence[str | None], options: dict[str, Any],
    tell: Callable[..., object],
) -> "dict[str, OnDemandLLM]":  # fmt: skip
    """Open the models, and load the first at once, so that a bad file is an error at the start."""
    from cutaway.base.resources import free_memory
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.compute.loading.setup import Setup
    from cutaway.engine import Policy
    from cutaway.requests.store_settings import StoreSettings
    from cutaway.server.model_cache import ModelCache
    from cutaway.server.on_demand import OnDemandLLM

    load_options, args = [*map(namespace.model_options, model_args)], model_args[0]
    setups = [
        Setup(**{k: v for k, v in loading.items() if k in Setup.__dataclass_fields__})
        for loading in load_options
    ]
    policy_options = {k: v for k, v in load_options[0].items() if k in Policy.__dataclass_fields__}
    policy, show = Policy(**policy_options), not args.quiet
    store = StoreSettings.read(
        getattr(args, "cache_dir", None), getattr(args, "cache_size", None),
        prefix_cache=policy.prefix_cache,
    )  # fmt: skip
    free = free_memory(swap=False)
    cache = ModelCache(
        getattr(args, "memory", free and free.free), idle_s=_unload_after(args), tell=tell,
        max_waiting=None if policy.max_waiting is None else max(1, policy.max_waiting),
    )  # fmt: skip
    opened = [
        LoadedModel.open(loading["model"], setup, progress=show, weights=False)
        for loading, setup in zip(load_options, setups, strict=True)
    ]
    names = [name or model.name for name, model in zip(given_names, opened, strict=True)]
    _check_names(names)
    for model in opened:
        cache.check(model)
    opened[0].load(show=show)
    pairs = zip(names, opened, strict=True)
    return {name: OnDemandLLM(model, cache, policy, store, **options) for name, model in pairs}


def _split(text: str) -> tuple[str | None, str]:
    """Return (name, model) of a --model.

    The name is None for a path, since the model itself has a name.
    """
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
    """Store each value with the number of --model options before it."""

    def __call__(
        self, _parser: ArgumentParser, args: Namespace, values: Any, _option: str | None = None
    ) -> None:
        earlier = getattr(args, self.dest, [])
        setattr(args, self.dest, [*earlier, (len(getattr(args, "model", [])), values)])
