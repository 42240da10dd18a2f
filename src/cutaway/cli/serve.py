"""``cutaway serve``: an HTTP server with OpenAI's API, and the page.

Knows the server's options, and how models are served: one that stays in memory, several that are
loaded on demand, or replicas of one.
"""

import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from logging import WARNING
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
    from cutaway.server.http.settings import ServerSettings
    from cutaway.server.on_demand import OnDemandLLM


_KEY = "CUTAWAY_API_KEY"
_ALL = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that mean all addresses of this machine -> one such address, for a URL."""
COMMON = "-m --host --port --api-key --context --max-num-seqs --adapter --log"
EPILOG = f"""
examples:
  cutaway serve
  cutaway serve -m model.gguf --port 8080 --temperature 0.2 --max-waiting 32
  {_KEY}=secret cutaway serve --host 0.0.0.0 --allow-host models.example.org
  cutaway serve -m path/to/llada --denoise llada --max-tokens 64
  cutaway serve -m model.gguf --adapter poet=poet.gguf --adapter clerk=peft/clerk:0.5
  cutaway serve -m smollm2 -m notes=path/to/model.gguf --memory 8GB --unload-after 600
  cutaway serve -m smollm2 --adapter poet=poet.gguf -m notes=model.gguf --adapter clerk=clerk.gguf
  cutaway serve --replicas 2 --cores 4
  cutaway serve --replicas 1..8 --cores 4 --address auto
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Hello"}}], "stream": true}}'

OpenAI's clients need base_url="http://127.0.0.1:8000/v1" and any key; a browser shows the page at
http://127.0.0.1:8000. Sampling and stopping options set the defaults of requests. SIGTERM, SIGHUP
or Ctrl-C stops accepting requests, lets running ones finish for --grace seconds, then ends them; a
second signal ends them at once.
"""
_HOST = "address to listen on; default 127.0.0.1, which only this machine can reach"
_KEY_HELP = f"key that clients must send; set {_KEY} instead to hide it from other users"
_NAMES = (
    ("--allow-host", "NAME", "accept this name in the Host header; repeat for more"),
    ("--cors", "ORIGIN", "allow requests from pages of this origin, or *; repeat for more"),
    ("--served-model-name", "NAME", "name of the model in requests; repeat for more"),
)
_ROOT_PATH = "where a proxy has put the server, as in /models; it may take that off or not"
_BATCHES = (
    "keep files and batches (/v1/files, /v1/batches) in this folder; a server that is started "
    "again continues what the last one has not finished"
)
_RECEIPTS = (
    "append a signed receipt of each answer to the log in this folder (/v1/receipts/ID), with "
    "--receipt-key; cutaway receipt -h says what it proves"
)
_ALLOW_INTERVENTIONS = (
    'let requests change activations for their own texts: "interventions": ["L25.H2 x 0"]'
)
_ALLOW_ADAPTERS = (
    "let requests load adapters from this machine's disk, and unload them: "
    "/v1/load_lora_adapter, /v1/unload_lora_adapter"
)
_LOG = "format of the log, one line per request; default human"
_LIMITS = (
    ("--max-num-seqs", int, "N", "sequences that run at once; default 64"),
    ("--max-waiting", int, "N", "sequences that may wait; more are refused (429); default 256"),
    ("--step-ms", float, "MS", "milliseconds that a step should take at most where a prompt is "
     "read beside texts, of which the prompt has half or more; default 0, no target"),
    ("--max-body", int, "BYTES", "maximum size of a request body; default 4194304"),
    ("--keep-responses", int, "BYTES", "answers of /v1/responses to keep in memory for "
     "previous_response_id, the latest of them; 0 keeps none; default 67108864"),
    ("--grace", float, "S", "seconds that running requests have to finish on shutdown; default 30"),
    ("--keep-alive", float, "S", "send a comment on a stream that is silent for S seconds; "
     "default 10"),
)  # fmt: skip

_SAME_NAMES = ("max_body", "keep_alive", "keep_responses", "root_path")
"""Options with the same name as the server's setting that they give."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway serve``."""
    group = parser.add_argument_group("network")
    group.add_argument("--host", default="127.0.0.1", help=_HOST)
    group.add_argument("--port", type=int, default=8000, help="default 8000; 0 chooses a free port")
    group.add_argument("--api-key", metavar="KEY", help=_KEY_HELP)
    for flag, metavar, text in _NAMES:
        group.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
    group.add_argument("--root-path", metavar="PATH", default=SUPPRESS, help=_ROOT_PATH)
    group.add_argument("--batches", metavar="FOLDER", help=_BATCHES)
    group.add_argument("--receipts", metavar="FOLDER", help=_RECEIPTS)
    group.add_argument("--receipt-key", metavar="FILE", help="the key that signs receipts")
    group.add_argument("--allow-interventions", action="store_true", help=_ALLOW_INTERVENTIONS)
    group.add_argument(  # the earlier name
        "--allow-changes", dest="allow_interventions", action="store_true", help=SUPPRESS
    )
    group.add_argument("--allow-adapters", action="store_true", help=_ALLOW_ADAPTERS)
    limits = parser.add_argument_group("limits", argument_default=SUPPRESS)
    for flag, kind, metavar, text in _LIMITS:
        limits.add_argument(flag, type=kind, metavar=metavar, help=text)
    log = parser.add_argument_group("log")
    log.add_argument("--log", choices=("off", "human", "json"), default="human", help=_LOG)
    log.add_argument("--log-prompts", action="store_true", help="log the text of prompts, too")
    log.add_argument("-q", "--quiet", action="store_true", help="no progress while loading")
    parser.set_defaults(max_waiting=256)
    arguments.add_rule_name(parser)
    add_models(parser)
    arguments.add_groups(parser, *arguments.REQUEST)


def run(args: Namespace) -> int:
    """Serve until a signal comes; return 0 after SIGTERM and SIGHUP, 130 after Ctrl-C."""
    with console.leaving_nothing(_end):  # while the server starts
        return _serve(args)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _serve(args: Namespace) -> int:
    settings, options = _settings(args), namespace.request_options(args)
    grace = getattr(args, "grace", 30.0)
    if not 0 <= grace < float("inf"):
        raise InputError(f"--grace must be seconds, 0 or more, not {grace}")
    from cutaway.server.http.sockets import bind

    def log_stop(kind: type[BaseException] | None, *_: object) -> None:
        if kind in (None, SystemExit):
            log.event("stopped")

    host = args.host
    with ExitStack() as stack:
        # The port is bound first: if it is in use, no model is loaded. From here on, clients wait
        # and are not refused, not even the clients of a server that was just stopped.
        sockets = bind(host, args.port, patience=settings.write_timeout)
        for listener in sockets:
            stack.enter_context(listener)
        try:
            from cutaway.server.app import PAGES, create_app
            from cutaway.server.http import log, process
        except ImportError as error:
            raise InputError(
                f"cutaway serve needs {error.name}: pip install 'cutaway[serve]'"
            ) from error
        stack.enter_context(log.temporary_configuration(args.log))
        url = f"http://{_url_host(_ALL.get(host, host))}:{sockets[0].getsockname()[1]}"
        stack.push(log_stop)
        app = create_app(stack.enter_context(open_models(args, options, log.event)), settings)
        models = app.state.models

        def ready() -> None:
            pages: dict[str, Any] = {name: f"{url}{path}" for name, path in PAGES.items()}
            log.event("ready", url=url, **pages, models=models.names, context=models.first.room)
            if settings.api_key is None and not _is_local(host):
                message = f"anyone who can reach {url} can use it: set --api-key or {_KEY}"
                log.event("open", level=WARNING, message=message)

        def stop() -> None:
            log.event("stopping", grace_s=grace, texts=sum(len(job.texts) for job in models.jobs))
            models.stop()

        return process.run(
            app, sockets, grace=grace, on_ready=ready, on_stop=stop, on_grace_over=models.close
        )


def _settings(args: Namespace) -> "ServerSettings":
    """Return the server's settings.

    The key may come from the environment, where other users of this machine cannot see it.
    """
    from cutaway.server.http.settings import ServerSettings, key_in_environment

    names = [name for name, _ in named_models(args)]
    if len(names) > 1 and args.served_model_name:
        raise InputError("--served-model-name is for one model: write --model NAME=PATH for each")
    default_names = [names[0]] if len(names) == 1 and names[0] else []
    same_names = {name: getattr(args, name) for name in _SAME_NAMES if name in args}
    known_hosts = [] if args.host in _ALL else [_url_host(args.host)]
    key = key_in_environment() if args.api_key is None else args.api_key
    any_host = key is not None and not (_is_local(args.host) or args.allow_host)
    return ServerSettings(
        names=args.served_model_name or default_names,
        api_key=key,
        allow_hosts=None if any_host else [*known_hosts, *args.allow_host],
        cors=args.cors,
        batches=args.batches,
        receipts=args.receipts,
        receipt_key=args.receipt_key,
        log_prompts=args.log_prompts,
        allow_interventions=args.allow_interventions,
        allow_adapters=args.allow_adapters,
        **same_names,
    )


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- the models ------------------------------------------------------------------------------------


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
