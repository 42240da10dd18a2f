"""Files that runs write: traces, receipts and their logs, saved prefixes, indexes of texts."""

import gzip
import json
import struct
import zlib
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from hashlib import sha256
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.cli.terminal.drawing import Style
from cutaway.features.evidence.receipt import Receipt, chain_root, read_document
from cutaway.features.evidence.receipt_check import check_all
from cutaway.features.evidence.receipt_log import ReceiptLog, check_inclusion, check_log
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.features.players.canvas_player import CanvasPlayer
from cutaway.features.players.step_player import StepPlayer
from cutaway.files.prefix import MAGIC, VERSION, PrefixHeader, PrefixReader
from cutaway.methods.index import Index, Passage
from cutaway.rerun import replay
from cutaway.trace import (
    Trace,
    diff_texts,
    step_view,
    to_csv,
    to_html,
    to_openai,
    to_passes_csv,
    why,
)
from cutaway.trace.write import end_of
from support.fuzz.format import Format, use_any
from support.fuzz.mutation import NUMBERS, a_few, mutate_bytes, mutate_json, mutate_json_by_type
from support.random_llama import write_tiny_llama

DATA = Path(__file__).parents[2] / "data"
TEXT = "a bé ab été, " * 8
RUN: dict[str, Any] = {"max_tokens": 6, "seed": 3, "temperature": 1.0, "ignore_eos": True}


class OfAModel(Format):
    """Files that a tiny model's runs wrote; the same model uses them."""

    @cached_property
    def llm(self) -> LLM:
        """The model, loaded once."""
        return LLM(self.folder / "model.gguf", threads=1, progress=False)

    def make(self) -> None:
        """Write the model."""
        write_tiny_llama(self.folder / "model.gguf", context=512)


class TraceFiles(OfAModel):
    """Traces of all versions, gzipped or not, and every view of them."""

    name, inputs = "trace", 120

    def make(self) -> None:
        """Write the tests' traces of texts and canvases, and one that the model can replay."""
        super().make()
        for path in sorted(DATA.glob("traces_v*/*.jsonl*")):
            raw = path.read_bytes()
            if path.suffix == ".gz":
                raw = zlib.decompressobj(31).decompress(raw)  # some are cut
            (
                self.folder / "seeds" / f"{path.parent.name}-{path.name.removesuffix('.gz')}"
            ).write_bytes(raw)
        for name, more in (
            ("run", {}),
            ("schema", {"json_schema": {"type": "integer"}, "ignore_eos": False}),
        ):
            (self.folder / "seeds" / f"{name}.jsonl").unlink(missing_ok=True)
            self.llm.generate(
                TEXT, trace=self.folder / "seeds" / f"{name}.jsonl", **{**RUN, **more}
            )

    def draw(self, rng: Random) -> bytes:
        """Change fields of a few lines, or bytes; move, remove and repeat lines."""
        lines = rng.choice(self.seeds).read_bytes().splitlines(keepends=True)
        lines = lines[: rng.choice((3, 8, 200, 2000))]
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(rng.choice((1, len(lines))))
            change = mutate_json if rng.random() < 0.2 else mutate_json_by_type
            try:
                lines[at] = json.dumps(change(rng, json.loads(lines[at]))).encode() + b"\n"
            except ValueError:
                continue
        if rng.random() < 0.1:
            at = rng.randrange(len(lines))
            lines = rng.choice(
                (lines[:at] + lines[at + 1 :], [*lines, lines[at]], lines[at:] + lines[:at])
            )
        raw = b"".join(lines)
        raw = mutate_bytes(rng, raw) if rng.random() < 0.1 else raw
        if rng.random() < 0.15:
            raw = gzip.compress(raw, 1, mtime=0)
            raw = mutate_bytes(rng, raw) if rng.random() < 0.5 else raw
        return raw

    def use(self, data: bytes) -> None:
        """Read a trace, compute every view of it, and replay it if it is the model's."""
        trace = Trace.read(path := self.write_file(".jsonl", data))
        json.dumps([step_view(trace, step).to_dict() for step in trace.steps])
        json.dumps([why(trace).to_dict(), diff_texts(trace, trace).to_dict(), to_openai(trace)])
        to_passes_csv(trace) if trace.head.decoder else to_csv(trace)
        to_html(trace)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            main(["trace", "why", str(path)])
        player = CanvasPlayer(trace) if trace.head.decoder else StepPlayer(trace)
        for line in player.frame(90, 40, Style(ansi=False, colour=False, unicode=True)):
            assert line.isprintable(), f"a line that cannot be shown: {line!r}"
        if trace.head.weights == self.llm.model.identity.weights:
            use_any(lambda: replay(self.llm, trace, anyway=True), lambda: trace)


class Receipts(OfAModel):
    """Receipts, with and without a proof, and logs of them; most are signed again."""

    name, inputs = "receipt", 150

    @cached_property
    def key(self) -> PrivateKey:
        """The sender's key, the same in every run."""
        return PrivateKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))

    def make(self) -> None:
        """Write three receipts, one with its proof, and their log."""
        super().make()
        log = ReceiptLog(self.folder / "log", self.key)
        for seed in range(3):
            with self.llm.stream("ab", **{**RUN, "seed": seed}) as stream:
                stream.finish()
            assert stream.ended is not None
            receipt = Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), self.key)
            log.append(f"a{seed}", receipt)
            (self.folder / "seeds" / f"{seed}.json").write_text(json.dumps(receipt.document))
        (self.folder / "seeds" / "proof.json").write_text(json.dumps(log.find("a1")[0]))
        fields = {
            name: (log.folder / f"{name}.jsonl").read_text().splitlines()
            for name in ("receipts", "heads")
        }
        log.close()
        (self.folder / "seeds" / "log.json").write_text(json.dumps(fields))

    def draw(self, rng: Random) -> bytes:
        """Return a document with odd values, signed again or not."""
        document = json.loads(rng.choice(self.seeds).read_bytes())
        if "heads" in document:
            return self._log(rng, document)
        document = rng.choice((mutate_json, mutate_json_by_type))(rng, document)
        if rng.random() < 0.7 and isinstance(document, dict):
            self._sign(document.get("receipt", document))
        raw = json.dumps(document).encode()
        return mutate_bytes(rng, raw) if rng.random() < 0.1 else raw

    def _sign(self, document: Any) -> None:
        try:
            root = chain_root(document)
            signed = {
                "root": root,
                "public_key": self.key.public.hex,
                "signature": self.key.sign(bytes.fromhex(root)),
            }
            document.update(signed)
        except (AttributeError, LookupError, TypeError, ValueError):
            return  # it cannot be signed

    def _log(self, rng: Random, document: dict[str, list[str]]) -> bytes:
        for name, lines in document.items():
            for at in range(len(lines)):
                if rng.random() < 0.2:
                    line = rng.choice((mutate_json, mutate_json_by_type))(
                        rng, json.loads(lines[at])
                    )
                    if name == "receipts" and isinstance(line, dict) and rng.random() < 0.7:
                        self._sign(line.get("receipt"))
                    lines[at] = json.dumps(line)
            if rng.random() < 0.2:
                rng.shuffle(lines)
        return json.dumps(document).encode()

    def use(self, data: bytes) -> None:
        """Check a receipt as ``cutaway receipt verify`` and ``cutaway receipt log`` do."""
        path = self.write_file(".json", data)
        document = read_document(path)
        if isinstance(document, dict) and document.keys() == {"receipts", "heads"}:
            folder = self.scratch("log")
            folder.mkdir(exist_ok=True)
            for name, lines in document.items():
                text = "".join(f"{line}\n" for line in lines)
                (folder / f"{name}.jsonl").write_text(text, "utf-8", "surrogatepass")
            check_log(folder)
            return
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            main(["receipt", "verify", str(path), "--no-model"])
        if isinstance(document, dict) and document.keys() == {"receipt", "log"}:
            receipt = Receipt.from_json(document["receipt"])
            check_inclusion(receipt, document["log"])
        else:
            receipt = Receipt.from_json(document)
        check_all(self.llm, receipt)


class Prefixes(OfAModel):
    """Saved prefixes, most of them with valid hashes."""

    name, inputs, kernels = "prefix", 60, True

    def make(self) -> None:
        """Save the prefixes of two texts."""
        super().make()
        for name, text in (("a", TEXT), ("b", TEXT[1:])):
            self.llm.save_prefix(self.folder / "seeds" / f"{name}.prefix", text)

    def draw(self, rng: Random) -> bytes:
        """Change fields of the header, sizes and blocks."""
        raw = rng.choice(self.seeds).read_bytes()
        if rng.random() < 0.2:
            return mutate_bytes(rng, raw)
        with PrefixReader(self.write_file(".prefix", raw)) as file:
            head, start = file.head, file.head.sizes.head
        ends = np.cumsum((start, *head.block_bytes))
        blocks = [raw[a:b] for a, b in pairwise(ends)]
        fields = {name: getattr(head, name) for name in ("model", "computed_by", "text", "special")}
        ids, blocks = list(head.token_ids), [*blocks]

        def change() -> None:
            nonlocal fields, ids
            change = rng.randrange(5)
            if change == 0:
                fields = mutate_json(rng, fields)
            elif change == 1:
                ids[rng.randrange(len(ids))] = rng.choice(
                    (-1, 2**31 - 1, -(2**31), 10**6, 0, ids[0])
                )
            elif change == 2:
                blocks[rng.randrange(len(blocks))] = rng.choice(
                    (*blocks, b"", blocks[0][:-2], bytes(len(blocks[0])))
                )
            elif change == 3:
                pattern = rng.choice((b"\xff\x7f", b"\0\x7c", b"\xff\xff", rng.randbytes(2)))
                at = rng.randrange(len(blocks))
                blocks[at] = pattern * (len(blocks[at]) // 2)
            else:
                del blocks[rng.randrange(len(blocks))], ids[: rng.choice((0, 32))]
                blocks.append(b"") if not blocks else None

        for _ in range(a_few(rng)):
            change()
        return _prefix(head, fields, ids, blocks)

    def use(self, data: bytes) -> None:
        """Check a prefix, restore it, and continue from it."""
        path = self.write_file(".prefix", data)
        with PrefixReader(path) as file:
            file.check()
        with LLM(self.folder / "model.gguf", threads=1, progress=False) as llm:
            llm.restore_prefix(path)
            use_any(lambda: llm.generate(TEXT, **RUN))


def _prefix(head: PrefixHeader, fields: Any, ids: list[int], blocks: list[bytes]) -> bytes:
    """Return the bytes of a file with this JSON and these ids, and with valid hashes."""
    sizes = tuple(len(block) for block in blocks)
    digests = tuple(sha256(block).digest() for block in blocks)
    header, ids = json.dumps(fields).encode(), ids[: len(blocks) * head.block_tokens]
    fixed = struct.pack(
        "<8sIIQQQ", MAGIC, VERSION, head.block_tokens, len(blocks), sum(sizes), len(header)
    )
    numbers = np.array(ids, "<i4").tobytes() + np.array(sizes, "<u8").tobytes()
    rest = header + numbers + b"".join(digests)
    return fixed + sha256(fixed + rest).digest() + rest + b"".join(blocks)


class Indexes(OfAModel):
    """Files of ``cutaway embed --out``."""

    name, inputs = "index", 120

    def make(self) -> None:
        """Write an index of four passages by an embedding model."""
        super().make()
        about = {
            "model": "model", "weights": self.llm.model.identity.weights, "arithmetic": "1",
            "dimensions": None, "query_prompt": None, "document_prompt": None,
        }  # fmt: skip
        vectors = np.random.default_rng(2).normal(size=(4, 32)).astype(np.float32)
        passages = tuple(
            Passage(text, "a.md", n) for n, text in enumerate(("a", "é b", "", "ab" * 50))
        )
        Index(passages, vectors, about).save(self.folder / "seeds" / "four.npz")

    def draw(self, rng: Random) -> bytes:
        """Change an array, its header, or bytes."""
        with np.load(rng.choice(self.seeds)) as seed:
            arrays = dict(seed)
        documents = {name: json.loads(arrays[name].tobytes()) for name in ("about", "files")}

        def change() -> None:
            name = rng.choice((*arrays,))
            array = arrays[name]
            change = rng.randrange(7)
            if change == 0:
                del arrays[name]
                arrays["more"] = array
            elif change == 1:
                arrays[name] = np.zeros(
                    array.shape, rng.choice(("f4", "f8", "i4", "u1", "U3", "c8", "?", "M8[s]"))
                )
            elif change == 2:
                arrays[name] = rng.choice(_other_shapes(array))
            elif change < 5 and name in documents:
                document = documents[name] = mutate_json(rng, documents[name])
                arrays[name] = np.frombuffer(json.dumps(document).encode(), np.uint8)
            elif array.size:
                array = array.copy()
                number = rng.choice(NUMBERS)
                with np.errstate(all="ignore"):
                    array.flat[rng.randrange(array.size)] = np.float64(number).astype(array.dtype)
                arrays[name] = array

        if rng.random() < 0.8:
            for _ in range(a_few(rng)):
                change()
        out = BytesIO()
        np.savez(out, **arrays)
        raw = out.getvalue()
        if rng.random() < 0.3:
            raw = _lying(rng, raw)
        return mutate_bytes(rng, raw) if rng.random() < 0.15 else raw

    def use(self, data: bytes) -> None:
        """Open an index and search it, as ``cutaway search`` does."""
        index = Index.open(self.write_file(".npz", data))
        index.check(self.llm)
        for top in (1, 50):
            json.dumps([hit.to_dict() for hit in index.search(self.llm, "ab", top)])


def _other_shapes(array: Any) -> list[Any]:
    flat = array.reshape(-1)
    return [
        flat[:-1],
        flat[:0],
        flat,
        flat[::-1],
        array[None],
        np.array(3),
        np.stack([array, array]),
    ]


def _lying(rng: Random, raw: bytes) -> bytes:
    """Change the shape, dtype or order in an array's header, whose length stays."""
    words = [
        (b"(4, ", b"(9, "),
        (b"'<f4'", b"'|O' "),
        (b"(4,)", b"(-4)"),
        (b"False", b"True "),
        (b"<i8", b">i8"),
    ]
    words += [
        (b"(4, 32), }       ", b"(10**12, 8), }   "),
        (b"(4, 32), }      ", b"(9999999999, 9)}"),
    ]
    old, new = rng.choice(words)
    return raw.replace(old, new)
