"""A folder wherever a model can be named: the commands, the card, a trace's identity."""

import json
import re
from shutil import copytree

import numpy as np
import pytest
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file, save_file

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.loading.identity import identify
from cutaway.compute.loading.info import ModelInfo
from cutaway.compute.loading.open import files_of, model_name, open_model, size_of, stat_model
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.files.huggingface import HuggingFaceFolder
from cutaway.text import Tokenizer
from support import tiny_tokenizers
from support.diffusion_models import DIFFUSION
from support.examples import few_or_many
from support.families.row import VOCAB
from support.random_models import FAMILIES, FORMULAS, IDS, edit, save
from support.tiny_tokenizers import KINDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "Tiny-3.2-1B"
    save("llama", path, max_shard_size="200KB")
    edit(path / "tokenizer_config.json", eos_token="</s>")
    edit(path / "generation_config.json", eos_token_id=[2, 3])
    return path


def test_generate_writes_with_a_folder(folder, capsys):
    arguments = ["generate", "the quick", "-m", str(folder), "--max-tokens", "5", "--seed", "1"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "Tiny-3.2-1B"
    again = LLM(folder).generate("the quick", max_tokens=5, seed=1)
    assert told["token_ids"] == list(again.token_ids)
    assert told["fingerprint"] == again.fingerprint


@pytest.mark.parametrize("name", ["config.json", "model-*1-of-*.safetensors"])
def test_a_file_of_the_folder_leads_to_the_folder(folder, name):
    with pytest.raises(InputError, match=f"is one file of a model's folder: name .*{folder.name}$"):
        LLM(next(folder.glob(name)))


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_verify_and_bench_take_it(folder, capsys, quantize):
    given = ["-m", str(folder), "--json", *(["--quantize", quantize] if quantize else [])]
    assert main(["verify", "--threads", "1,2", "-q", *given]) == 0
    told = json.loads(capsys.readouterr().out)
    name = f"Tiny-3.2-1B+{quantize}" if quantize else "Tiny-3.2-1B"
    assert told["passed"] and told["model"] == name
    few = ["--context", "16", "--batch", "1", "--prompt", "16", "--repeats", "1"]
    assert main(["bench", *few, *given]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["model"] == name


def test_tokenize_reads_its_tokenizer(folder, capsys):
    assert main(["tokenize", "-m", str(folder), "--json", "the fox"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == LLM(folder).tokenize("the fox")


def test_the_card_tells_what_the_folder_says(folder, capsys):
    card = ModelInfo.read(folder)
    assert card.name == "Tiny-3.2-1B"
    assert card.file_bytes == sum(path.stat().st_size for path in files_of(folder))
    assert set(card.formats) == {"F32"}
    assert [(end.id, end.origin) for end in card.ends] == [
        (2, "tokenizer_config.json eos_token"), (3, "generation_config.json eos_token_id"),
    ]  # fmt: skip
    assert main(["models", "show", str(folder)]) == 0
    assert "generation_config.json eos_token_id" in capsys.readouterr().out


def test_bos_is_put_once_and_said(tmp_path, capsys):
    tokenizer = tiny_tokenizers.with_begin(tiny_tokenizers.sentencepiece(size=VOCAB))
    save("llama", tmp_path / "m", tokenizer=lambda: tokenizer)
    edit(tmp_path / "m" / "tokenizer_config.json", bos_token="<s>")
    (tmp_path / "m" / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    llm = LLM(tmp_path / "m")
    assert llm.chat_prompt([{"role": "user", "content": "the fox"}])[:2] != [1, 1]
    assert llm.generate("the fox", max_tokens=1).notes == ()
    assert llm.generate([1, 1, 50], max_tokens=1).notes == (
        "the prompt begins with <s> twice; give it once",
    )
    assert main(["models", "show", str(tmp_path / "m")]) == 0
    said = capsys.readouterr().out
    assert "by the template in chat_template.jinja; the <s> that it writes is not doubled" in said
    assert "begins with   <s> (1), from tokenizer.json post_processor" in said
    arguments = ["generate", "<s>the fox", "--special", "-m", str(tmp_path / "m"), "--max-tokens"]
    assert main([*arguments, "1"]) == 0
    assert "note: the prompt has its own <s>, so none was put" in capsys.readouterr().err


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is a folder without a config\.json"):
        LLM(tmp_path)


def test_a_folder_that_cannot_be_read_is_refused_with_its_name(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(FormatError, match=r"neither model\.safetensors nor"):
        LLM(tmp_path)


def test_the_identity_is_of_all_files(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "cutaway.compute.loading.identity._SETTLED_NS", 10**18
    )  # nothing is remembered
    names = [path.name for path in files_of(folder)]
    assert names[0] == "config.json"
    assert "model.safetensors.index.json" in names
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} < set(names)
    before = stat_model(folder)
    first = identify(folder, before)
    text = (folder / "generation_config.json").read_text()
    edit(folder / "generation_config.json", eos_token_id=[2])
    with pytest.raises(InputError, match="has changed since it was loaded"):
        identify(folder, before)
    changed = identify(folder, stat_model(folder))
    (folder / "generation_config.json").write_text(text)
    assert (changed.weights != first.weights, changed.tokenizer) == (True, first.tokenizer)
    assert identify(folder, stat_model(folder)) == first


def test_a_model_has_the_name_that_people_know(tmp_path):
    snapshot = tmp_path / "models--org--Tiny-1.5B" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    assert model_name(snapshot) == "Tiny-1.5B"
    assert model_name(tmp_path / "tiny.Q4_0.gguf") == "tiny.Q4_0"
    (tmp_path / "tiny.gguf").write_bytes(b"12345")
    assert size_of(tmp_path / "tiny.gguf") == 5


# -- whatever the JSON files of a folder say, it opens or is refused: nothing else -----------------


SCALARS = st.none() | st.booleans() | st.integers(-2, 500) | st.floats() | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
)


@pytest.fixture(scope="module", params=[*FAMILIES, *FORMULAS, *DIFFUSION])
def made_folder(request, random_model, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    copytree(random_model(request.param)[0], path, dirs_exist_ok=True)
    tiny_tokenizers.save(KINDS[list(KINDS)[request.param_index % len(KINDS)]](), path)
    edit(path / "tokenizer_config.json", bos_token="<s>", eos_token="</s>", add_bos_token=True)
    edit(path / "generation_config.json", eos_token_id=[2, 3])
    return path


def places(value, path=()):
    """Every place in a document where a value can be put, outside of long tables."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items)[:7]:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


@few_or_many(10, 300, st.data())
def test_a_changed_value_opens_or_is_refused(made_folder, data):
    name = data.draw(st.sampled_from(sorted(p.name for p in made_folder.glob("*.json"))))
    before = (made_folder / name).read_text()
    made = json.loads(before)
    path = data.draw(st.sampled_from(places(made)[1:]))
    value = data.draw(VALUES)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (made_folder / name).write_text(json.dumps(made))
    try:
        with HuggingFaceFolder(made_folder) as file:
            tokenizer = Tokenizer.from_gguf(file.metadata)
            tokenizer.encode("the quick 日本 </s>")
            file.raw("token_embd.weight")
    except CutawayError as error:
        assert "\n" not in str(error)
    finally:
        (made_folder / name).write_text(before)


# -- draft head ------------------------------------------------------------------------------------

# Draft heads in folders: as one more layer, or apart under mtp.


HIDDEN = 64
AS_LAYER = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
APART = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


def with_head(family, folder, *, apart, key):
    """The family's model, and behind it a head whose layer has the tensors of one that attends."""
    save(family, folder)
    file = folder / "model.safetensors"
    tensors, config = load_file(file), json.loads((folder / "config.json").read_text())
    count = config["num_hidden_layers"]
    layer = max(int(n.split(".")[-4]) for n in tensors if n.endswith("self_attn.o_proj.weight"))
    to = "mtp." if apart else f"model.layers.{count}."
    for name in [n for n in tensors if re.search(rf"layers\.{layer}\.", n)]:
        ending = name.partition(f"layers.{layer}.")[2]
        tensors[f"{to}layers.0.{ending}" if apart else to + ending] = tensors[name]
    rng = np.random.default_rng(4)
    shapes = [(HIDDEN, 2 * HIDDEN), *[(HIDDEN,)] * 3]
    for name, shape in zip(APART if apart else AS_LAYER, shapes, strict=True):
        tensors[f"{to}{name}.weight"] = rng.normal(size=shape).astype(np.float32) * 0.3
    save_file(tensors, file, metadata={"format": "pt"})
    if key:
        (folder / "config.json").write_text(json.dumps(config | {key: 1}))
    return folder, count, tensors


@pytest.mark.parametrize(
    ("family", "apart", "key"),
    [
        ("glm4_moe", False, "num_nextn_predict_layers"),
        ("glm4_moe-normed-heads", False, "num_nextn_predict_layers"),
        ("deepseek_v3", False, "num_nextn_predict_layers"),
        ("qwen3_5", True, "mtp_num_hidden_layers"),
        ("qwen3_5_moe", True, "mtp_num_hidden_layers"),
        ("qwen3_next", True, None),
    ],
)
def test_it_drafts_and_changes_nothing(tmp_path, family, apart, key):
    folder, count, tensors = with_head(family, tmp_path, apart=apart, key=key)
    with open_model(folder) as file:
        assert "tokens ahead" not in file.metadata["cutaway.unread"]
        made = file.dequantize(f"blk.{count}.nextn.enorm.weight")
        stored = tensors[
            "mtp.pre_fc_norm_embedding.weight" if apart else f"model.layers.{count}.enorm.weight"
        ]
        assert np.array_equal(made, stored + np.float32(apart))  # Qwen's norms are of 1 + w
    llm = LLM(folder)
    options = {"max_tokens": 24, "ignore_eos": True, "seed": 3, "temperature": 1.0}
    plain, drafted = (llm.generate(IDS, speculate=s, **options) for s in ("off", "mtp"))
    assert (drafted.token_ids, drafted.fingerprint) == (plain.token_ids, plain.fingerprint)
    assert drafted.speculation.proposed > 0


MIMO = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")


def test_mimo_is_qwen_2_with_a_head_under_mtp_layers(tmp_path):
    folder, count, tensors = with_head(
        "qwen2", tmp_path, apart=False, key="num_nextn_predict_layers"
    )
    names = dict(zip(AS_LAYER, MIMO, strict=True))
    renamed = {}
    for name, numbers in tensors.items():
        inside = name.removeprefix(f"model.layers.{count}.")
        new = names.get(inside.removesuffix(".weight"))
        of_head = f"model.mtp_layers.0.{new}.weight" if new else f"model.mtp_layers.0.{inside}"
        renamed[name if inside == name else of_head] = numbers
    options = {"max_tokens": 24, "ignore_eos": True, "seed": 3, "temperature": 1.0}
    plain = LLM(folder).generate(IDS, **options)
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder / "config.json", model_type="mimo")
    with open_model(folder) as file:
        eh_proj = file.dequantize(f"blk.{count}.nextn.eh_proj.weight")
    stored = renamed["model.mtp_layers.0.input_proj.weight"]
    assert np.array_equal(eh_proj[:, :HIDDEN], stored[:, HIDDEN:])  # the embedding's columns
    assert np.array_equal(eh_proj[:, HIDDEN:], stored[:, :HIDDEN])
    drafted = LLM(folder).generate(IDS, speculate="mtp", **options)
    assert (drafted.token_ids, drafted.fingerprint) == (plain.token_ids, plain.fingerprint)
    assert drafted.speculation.proposed > 0


def test_a_head_that_the_folder_only_announces_is_none(tmp_path):
    save("glm4_moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert LLM(tmp_path).config.unrun_layers == 0
