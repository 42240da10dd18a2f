"""Whether the oracle finds the faults of other engines' answers: each right, and wrong in 3 ways.

    python bench/oracle_beside_others.py F16.gguf Q4_0.gguf [--llama-server PATH] [--vllm URL]
        [--openvino-python PYTHON] [--tokens 64] [--keep FOLDER] [--write docs/oracle.md]

The two files are one model. transformers (float32 and bfloat16), llama.cpp's llama-server, OpenVINO
GenAI (in PYTHON) and a running vLLM of the first file's weights write two answers each: right, and
in three ways that differ from their description: at another temperature, with a token changed
afterwards, and by the Q4_0 weights. vLLM has no Q4_0 weights, so its third way is left out. --keep
stores the answers.
The table goes between <!-- oracle-others:begin --> and <!-- oracle-others:end -->.
"""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile

from cutaway import LLM
from cutaway.errors import CutawayError
from cutaway.features.evidence.oracle import (
    EngineAnswer,
    Oracle,
    oracle,
    read_answers,
    write_answers,
)
from cutaway.features.evidence.oracle.engines import ask, ask_transformers
from cutaway.rerun.asking import Server
from script import check_page, grid, parser_of, publish

SAID, WRONG = 0.8, 1.2
"""The temperature in the description, and the other one."""
PROMPTS = ("Tell me of the sea.", "Why is the sky blue?")
DTYPES = ("float32", "bfloat16")
CASES = ("right", "temperature", "token", "quantisation")


@contextmanager
def llama_server(program: str, path: Path) -> Iterator[Server]:
    """Run llama-server until the block ends."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [program, "-m", str(path), "-c", "512", "--parallel", "1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        server = Server(f"http://127.0.0.1:{port}")
        try:
            for _ in range(240):
                try:
                    server.get("/health")
                    break
                except CutawayError:
                    time.sleep(0.5)
            yield server
        finally:
            child.terminate()


def openvino(python: str, path: Path, ids: list[list[int]], *settings: float) -> str:
    """Have OpenVINO GenAI answer the prompts; return its answers as lines of JSON."""
    script = Path(__file__).parent / "peers" / "openvino_told.py"
    words = [python, str(script), str(path), *map(str, settings)]
    done = subprocess.run(words, input=json.dumps(ids), capture_output=True, text=True, check=True)
    return done.stdout


def written(
    engine: str, path: Path, llm: LLM, temperature: float, args: object
) -> list[EngineAnswer]:
    """Have an engine write two answers."""
    ids = [llm.chat_ids([{"role": "user", "content": text}]) for text in PROMPTS]
    tokens, program = args.tokens, args.llama_server  # type: ignore[attr-defined]
    if engine == "vLLM":
        return ask(Server(args.vllm), llm, ids, max_tokens=tokens, temperature=temperature)  # type: ignore[attr-defined]
    if engine == "OpenVINO":
        with NamedTemporaryFile("w+", suffix=".jsonl") as file:
            file.write(openvino(args.openvino_python, path, ids, temperature, tokens))  # type: ignore[attr-defined]
            file.flush()
            return read_answers(Path(file.name), llm)
    if engine == "llama.cpp":
        with llama_server(program, path) as server:
            return ask(server, llm, ids, max_tokens=tokens, temperature=temperature, top_p=1.0,
                       top_k=0, min_p=0.0)  # fmt: skip
    return ask_transformers(
        path, ids, dtype=engine, max_tokens=tokens, temperature=temperature, top_p=0.9
    )


def case(engine: str, name: str, llm: LLM, args: object) -> list[EngineAnswer]:
    """Return an engine's answers in one way, and keep them in a file."""
    made = "right" if name == "token" else name
    keep: Path = args.keep  # type: ignore[attr-defined]
    file = keep / f"{engine}-{made}.jsonl"
    if not file.exists():
        path = args.quant if name == "quantisation" else args.base  # type: ignore[attr-defined]
        write_answers(
            file, written(engine, path, llm, WRONG if made == "temperature" else SAID, args)
        )
    tokens = args.tokens  # type: ignore[attr-defined]
    told = [
        replace(t, token_ids=t.token_ids[:tokens], logprobs=t.logprobs[:tokens])
        for t in read_answers(file, llm)
    ]
    if name == "token":
        ids = told[0].token_ids
        told[0] = replace(told[0], token_ids=(*ids[:20], ids[21], *ids[21:]))
    return told


def row(engine: str, name: str, found: Oracle) -> list[str]:
    best = found.fit.distance(found.kind)
    said = "; ".join(f.description for f in found.findings).replace("|", "\\|") or "–"
    return [
        engine, name, ", ".join(found.verdict), said, found.kind, f"{best.mean_abs:.4f}",
        f"{found.after:.4f}", f"{found.importance_error:.3g}",
    ]  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, model=False, write="docs/oracle.md")
    parser.add_argument("base", type=Path)
    parser.add_argument("quant", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--keep", type=Path, default=Path("told"))
    parser.add_argument("--llama-server", default="llama-server")
    parser.add_argument("--vllm", metavar="URL")
    parser.add_argument("--openvino-python", metavar="PYTHON")
    args = parser.parse_args()
    check_page(args.write, "oracle-others")
    args.keep.mkdir(exist_ok=True)
    rows = []
    others = {q: partial(LLM, args.base, quantize=q, progress=False) for q in ("q8_0", "q4_0")}
    with LLM(args.base, progress=False) as llm:
        asked = {"OpenVINO": args.openvino_python, "vLLM": args.vllm}
        for engine in (*DTYPES, "llama.cpp", *(name for name in asked if asked[name])):
            for name in CASES[:3] if engine == "vLLM" else CASES:
                told = case(engine, name, llm, args)
                top_p = 0.9 if engine in DTYPES else 1.0
                found = oracle(
                    llm, told, other_weights=others if name == "quantisation" else None,
                    temperature=SAID, top_p=top_p,
                )  # fmt: skip
                label = f"transformers, {engine}" if engine in DTYPES else engine
                rows.append(row(label, name, found))
                print(rows[-1], flush=True)
    head = ["engine", "wrong", "verdict", "found", "told", "mean |Δ| as said", "left",
            "importance error"]  # fmt: skip
    versions = {name: version(name) for name in ("torch", "transformers")}
    found_all = {"versions": versions, "rows": [dict(zip(head, r, strict=True)) for r in rows]}
    head[5] = "mean \\|Δ\\| as said"
    publish(grid(head, rows), found_all, args.write, "oracle-others")


if __name__ == "__main__":
    main()
