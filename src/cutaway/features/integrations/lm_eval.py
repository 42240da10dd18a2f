"""A model class for EleutherAI's lm-eval, which runs its tasks on an ``LLM`` in the same process.

No figure depends on the batch size, so batch_size is ignored.

``python -m cutaway.features.integrations.lm_eval …`` is the command lm_eval with this model.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import chain
from math import fsum
from os import PathLike
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from tqdm import tqdm

from cutaway import LLM, Completion, CutawayError, __version__
from cutaway.base.checks import check_int, shown
from cutaway.base.progress import say_error
from cutaway.errors import InputError
from cutaway.methods.scoring import scores_of_each, windows
from cutaway.requests.prefill import prefill

_log = logging.getLogger(__name__)
_INERT = "batch_size", "max_batch_size", "device"  # lm-eval's default device is "cuda:0"


@register_model("cutaway")
class CutawayLM(TemplateLM):  # type: ignore[misc]  # lm-eval may not be installed
    """A model for ``lm_eval.simple_evaluate(model=…)``.

    model         as for LLM, or an LLM, which stays open
    max_gen_toks  the most tokens of an answer, where the task does not set it
    add_bos_token whether texts begin with BOS; None: as the model's file says. lm-eval scores BOS
    seed          the seed of the first text that is drawn; each further text has the next number
    options       options of ``LLM``: threads, context, quantize, …; lm-eval's own are ignored

    Texts are cut as lm-eval cuts them, and special tokens in texts are parsed, so that figures are
    comparable with those of lm-eval's other models. Raises InputError for a bad argument.
    """

    def __init__(
        self,
        model: LLM | str | PathLike[str] | None = None,
        *,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        options = {name: value for name, value in options.items() if name not in _INERT}
        if isinstance(model, LLM) and options:
            raise InputError(min(options), ": the model is loaded already; say so to the LLM")
        if unknown := options.keys() - signature(LLM).parameters.keys():
            raise InputError(min(unknown), " is neither a setting of LLM nor of lm-eval's models")
        self.llm = model if isinstance(model, LLM) else LLM(model, **options)
        self.max_gen_toks = check_int("max_gen_toks", max_gen_toks, 1)
        if add_bos_token not in (None, True, False):
            raise InputError("add_bos_token", f" must be true or false, not {shown(add_bos_token)}")
        self._add_bos = add_bos_token
        self._seed = check_int("seed", seed, 0)

    # -- facts of the model --------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        """The most tokens that the model reads at once."""
        return self.llm.room

    @property
    def eot_token_id(self) -> int:
        """The first of the model's end tokens."""
        for token_id in self.llm.tokenizer.end_ids:
            return token_id
        raise InputError("this model names no end token, which lm-eval needs")

    @property
    def prefix_token_id(self) -> int:
        """The token that precedes a text, so that the text's first token is scored, too."""
        begin = self.llm.tokenizer.bos_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """A name for the tokenizer and the template, for lm-eval's cache of requests."""
        return self.llm.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """The facts that lm-eval writes beside its results."""
        return {"model_name": self.llm.name, "cutaway_version": __version__}

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """The token ids of a text.

        add_special_tokens: whether BOS comes first; None: as for the model, and never twice
        """
        add_bos = self._add_bos if add_special_tokens is None else add_special_tokens
        ids = self.llm.tokenize(string, special=True, add_bos=add_bos)
        begin = self.llm.tokenizer.bos_id
        return ids[1:] if add_special_tokens is None and ids[:2] == [begin, begin] else ids

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as a text; without a generation prompt, the last message stays open."""
        self.llm.chat_ids(chat_history)  # raises where there is no template
        assert self.llm.template is not None
        return self.llm.template.render(
            chat_history, continue_final_message=not add_generation_prompt
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the model's template, or None; InputError if another template is named."""
        if isinstance(chat_template, str):
            raise InputError(
                "chat_template", f": the model has one; leave out {shown(chat_template)}"
            )
        return self.llm.template.source if chat_template and self.llm.template else None

    # -- scores --------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each answer, and whether it is the model's greedy answer."""
        longest, cut = self.max_length + 1, 0  # the last token is not read

        def pairs() -> Iterator[tuple[list[int], list[int]]]:
            nonlocal cut
            for _, prompt, answer in requests:
                room = max(1, longest - len(answer))
                cut += len(prompt) > room
                yield prompt[-room:], answer

        scored = self.llm.score_each(pairs())
        bar = tqdm(scored, "scoring", len(requests), disable=disable_tqdm)
        results = [(score.total, score.is_greedy) for score in bar]
        self._say_cut(cut, len(requests))
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood", request[0], result)
        return results

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each whole text, read in lm-eval's windows."""
        texts = [request.args[0] for request in requests]
        parts = [self._windows(text) for text in texts]
        tasks = scores_of_each(self.llm, chain.from_iterable(parts), are_windows=True)
        scored = (score for task in tasks for score in prefill(self.llm.owner, task))
        scores = iter([*tqdm(scored, "scoring", sum(map(len, parts)), disable=disable_tqdm)])
        totals = [fsum(p for _ in part for p in next(scores).logprobs) for part in parts]
        for text, result in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), result)
        return totals

    def _windows(self, text: str) -> list[Any]:
        return [*windows((self.prefix_token_id, *self.tok_encode(text)), self.max_length)]

    # -- texts ---------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each prompt up to one of its stops."""
        prompts = [self._prepare(i, *request.args) for i, request in enumerate(requests)]
        self._say_cut(sum(is_cut for *_, is_cut in prompts), len(prompts))
        done = self.llm.generate_each((ids, options) for ids, options, _ in prompts)
        texts = [""] * len(prompts)
        for index, result in tqdm(done, "writing", len(prompts), disable=disable_tqdm):
            texts[index] = _text(result)
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _prepare(
        self, index: int, prompt: str, gen_kwargs: Mapping[str, Any]
    ) -> tuple[list[int], dict[str, Any], bool]:
        """Return a prompt's tokens, the keywords of its request, and whether the prompt was cut."""
        options = normalize_gen_kwargs({**gen_kwargs}, self.max_gen_toks)
        max_tokens, until = options.pop("max_gen_toks"), options.pop("until", [])
        if options.pop("do_sample"):  # the defaults of transformers, for which tasks are written
            options = {"temperature": 1.0, "top_p": 1.0, "seed": self._seed + index, **options}
        else:
            options["temperature"] = 0.0
        ids, room = self.tok_encode(prompt), self.max_length - max_tokens
        if room < 1:
            raise InputError(
                "max_gen_toks", f": {max_tokens} leaves no room for a prompt; lower it"
            )
        stops = self._stops([until] if isinstance(until, str) else until)
        return ids[-room:], {"max_tokens": max_tokens, **stops, **options}, len(ids) > room

    def _stops(self, until: Iterable[str]) -> dict[str, list[Any]]:
        """Separate the stops that are control tokens, which have no text, from stop strings."""
        tokenizer, ids, texts = self.llm.tokenizer, list[int](), list[str]()
        for stop in filter(None, until):
            cut = self.llm.tokenize(stop, special=True, add_bos=False)
            is_control = len(cut) == 1 and not tokenizer.token_bytes(cut[0])
            ids += cut if is_control else []
            texts += [] if is_control else [stop]
        return {"stop": texts, "stop_token_ids": ids}

    def _say_cut(self, cut: int, total: int) -> None:
        if cut:
            _log.warning(
                "%d of %d prompts were cut at their beginning: the model reads %d tokens",
                cut, total, self.max_length,
            )  # fmt: skip


def _text(result: Any) -> str:
    if isinstance(result, CutawayError):
        raise result
    done: Completion = result
    if done.error:
        raise CutawayError(done.error)
    return done.text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except CutawayError as error:
        say_error(str(error))
        sys.exit(2 if isinstance(error, InputError) else 1)
