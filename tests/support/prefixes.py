"""A text whose keys and values are saved, and what goes on from there."""

from cutaway import LLM

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
