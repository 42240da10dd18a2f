"""A text whose keys and values are saved, and models that continue from the file."""

from dataclasses import replace
from hashlib import sha256

import numpy as np

from cutaway import LLM
from cutaway.files.prefix import PrefixReader

TEXT = "a bé ab été, " * 12
MORE = "and then"
RUN = {"max_tokens": 8, "seed": 3, "temperature": 1.0, "ignore_eos": True}


def load(path, **setup):
    if setup.get("backend") != "reference":
        setup.setdefault("threads", 1)
    return LLM(path, progress=False, **setup)


def taken_back(path, place, **setup):
    llm = load(path, **setup)
    return llm, llm.restore_prefix(place)


def forge(place, change):
    """Rewrite a file's blocks, with valid hashes. change: (index, bytes) -> bytes"""
    with PrefixReader(place) as file:
        head, blocks = file.head, []
        for i, nbytes in enumerate(head.block_bytes):
            memory = np.empty(nbytes, np.uint8)
            file.read(i, [memory])
            blocks.append(change(i, memory.tobytes()))
    digests = tuple(sha256(block).digest() for block in blocks)
    place.write_bytes(replace(head, digests=digests).to_bytes() + b"".join(blocks))
    return len(blocks)


def flip_last_bit(data):
    return data[:-1] + bytes([data[-1] ^ 1])
