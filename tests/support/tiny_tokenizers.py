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
    """words: a name in `text.pretokenizers`; texts: the training data."""
    family = PRETOKENIZERS[words]
    tokenizer = Tokenizer(models.BPE(ignore_merges=family.whole_words))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in family.patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*specials], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<both>", normalized=False)])
    return tokenizer


def gpt2_words(
    size: int = 384, specials: Sequence[str] = SPECIALS, texts: Iterable[str] = TEXTS
) -> Tokenizer:
    """Make GPT-2's own tokenizer: ByteLevel alone, which has the expression inside."""
    tokenizer = byte_level("gpt-2", size, specials, texts)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def sentencepiece(
    prefix: str = "every", size: int = 400, texts: Iterable[str] = TEXTS
) -> Tokenizer:
    """prefix: "every" (llama's normalizer), "first" (Metaspace) or "none" (gemma)."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    if prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    elif prefix == "every":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    else:
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *spelled], show_progress=False
    )
    # Train on words with their spaces: pieces would otherwise be whole sentences.
    tokenizer.train_from_iterator(
        (w for t in texts for w in t.replace(" ", " \0").split("\0")), trainer
    )
    return _bytes_are_ordinary(tokenizer)


def _bytes_are_ordinary(tokenizer: Tokenizer) -> Tokenizer:
    """Make byte tokens ordinary: the trainer can only add them as special tokens."""
    import json

    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] in SPECIALS]
    return Tokenizer.from_str(json.dumps(document))


def wordpiece(
    size: int = 384, texts: Iterable[str] = (*TEXTS, *SENTENCES), **normalizer: bool
) -> Tokenizer:
    """Train BERT's tokenizer. normalizer: non-default settings of its normalizer."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return tokenizer


def roberta(size: int = 384, texts: Iterable[str] = TEXTS) -> Tokenizer:
    """Train RoBERTa's: GPT-2's words between <s> and </s>; the mask absorbs the space before it."""
    tokenizer = gpt2_words(size, ["<s>", "<pad>", "</s>", "<unk>"], texts)
    end, begin = (tokenizer.token_to_id(name) or 0 for name in ("</s>", "<s>"))
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", end), ("<s>", begin), add_prefix_space=False
    )
    mask = AddedToken("<mask>", lstrip=True, rstrip=False, normalized=False, special=True)
    tokenizer.add_special_tokens([mask])
    return tokenizer


def modern_bert(size: int = 384, texts: Iterable[str] = TEXTS) -> Tokenizer:
    """Train ModernBERT's: GPT-2's words between BERT's tokens; runs of spaces are found first."""
    tokenizer = gpt2_words(size, ["[UNK]", "[CLS]", "[SEP]", "[PAD]"], texts)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3)])
    tokenizer.add_special_tokens(
        [AddedToken("[MASK]", lstrip=True, normalized=False, special=True)]
    )
    return tokenizer


def with_begin(tokenizer: Tokenizer) -> Tokenizer:
    """Make texts begin with <s>, as llama's post-processor does."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A <s> $B",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
    )
    return tokenizer


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


def save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
