"""A plugin of pytest for tests of prompts: fixtures ``llm`` and ``ask``.

Knows pytest's hooks, where answers are cached and where fingerprints are kept; what is asserted of
an answer belongs to ``answers``, and how a server is asked to ``served``. A test suite names it in
``pytest_plugins``: for an entry point pytest would rewrite every module of cutaway, in every suite.
"""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cutaway.base.whole_files import read_bounded, whole_file
from cutaway.errors import CutawayError, InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.features.integrations.answers import TestedAnswer
    from cutaway.features.integrations.served import ServedModel

DEFAULTS = {"temperature": 0.0, "seed": 0, "max_tokens": 64, "candidates": 200}
"""What ``ask`` adds where a test says nothing: the likeliest text, and figures of its steps."""

_MOST_KEPT = 1 << 26  # bytes of fingerprints


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which model, and whether fingerprints are written anew."""
    group = parser.getgroup("cutaway", "tests of prompts")
    about = "a model for the fixture llm, as of cutaway generate -m"
    group.addoption("--cutaway-model", metavar="NAME|PATH", help=about)
    served = "a cutaway server whose model it is, instead of one in this process"
    group.addoption("--cutaway-url", metavar="URL", help=f"{served}; its key: CUTAWAY_API_KEY")
    group.addoption(
        "--update-fingerprints", action="store_true",
        help="keep the fingerprints of this run, instead of comparing with those kept",
    )  # fmt: skip
    parser.addini("cutaway_model", about, default="")
    parser.addini("cutaway_url", served, default="")


@pytest.fixture(scope="session")
def llm(request: pytest.FixtureRequest) -> "Iterator[LLM | ServedModel]":
    """The model, opened once a session. Override it for a model of one's own."""
    config = request.config
    name, url = (
        config.getoption(option) or config.getini(option)
        for option in ("cutaway_model", "cutaway_url")
    )
    if url:
        from cutaway.features.integrations.served import ServedModel

        yield told_alone(ServedModel, url, os.environ.get("CUTAWAY_API_KEY", ""), name)
        return
    from cutaway.api.llm import LLM

    with LLM(name or "smollm2") as opened:
        yield opened


def told_alone(work: Callable[..., Any], *given: Any) -> Any:
    """Call it; an error that cutaway explains is a red test with its sentence, and no traceback."""
    try:
        return work(*given)
    except CutawayError as error:
        sentence = f"{type(error).__name__}: {error}"
    pytest.fail(sentence, pytrace=False)


@pytest.fixture
def ask(request: pytest.FixtureRequest, llm: "LLM | ServedModel") -> "Ask":
    """Asks the model; see ``Ask``."""
    return Ask(llm, request.node, request.config)


class Ask:
    """``ask(prompt, **options)``, or ``ask(messages=[…])`` in the model's chat template.

    The answer is the greedy one unless the options draw. It is cached by the weights, the prompt
    and the options, since nothing else can change its bits.
    """

    def __init__(self, llm: "LLM | ServedModel", node: pytest.Item, config: pytest.Config) -> None:
        self._llm, self._count = llm, 0
        self._kept = Kept(Path(str(node.path)).with_suffix(".fingerprints.json"), node.name)
        self._update = bool(config.getoption("update_fingerprints"))
        self._cache = config.cache.mkdir("cutaway") if getattr(config, "cache", None) else None

    def __call__(
        self, prompt: Any = None, *, messages: Any = None, **options: Any
    ) -> "TestedAnswer":
        """An answer to assert things of. InputError where an option is wrong."""
        from cutaway.features.integrations.answers import TestedAnswer

        given = DEFAULTS | options
        self._count += 1
        write = self._llm.generate if messages is None else self._llm.chat
        asked = prompt if messages is None else messages
        completion = told_alone(self._completion, write, asked, given)
        prompt = list(completion.prompt_token_ids)
        return TestedAnswer(self._llm, prompt, completion, given, self._fingerprint)

    def _completion(self, write: Any, asked: Any, options: dict[str, Any]) -> Any:
        asking = (write.__name__, asked, sorted(options.items()))
        name = sha256(repr((*_identity(self._llm), asking)).encode()).hexdigest()
        file = self._cache / name if self._cache else None
        if file and file.exists():
            return pickle.loads(file.read_bytes())
        done = write(asked, **options)
        if file:
            with whole_file(file) as out:
                pickle.dump(done, out)
        return done

    def _fingerprint(self, answer: "TestedAnswer") -> None:
        self._kept.check(self._count, answer, update=self._update)


def _identity(llm: "LLM | ServedModel") -> tuple[object, ...]:
    """What an answer depends on beside the request."""
    from cutaway._version import ARITHMETIC
    from cutaway.features.integrations.served import ServedModel

    if isinstance(llm, ServedModel):
        return llm.identity
    found = llm.model.identity
    return found.weights, found.tokenizer, ARITHMETIC, llm.name


class Kept:
    """Fingerprints of a file of tests, beside it: {"test": {"1": {"fingerprint", "tokens"}}}."""

    def __init__(self, path: Path, test: str) -> None:
        self._path, self._test = path, test

    def check(self, number: int, answer: "TestedAnswer", *, update: bool) -> None:
        """Compare the ``number``-th answer of the test with what is kept, or keep it."""
        own = {"fingerprint": answer.fingerprint, "tokens": list(answer.completion.token_ids)}
        every = told_alone(self._read)
        of_test = every.setdefault(self._test, {})
        was = of_test.get(str(number))
        if update:
            of_test[str(number)] = own
            self._path.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
        elif was is None:
            pytest.fail("no fingerprint is kept: run pytest --update-fingerprints once", False)
        elif was != own:
            pytest.fail(answer.parted_from(was["tokens"], was["fingerprint"]), pytrace=False)

    def _read(self) -> dict[str, dict[str, Any]]:
        """What is kept; InputError where the file is damaged, as by a merge of two branches."""
        if not self._path.exists():
            return {}
        data = read_bounded(self._path, _MOST_KEPT)
        try:
            every = json.loads(data)
        except (ValueError, RecursionError):
            every = None
        if not _is_kept(every):
            raise InputError(
                f"{self._path} is damaged: restore it, or remove it and run "
                "pytest --update-fingerprints"
            )
        kept: dict[str, dict[str, Any]] = every
        return kept


def _is_kept(every: Any) -> bool:
    """Whether this is what ``Kept`` writes."""
    return isinstance(every, dict) and all(
        isinstance(of_test, dict)
        and all(
            isinstance(was, dict)
            and isinstance(was.get("fingerprint"), str)
            and isinstance(was.get("tokens"), list)
            and all(type(token_id) is int for token_id in was["tokens"])
            for was in of_test.values()
        )
        for of_test in every.values()
    )
