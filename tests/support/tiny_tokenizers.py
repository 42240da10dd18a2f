"""Small tokenizers that the `tokenizers` library trains here, one of each kind."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from cutaway.text.tokenizers.pretokenizers import PRETOKENIZERS

TEXTS = [
    "the quick brown fox jumps over the lazy dog, 12345 times; the dog sleeps",
    "  It's a test: don't the   words' runs of spaces   matter?\n\n\tThey do, they do!",
    "déjà vu, naïve café: über 日本語 日本 and ½ of  the rest...",
    "def f(x):\n    return x ** 2  # the square of x",
]
SENTENCES = ["paris is the capital of france.", "the cat drinks a cup of tea and a glass of milk."]
SPECIALS = ["<unk>", "<s>", "</s>", "<|turn|>"]


def byte_level(
    words: str = "smollm",
    size: int = 384,
    specials: Sequence[str] = SPECIALS,
    texts: Iterable[str] = TEXTS,
) -> Tokenizer:
    """words: a name in `text.pretokenizers`; texts: that it is trained on."""
    family = PRETOKENIZERS[words]
    made = Tokenizer(models.BPE(ignore_merges=family.whole_words))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in family.patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, as_bytes])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*specials], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    made.add_tokens([AddedToken("<both>", normalized=False)])
    return made


def gpt2_words(
    size: int = 384, specials: Sequence[str] = SPECIALS, texts: Iterable[str] = TEXTS
) -> Tokenizer:
    """As GPT-2's own file has it: ByteLevel alone, which has the expression inside."""
    made = byte_level("gpt-2", size, specials, texts)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def sentencepiece(
    prefix: str = "every", size: int = 400, texts: Iterable[str] = TEXTS
) -> Tokenizer:
    """prefix: "every" (llama's normalizer), "first" (Metaspace) or "none" (gemma)."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    if prefix == "first":
        made.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    elif prefix == "every":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    else:
        made.normalizer = replace
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *spelled], show_progress=False
    )
    # Words with their spaces: pieces would otherwise be whole sentences.
    made.train_from_iterator((w for t in texts for w in t.replace(" ", " \0").split("\0")), trainer)
    return _bytes_are_ordinary(made)


def _bytes_are_ordinary(made: Tokenizer) -> Tokenizer:
    """The trainer knows special tokens only, and bytes are none."""
    import json

    written = json.loads(made.to_str())
    written["added_tokens"] = [t for t in written["added_tokens"] if t["content"] in SPECIALS]
    return Tokenizer.from_str(json.dumps(written))


def wordpiece(
    size: int = 384, texts: Iterable[str] = (*TEXTS, *SENTENCES), **normalizer: bool
) -> Tokenizer:
    """BERT's. normalizer: what its normalizer does otherwise than by default."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**normalizer)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return made


def roberta(size: int = 384, texts: Iterable[str] = TEXTS) -> Tokenizer:
    """RoBERTa's: GPT-2's words between <s> and </s>, a mask that eats the space before it."""
    made = gpt2_words(size, ["<s>", "<pad>", "</s>", "<unk>"], texts)
    end, begin = (made.token_to_id(name) or 0 for name in ("</s>", "<s>"))
    made.post_processor = processors.RobertaProcessing(
        ("</s>", end), ("<s>", begin), add_prefix_space=False
    )
    mask = AddedToken("<mask>", lstrip=True, rstrip=False, normalized=False, special=True)
    made.add_special_tokens([mask])
    return made


def modern_bert(size: int = 384, texts: Iterable[str] = TEXTS) -> Tokenizer:
    """ModernBERT's: GPT-2's words between BERT's tokens; runs of spaces are found first."""
    made = gpt2_words(size, ["[UNK]", "[CLS]", "[SEP]", "[PAD]"], texts)
    made.normalizer = normalizers.NFC()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    made.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3)])
    made.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    return made


def with_begin(made: Tokenizer) -> Tokenizer:
    """Texts begin with <s>, as in llama's post-processor."""
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "smollm": byte_level,
    "gpt-2": gpt2_words,
    "llama-bpe": lambda: with_begin(byte_level("llama-bpe")),
    "qwen2": lambda: byte_level("qwen2"),
    "tekken": lambda: byte_level("tekken"),
    "llama": lambda: with_begin(sentencepiece()),
    "mistral": lambda: with_begin(sentencepiece("first")),
    "gemma": lambda: with_begin(sentencepiece("none")),
}


def save(made: Tokenizer, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
