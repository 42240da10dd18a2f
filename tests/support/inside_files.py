"""The inside of a step as a page requests and reads it, compared with the engine's."""

import json

import numpy as np

from cutaway.features.inside import summary
from cutaway.features.inside.look import inside


def make_request(trace, step, rival=None):
    """Return the request that state/inside-cache.js sends."""
    return {
        "prompt": [*trace.head.prompt_token_ids],
        "generated": [*trace.output_token_ids[: step + 1]],
        "step": step,
        "row": f"{trace.steps[step].logits_hash:016x}",
        "drawn": trace.steps[step].sampled_id,
        "settings": {**trace.head.params, "seed": str(trace.head.seed)},
        "interventions": None,
        "rival": rival,
    }


def arrays(file):
    """Return (metadata, arrays by name) of a safetensors file."""
    length = int.from_bytes(file[:8], "little")
    header, kinds = json.loads(file[8 : 8 + length]), {"F32": "<f4", "I32": "<i4", "U8": "u1"}
    metadata, body = header.pop("__metadata__"), file[8 + length :]
    return metadata, {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
    }


def check_same(file, llm, trace, step, rival=None):
    """Check that ids, ranks, draws and bytes of weights are equal. Sums of doubles have another
    order, so they may differ in the last digits of a float32."""
    header, there = arrays(file)
    look = inside(llm, trace, step)
    figures = look, look.logit_attribution(rival), look.lens(1)
    here = summary.page_arrays(*figures)
    assert there.keys() == here.keys()
    for name, array in here.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(there[name], array, rtol=1e-5, atol=2e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(there[name], array, err_msg=name)
    metadata = summary.page_header(*figures, llm.tokenizer.token_name, trace="", model="")
    same = "row", "token", "rival", "parts", "sinks", "lens_first", "lens_settled", "draw_settled"
    assert [header[name] for name in same] == [metadata[name] for name in same]
    for name in "kv_bytes", "total":
        assert float(header[name]) == float(metadata[name])
