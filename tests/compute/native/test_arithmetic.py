"""The number of the arithmetic: what is written under it, on every machine."""

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway._version import ARITHMETIC
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 256, "feed_forward": 256}
SAMPLERS = [
    {"temperature": 0},
    {"temperature": 1.2, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2},
    {"temperature": 1, "typical_p": 0.9, "xtc_probability": 0.5, "dry_multiplier": 0.8},
    {"temperature": 1, "top_n_sigma": 1.5, "top_k": 40, "frequency_penalty": 0.3},
]
WRITTEN = {
    1: {
        "F32 f16": "6789c4819000d5d3 131930a9d1531746 d6d61efbc63ce10a 2239a80235aafcea",
        "F32 q8_0": "3d678d2e1443af72 0518dd2a97e2aed9 99ef2336a86f88cf 58321e4a4defa02a",
        "F32 q5_1,q4_0": "758334e1b6d8eab9 3befaf0dded8fa24 72c8ababee817718 7850709520067acc",
        "F16 f16": "2e8819f504caa3cd cd9974f7240a66e5 3ecf479adbd2a778 efdab5164b594df0",
        "F16 q8_0": "43ae2ddebc183864 1fdc2f782ae687c1 e1b392add953c004 1e5aeadee2d98f0d",
        "F16 q5_1,q4_0": "1f58966e76286045 06f55fe47af32b00 dfbc62dafb4519a1 c27e0ca89e6b8499",
        "Q8_0 f16": "87092578289d29f2 a0f74cec698ef4bf 29014515549e6245 864b2e1616b6ddde",
        "Q8_0 q8_0": "ea478275577fc481 1d6d11895a74737b 7c2ab7c603bd87a6 ec3749d566f27751",
        "Q8_0 q5_1,q4_0": "402b6091350b1d96 cc0042885104657b ae3c84a848ed9c75 fae99d144cc74db9",
        "Q4_K f16": "1ad56096e0205e20 1ef9b101af832ad8 50724b4a6faa4dde 0bc8339c3a9ee70b",
        "Q4_K q8_0": "81d5e5c3aa8d127a 8aeeaca69915dc6a 209034003c74fdcc 5a969ae1d0a676a9",
        "Q4_K q5_1,q4_0": "2666f199171a7e08 98bfd616eee2bc82 14cbde24297ac636 91aace9c6cd33ba9",
        "Q6_K f16": "2bc8422486ee24c9 b75009a588b4cef2 547e7dc93c31afa6 249e64fcab7192d4",
        "Q6_K q8_0": "0e3db8e5ca044ddf 18cd678cadd6d369 9d9c6074b4e9de10 c69990003bb2d2dc",
        "Q6_K q5_1,q4_0": "8a97d56cfa5609b7 cba1164c98084a5c 3cd82092d290eb8f a307b65ea4b7bfe8",
    },
}
"""By number, what each format's texts are: never change a line of another number than the last."""


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q5_1,q4_0"])
@pytest.mark.parametrize("format", ["F32", "F16", "Q8_0", "Q4_K", "Q6_K"])
def test_these_bits_belong_to_this_number(format, kv, tmp_path):
    path = write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE, format=format)
    with LLM(path, kv=kv, progress=False) as llm:
        texts = [
            llm.generate("ab ba ab", seed=3, max_tokens=40, ignore_eos=True, **sampler)
            for sampler in SAMPLERS
        ]
    found = " ".join(one.fingerprint for one in texts)
    assert found == WRITTEN.get(ARITHMETIC, {}).get(f"{format} {kv}"), (
        "these bits are new: raise ARITHMETIC in src/cutaway/_version.py, and write what they are "
        "under its number"
    )
