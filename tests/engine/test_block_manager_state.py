"""BlockManager in any order of starting, growing, cutting, forking and ending texts.

The model is naive: a memory that is really written, a list of (text, id) pairs, and a list
of unheld ids in the order of their last use. Of layers with a window there is a memory that is
really let go of.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.windows import Windows
from support.block_integrity import check_blocks
from support.engine_mock import forget_cached

TOKENS = st.lists(st.integers(0, 1), max_size=12)


@dataclass(eq=False)
class Text:
    """What a caller keeps: its tokens, its blocks, how many of these are published, and how many
    it needs no window of."""

    tokens: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    published: int = 0
    passed: int = 0


class ManagerMachine(RuleBasedStateMachine):
    """``texts`` hold blocks; ``pairs`` is what was published and not evicted since."""

    @initialize(
        count=st.integers(0, 10), block=st.integers(1, 3), window=st.integers(0, 7),
        most=st.integers(0, 8),
    )  # fmt: skip
    def make(self, count, block, window, most):
        self.windows = Windows(window, block, most) if window else None
        self.manager = BlockManager(count, block, self.windows)
        self.count, self.block, self.window = count, block, window
        self.seen = {}  # the memory of layers with a window, by id
        self.memory = {i: [None] * block for i in range(count)}
        self.texts, self.pairs, self.unheld = [], [], []
        self.evictions = 0

    # -- what callers do ---------------------------------------------------------------------

    @rule(tokens=TOKENS)
    def start(self, tokens):
        """Match what is known, compute the rest if there is room."""
        known = dict(self.pairs)
        expected = []
        for n in range(1, len(tokens) // self.block + 1):
            if (i := known.get(tuple(tokens[: n * self.block]))) is None:
                break
            expected.append(i)
        self.confirm()
        expected = expected[: self.usable(expected)]
        ids = self.manager.match(tokens)
        assert ids == expected
        self.unheld = [i for i in self.unheld if i not in ids]
        length = len(ids) * self.block
        text = Text(tokens[:length], ids, len(ids), self.passed(length))
        self.texts.append(text)
        self.write(text, tokens[len(text.tokens) :])

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), more=TOKENS)
    def grow(self, data, more):
        self.write(self.one_of(data), more)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def cut(self, data):
        """A draft was refused: the end of the text is taken back."""
        text = self.one_of(data)
        lengths = range(len(text.tokens) + 1)
        length = data.draw(st.sampled_from([n for n in lengths if self.passed(n) >= text.passed]))
        kept = -(-length // self.block)
        text.tokens, text.published = (
            text.tokens[:length],
            min(text.published, length // self.block),
        )
        self.give_back(text, kept)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def publish(self, data):
        self.publish_text(self.one_of(data))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        text = self.one_of(data)
        self.publish_text(text)
        ids = self.manager.retain(text.ids, text.passed)
        assert ids == text.ids
        self.texts.append(Text(list(text.tokens), ids, text.published, text.passed))

    @precondition(lambda self: self.window and self.texts)
    @rule(data=st.data(), worth=st.sets(st.integers(0, 9)))
    def move_on(self, data, worth):
        """What no row to come sees is not read any more."""
        text = self.one_of(data)
        self.publish_text(text)
        passed = self.passed(len(text.tokens))
        self.manager.free_windows(text.ids[text.passed : passed], worth)
        text.passed = max(text.passed, passed)

    @precondition(lambda self: self.window)
    @rule()
    def trim(self):
        """Afterwards there is no more than is read, and kept while there is room."""
        read = {i for text in self.texts for i in text.ids[text.passed :]}
        before = self.windows.num_stored - self.windows.read
        self.windows.trim(len(read))
        self.confirm()
        kept = self.windows.num_stored - len(read)
        assert self.seen.keys() >= read
        assert len(self.seen) == self.windows.num_stored
        assert kept == min(before, max(0, self.windows.max_stored - len(read)))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def end(self, data):
        text = self.one_of(data)
        self.give_back(text, 0)
        self.texts.remove(text)

    @rule()
    def forget(self):
        forget_cached(self.manager)
        self.pairs = [(text, i) for text, i in self.pairs if i not in self.unheld]
        self.unheld = []

    @rule(more=st.integers(1, 3))
    def take_too_many(self, more):
        with pytest.raises(RuntimeError, match="KV blocks wanted"):
            self.manager.allocate(self.manager.free + more)

    @rule(data=st.data())
    def give_back_what_is_not_held(self, data):
        foreign = data.draw(st.sampled_from([*set(range(-1, self.count + 1)) - self.held()]))
        with pytest.raises(RuntimeError, match=rf"\[{foreign}\] are not held"):
            self.manager.release([*sorted(self.held()), foreign])

    # -- the parts ---------------------------------------------------------------------------

    def one_of(self, data):
        return data.draw(st.sampled_from(self.texts))

    def held(self):
        return {i for text in self.texts for i in text.ids}

    def others_may_read(self, block_id):
        holders = sum(text.ids.count(block_id) for text in self.texts)
        return holders > 1 or block_id in [i for _, i in self.pairs]

    def write(self, text, more):
        """Append tokens if there is room, into a copy where others can read."""
        start, end = len(text.tokens), len(text.tokens) + len(more)
        copied = bool(more) and start % self.block > 0 and self.others_may_read(text.ids[-1])
        wanted = max(0, -(-end // self.block) - len(text.ids))
        if wanted + copied > self.manager.free:
            return
        if copied:
            [copy] = self.take(1)
            self.confirm()
            self.memory[copy] = list(self.memory[text.ids[-1]])
            if self.window:
                self.seen[copy] = list(self.seen[text.ids[-1]])
            self.give_back(text, len(text.ids) - 1)
            text.ids.append(copy)
        text.ids += self.take(wanted)
        self.confirm()
        for place, token in enumerate(more, start):
            i = text.ids[place // self.block]
            self.memory[i][place % self.block] = token
            if self.window:
                self.seen.setdefault(i, [None] * self.block)[place % self.block] = token
        text.tokens = text.tokens + more

    def take(self, n):
        unused = set(range(self.count)) - self.held() - set(self.unheld)
        ids = self.manager.allocate(n)
        fresh, evicted = ids[: len(unused)], ids[len(unused) :]
        assert unused.issuperset(fresh)
        assert len(set(fresh)) == len(fresh) == min(n, len(unused))
        assert evicted == self.unheld[: len(evicted)]
        self.unheld = self.unheld[len(evicted) :]
        self.pairs = [(text, i) for text, i in self.pairs if i not in evicted]
        self.evictions += len(evicted)
        return ids

    def give_back(self, text, kept):
        gone, text.ids = text.ids[kept:], text.ids[:kept]
        self.manager.release(gone, max(text.passed - kept, 0))
        text.passed = min(text.passed, kept)
        published = [i for _, i in self.pairs]
        self.unheld += [i for i in reversed(gone) if i in published and i not in self.held()]

    def publish_text(self, text):
        before, whole = text.ids, len(text.tokens) // self.block
        text.ids = self.manager.publish(before, text.tokens, text.published)
        expected = list(before)
        for place in range(text.published, whole):
            key = tuple(text.tokens[: (place + 1) * self.block])
            known = [i for text, i in self.pairs if text == key]
            expected[place] = known[0] if known else before[place]
            self.pairs += [] if known else [(key, before[place])]
        assert text.ids == expected
        text.published = whole
        self.unheld = [i for i in self.unheld if i not in self.held()]

    # -- windows -----------------------------------------------------------------------------

    def passed(self, position):
        """How many blocks lie before all that a row at this position sees."""
        first = position - self.window + 1
        ends = range(self.block, position + 1, self.block)
        return sum(end <= first for end in ends) if self.window else 0

    def usable(self, ids):
        """How many of these blocks can be gone on from."""
        if not self.window:
            return len(ids)
        every = range(len(ids) + 1)
        return max(n for n in every if self.seen.keys() >= {*ids[self.passed(n * self.block) : n]})

    def confirm(self):
        """As a backend does before the next run."""
        if self.windows:
            self.windows.settle(self.copy)

    def copy(self, changes):
        for source, target in changes:
            if target == -1:
                self.seen.pop(source, None)
            elif source in self.seen:
                self.seen[target] = list(self.seen[source])

    # -- what always holds -------------------------------------------------------------------

    @invariant()
    def the_books_agree(self):
        check_blocks(
            self.manager, [text.ids for text in self.texts], [text.passed for text in self.texts]
        )
        assert self.manager.free == self.count - len(self.held())
        assert self.manager.evictions == self.evictions

    @invariant()
    def every_text_reads_its_own_tokens(self):
        for text in self.texts:
            assert [t for i in text.ids for t in self.memory[i]][: len(text.tokens)] == text.tokens

    @invariant()
    def every_text_sees_its_own_tokens_through_its_window(self):
        self.confirm()
        for text in self.texts if self.window else ():
            assert text.passed <= self.passed(len(text.tokens))
            first = text.passed * self.block
            read = [t for i in text.ids[text.passed :] for t in self.seen.get(i, [])]
            assert read[: len(text.tokens) - first] == text.tokens[first:]

    @invariant()
    def every_published_block_holds_its_text_and_its_parent_is_published(self):
        known = {text for text, _ in self.pairs} | {()}
        for text, i in self.pairs:
            assert self.memory[i] == list(text[-self.block :])
            assert text[: -self.block] in known

    def teardown(self):
        while self.texts:
            self.give_back(self.texts.pop(), 0)
        self.the_books_agree()
        self.forget()
        self.the_books_agree()
        assert sorted(self.manager.allocate(self.count)) == list(range(self.count))


ManagerMachine.TestCase.settings = settings(stateful_step_count=40)
TestManager = ManagerMachine.TestCase
