"""``cutaway serve``: an HTTP server with OpenAI's API, and the page.

Knows the server's options, and its life from the bound port to the last answer.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from contextlib import ExitStack
from ipaddress import ip_address
from logging import WARNING
from typing import TYPE_CHECKING, Any

from cutaway.cli import served_models
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.server.http.settings import ServerSettings


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
    served_models.add_models(parser)
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
        app = create_app(
            stack.enter_context(served_models.open_models(args, options, log.event)), settings
        )
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

    names = [name for name, _ in served_models.named_models(args)]
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
