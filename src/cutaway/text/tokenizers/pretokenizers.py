r"""How each family of byte-level models cuts a text into words before merging.

Knows, for each value of ``tokenizer.ggml.pre``, the family's regular expressions and its two
defaults. Each expression cuts the fragments of the one before; text between its matches becomes a
fragment, too. The expressions are those of the models' own
``tokenizer.json`` where llama.cpp's ``llama-vocab.cpp`` cites them, otherwise llama.cpp's.

Unicode normalizers (Qwen's NFC) are left out, as in llama.cpp, so that decoding returns
the same bytes.
"""

from typing import Any, NamedTuple

from cutaway.errors import FormatError

FIELD = "tokenizer.ggml.pre"

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BAILING_WORDS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
_SEED_WORDS = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)
_EXAONE_WORDS = (  # an expression that may take several words as one
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS_WORDS = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+"
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s{1}"
)
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_CJK = "[一-龥ࠀ-一가-퟿]+"
_CASED_LETTERS = (
    r"[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-"
    r"Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ"
    r"-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]"
)
_FULLWIDTH = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
_ASIAN = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_BLOOM_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
_DIGITS_FROM_BEHIND = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _words(digits: str) -> str:
    """Return GPT-4's expression; Llama 3 and Qwen change only ``digits``, its part for digits."""
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased_words(digits: str, suffix: str = "", but: str = "", after: str = r"\r\n/") -> str:
    """Return the o200k expression, in which a word also ends where upper case begins.

    but: excludes characters from the letters
    after: characters that join the punctuation before them
    """
    head, upper, lower = r"[^\r\n\p{L}\p{N}]?", f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    return (
        rf"{head}{upper}*{lower}+{suffix}|{head}{upper}+{lower}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[{after}]*|{_SPACES}"
    )


class PreTokenizer(NamedTuple):
    """A family's expressions, in the order of use, and its defaults."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is itself a token skips merging ("ignore_merges")
    add_bos: bool = False  # if the metadata lacks the field
    add_sep: bool = False  # likewise, for the token after every text


_LLAMA3, _QWEN2 = _words(r"\p{N}{1,3}"), _words(r"\p{N}")
_O200K = _cased_words(r"\p{N}{1,3}", f"{_CONTRACTION}?")
_ONE_BY_ONE = (r"\p{N}", GPT2_WORDS)
_DEEPSEEK3 = (r"\p{N}{1,3}", _HAN_AND_KANA, rf"{_DEEPSEEK_WORDS}[\r\n]*|{_SPACES}")

_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "gpt-2 phi-2 mpt olmo jais exaone4 modern-bert jina-es jina-de jina-v2-es jina-v2-de"
        " gigachat a.x-4.0 mellum trillion granite-docling",
        PreTokenizer((GPT2_WORDS,)),
    ),
    ("roberta-bpe jina-v1-en jina-v2-code", PreTokenizer((GPT2_WORDS,), add_sep=True)),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        PreTokenizer(_ONE_BY_ONE),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano",
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), whole_words=True)),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo f2llmv2 solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    (
        "qwen35",
        PreTokenizer((
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )),
    ),
    ("ufakzeka", PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTION}|"),))),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True)),
    ("jais-2", PreTokenizer((_JAIS_WORDS,))),
    ("tekken", PreTokenizer((_cased_words(r"\p{N}"),), whole_words=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_O200K,))),
    ("granite-embed-multi-97m", PreTokenizer((_O200K,), whole_words=True)),
    ("tiny_aya cohere2moe", PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K))),
    (
        "kimi-k2",
        PreTokenizer((
            r"[\p{Han}]+|" + _cased_words(
                r"\p{N}{1,3}", f"{_CONTRACTION}?", but=r"&&[^\p{Han}]", after=r"\r\n"
            ),
        )),
    ),
    (
        "youtu",
        PreTokenizer((_YOUTU, _cased_words(r"\p{N}", f"{_CONTRACTION}?")), whole_words=True),
    ),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING_WORDS,))),
    ("seed-coder", PreTokenizer((_SEED_WORDS,))),
    ("exaone-moe", PreTokenizer((_EXAONE_WORDS,))),
    (
        "deepseek-llm",
        PreTokenizer((
            r"[\r\n]", rf"\s?{_CASED_LETTERS}+", _FULLWIDTH, r"\s+$", _CJK, r"\p{N}+",
        )),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK3)),
    (
        "spark2_5",
        PreTokenizer((
            *_DEEPSEEK3[:2], rf"{_DEEPSEEK_WORDS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}",
        )),
    ),
    ("afmoe", PreTokenizer((_DIGITS_FROM_BEHIND, _ASIAN, _DEEPSEEK3[-1]))),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORDS, r"[0-9][0-9][0-9]"))),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM_WORDS,))),
    ("viking", PreTokenizer((_BLOOM_WORDS, r"\p{N}"))),
    (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )",
                r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2_WORDS,
            ),
            add_bos=True,
        ),
    ),
    ("default", PreTokenizer((_PUNCTUATION, GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))),
)  # fmt: skip
PRETOKENIZERS = {name: family for names, family in _FAMILIES for name in names.split()}


def lookup(name: Any) -> PreTokenizer:
    """Return the pre-tokenizer of that name; FormatError with the list of names for any other."""
    if not isinstance(name, str) or name not in PRETOKENIZERS:
        problem = "is missing" if name is None else f"{name!r:.40} is not supported"
        raise FormatError(
            f"{FIELD} {problem}: use a model with one of {', '.join(sorted(PRETOKENIZERS))}"
        )
    return PRETOKENIZERS[name]
