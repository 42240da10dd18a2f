"""``tools/report.py``: what a report of a fault brings along."""

import json

import report
from cutaway.files.hub import resolve


def test_a_file_is_described_by_its_metadata_and_kinds_of_tensors(capsys):
    assert report.main([str(resolve("toy-writer"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cutaway ") and lines[1].startswith("instruction sets: ")
    assert '  general.architecture: "llama"' in lines
    assert "      4 × blk.N.attn_q.weight Q8_0 (160, 160)" in lines
    assert any(line.startswith("  tokenizer.ggml.tokens: 1024 values") for line in lines)


def test_a_folder_that_is_refused_is_described(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of", "ids": [1] * 99}))
    header = {
        f"layers.{n}.w": {"dtype": "I4", "shape": [2, 3], "data_offsets": [0, 0]} for n in (1, 22)
    }
    data = json.dumps({"__metadata__": {}, **header}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)
    assert report.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert '  model_type: "unheard_of"\n' in printed and "  ids: 99 values, [1, 1, 1, 1]" in printed
    assert "      2 × layers.N.w I4 [2, 3]\n" in printed


def test_a_damaged_file_is_said_to_be_damaged(tmp_path, capsys):
    (tmp_path / "a.gguf").write_bytes(b"GGUX" + bytes(64))
    assert report.main([str(tmp_path / "a.gguf")]) == 1
    assert "a.gguf" in capsys.readouterr().out
