"""Many prefill-only texts: a result is not referenced once it was yielded."""

from weakref import ref

from cutaway import LLM
from cutaway.engine import Request, Score
from cutaway.requests.prefill import each_ended
from cutaway.requests.sync_llm import LogitsReader
from support.block_integrity import check_blocks


def test_a_yielded_result_is_not_referenced(tiny_path):
    llm = LLM(tiny_path, threads=1)
    readers = []

    def jobs():
        for token in range(40):
            reader = LogitsReader(1, llm.tokenizer.vocab_size, 1)
            readers.append(ref(reader))
            yield Request(prompt_token_ids=(token, 5), decoder=Score(logits_from=1)), reader

    done = []
    for index, reader in each_ended(llm.owner, jobs()):
        assert reader.logits().shape[0] == 1
        done.append(index)
        del reader
        held = sum(readers[i]() is not None for i in done[:-1])
        assert held == 0
    assert sorted(done) == list(range(40))


def test_stopping_early_leaves_nothing(tiny_path):
    llm = LLM(tiny_path, threads=1)
    texts = [((token, 5, 6), None) for token in range(40)]
    rows = llm.last_rows((1, 5), texts)
    next(rows)
    rows.close()
    llm.generate("ab", max_tokens=1)  # a step after it
    assert llm.engine.is_idle
    check_blocks(llm.engine.blocks, [])
