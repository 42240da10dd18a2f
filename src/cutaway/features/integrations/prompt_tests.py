"""A plugin of pytest for tests of prompts: fixtures ``llm`` and ``ask``.

Knows pytest's hooks, the cache of answers and the files of fingerprints. Assertions on an answer
are in ``answers``, requests to a server in ``served``. A test suite names this module in
``pytest_plugins``: with an entry point, pytest would rewrite all modules of cutaway in every suite.
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
"""The defaults of ``ask``: the greedy text, with the figures of its steps."""

_MOST_KEPT = 1 << 26  # bytes of fingerprints


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: which model, and whether to write fingerprints anew."""
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
    """The model, opened once a session. Override this fixture to use another."""
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


def told_alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``work(*arguments)``. An error of cutaway fails the test with its sentence, without a
    traceback."""
    try:
        return work(*arguments)
    except CutawayError as error:
        sentence = f"{type(error).__name__}: {error}"
    pytest.fail(sentence, pytrace=False)


@pytest.fixture
def ask(request: pytest.FixtureRequest, llm: "LLM | ServedModel") -> "Ask":
    """A function that asks the model; see ``Ask``."""
    return Ask(llm, request.node, request.config)


class Ask:
    """``ask(prompt, **options)``, or ``ask(messages=[…])`` in the model's chat template.

    The answer is greedy unless the options say otherwise. It is cached under the weights, the
    prompt and the options, since nothing else can change its bits.
    """

    def __init__(self, llm: "LLM | ServedModel", node: pytest.Item, config: pytest.Config) -> None:
        self._llm, self._count = llm, 0
        self._fingerprints = Kept(Path(str(node.path)).with_suffix(".fingerprints.json"), node.name)
        self._update = bool(config.getoption("update_fingerprints"))
        self._cache = config.cache.mkdir("cutaway") if getattr(config, "cache", None) else None

    def __call__(
        self, prompt: Any = None, *, messages: Any = None, **options: Any
    ) -> "TestedAnswer":
        """Return an answer, with methods that assert. InputError if an option is wrong."""
        from cutaway.features.integrations.answers import TestedAnswer

        options_in_force = DEFAULTS | options
        self._count += 1
        write = self._llm.generate if messages is None else self._llm.chat
        question = prompt if messages is None else messages
        completion = told_alone(self._completion, write, question, options_in_force)
        prompt = list(completion.prompt_token_ids)
        return TestedAnswer(self._llm, prompt, completion, options_in_force, self._fingerprint)

    def _completion(self, write: Any, question: Any, options: dict[str, Any]) -> Any:
        asking = (write.__name__, question, sorted(options.items()))
        name = sha256(repr((*_identity(self._llm), asking)).encode()).hexdigest()
        file = self._cache / name if self._cache else None
        if file and file.exists():
            return pickle.loads(file.read_bytes())
        done = write(question, **options)
        if file:
            with whole_file(file) as out:
                pickle.dump(done, out)
        return done

    def _fingerprint(self, answer: "TestedAnswer") -> None:
        self._fingerprints.check(self._count, answer, update=self._update)


def _identity(llm: "LLM | ServedModel") -> tuple[object, ...]:
    """Return everything besides the request that an answer depends on: weights, arithmetic, …"""
    from cutaway._version import ARITHMETIC
    from cutaway.features.integrations.served import ServedModel

    if isinstance(llm, ServedModel):
        return llm.identity
    identity = llm.model.identity
    return identity.weights, identity.tokenizer, ARITHMETIC, llm.name


class Kept:
    """A file of fingerprints beside a test file: {"test": {"1": {"fingerprint", "tokens"}}}."""

    def __init__(self, path: Path, test: str) -> None:
        self._path, self._test = path, test

    def check(self, number: int, answer: "TestedAnswer", *, update: bool) -> None:
        """Fail unless the ``number``-th answer equals its record. update: write the record."""
        record = {"fingerprint": answer.fingerprint, "tokens": list(answer.completion.token_ids)}
        records_by_test = told_alone(self._read)
        of_test = records_by_test.setdefault(self._test, {})
        was = of_test.get(str(number))
        if update:
            of_test[str(number)] = record
            self._path.write_text(json.dumps(records_by_test, indent=1, sort_keys=True) + "\n")
        elif was is None:
            pytest.fail("no fingerprint is kept: run pytest --update-fingerprints once", False)
        elif was != record:
            pytest.fail(answer.parted_from(was["tokens"], was["fingerprint"]), pytrace=False)

    def _read(self) -> dict[str, dict[str, Any]]:
        """Read the file. InputError if it is damaged, for instance by a merge of two branches."""
        if not self._path.exists():
            return {}
        data = read_bounded(self._path, _MOST_KEPT)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not _is_kept(document):
            raise InputError(
                f"{self._path} is damaged: restore it, or remove it and run "
                "pytest --update-fingerprints"
            )
        records_by_test: dict[str, dict[str, Any]] = document
        return records_by_test


def _is_kept(document: Any) -> bool:
    """Whether a JSON document has the form that ``Kept`` writes."""
    return isinstance(document, dict) and all(
        isinstance(of_test, dict)
        and all(
            isinstance(was, dict)
            and isinstance(was.get("fingerprint"), str)
            and isinstance(was.get("tokens"), list)
            and all(type(token_id) is int for token_id in was["tokens"])
            for was in of_test.values()
        )
        for of_test in document.values()
    )
