"""What OpenVINO GenAI writes after prompts, and the log-probabilities it tells; in its Python.

    python openvino_told.py MODEL.gguf TEMPERATURE TOKENS < ids.json > told.jsonl

ids.json has a list of token ids for each prompt.
"""

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np


def main() -> None:
    ov: Any = import_module("openvino")
    genai: Any = import_module("openvino_genai")
    model, temperature, tokens = sys.argv[1:]
    cache = genai.SchedulerConfig()
    cache.cache_size = 1  # GB
    pipe = genai.ContinuousBatchingPipeline(model, cache, "CPU", {})
    for number, ids in enumerate(json.load(sys.stdin)):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.rng_seed = int(tokens), number
        config.do_sample, config.temperature, config.top_p = True, float(temperature), 1.0
        config.top_k, config.logprobs = 2**31, 1
        handle = pipe.add_request(number, ov.Tensor(np.array([ids], np.int64)), config)
        while pipe.has_non_finished_requests():
            pipe.step()
        [text] = handle.read_all()
        told = {"token_ids": list(text.generated_ids), "logprobs": list(text.generated_log_probs)}
        print(json.dumps({"prompt_token_ids": ids, **told}))


if __name__ == "__main__":
    main()
