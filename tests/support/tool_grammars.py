"""llguidance over a vocabulary of bytes: accepted token sequences, and random walks."""

import random
from collections.abc import Sequence
from functools import cache
from typing import cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from cutaway.text.tools import Dialect
from support.chat_templates import CONTROLS, END


class _Vocabulary:
    """A vocabulary of bytes with the interface that llguidance requires."""

    is_tokenizer_wrapper = True
    eos_token_id, bos_token_id = END, None

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in CONTROLS]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(cast(TokenizerWrapper, _Vocabulary()))


def matcher(grammar: str) -> LLMatcher:
    text = LLMatcher.grammar_from_lark(grammar)
    assert LLMatcher.validate_grammar(text, vocabulary()) == ""
    return LLMatcher(vocabulary(), text, log_level=0)


def ids(text: str, form: Dialect) -> list[int]:
    """Return the ids of a text: the dialect's tags as tokens, all else as bytes."""
    ids: list[int] = []
    in_string = False
    while text:
        tag = next((tag for tag in form.control if text.startswith(tag)), None)
        if tag and not in_string:
            ids.append(form.control[tag])
            text = text[len(tag) :]
        else:
            ids += text[0].encode()
            in_string ^= text[0] == '"' and form.control != {}
            text = text[1:]
    return ids


def accepts(grammar: str, ids: list[int]) -> bool:
    """Return whether the grammar allows these tokens and then the end."""
    running = matcher(grammar)
    if running.validate_tokens(ids) < len(ids):
        return False
    assert running.try_consume_tokens(ids) == len(ids)
    return running.is_accepting()


def walk(
    grammar: str, rng: random.Random, limit: int = 400, phrases: Sequence[list[int]] = ()
) -> tuple[list[int], bool]:
    """Return (tokens drawn at random from the masks, whether the text ended by itself).

    phrases: token sequences written now and then where allowed; chance hardly finds them
    """
    running = matcher(grammar)
    ids: list[int] = []
    words = np.zeros((vocabulary().vocab_size + 31) // 32, np.int32)
    while len(ids) < limit:
        if running.is_stopped():
            return ids, True
        phrase = rng.choice(phrases) if phrases and rng.random() < 0.3 else []
        if phrase and running.validate_tokens(phrase) == len(phrase):
            assert running.try_consume_tokens(phrase) == len(phrase)
            ids += phrase
            continue
        running.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        assert not running.is_error(), running.get_error()
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        choices = np.flatnonzero(bits).tolist()
        token = END if END in choices and rng.random() < 0.3 else _likely(choices, rng)
        if token == END:
            return ids, True
        assert running.consume_token(token)
        ids.append(token)
    return ids, False


def _likely(choices: list[int], rng: random.Random) -> int:
    """Draw a choice, often one that closes something, so that walks end."""
    signs = {*b'"}]<[{'}
    closing = [token for token in choices if token in signs or token > END]
    return rng.choice(closing if closing and rng.random() < 0.4 else choices)
