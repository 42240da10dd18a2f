"""The router in any order of replicas, figures and jobs, against its definition.

The definition keeps lists and sets, asks every replica, and hashes with Python's own integers.
"""

from hashlib import blake2b

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cutaway.compute.backends import KV_BLOCK
from cutaway.features.cluster.prompt_blocks import Prompt, block_keys
from cutaway.features.cluster.routing import MOST_HASHED, MOST_HOLDERS, Load, ReplicaCost, Router

NAMES = [f"r{i}" for i in range(9)]
JOBS = [f"j{i}" for i in range(6)]


@st.composite
def prompts(draw):
    blocks = draw(st.lists(st.integers(0, 1), max_size=4))
    ids = [token for block in blocks for token in [block] * KV_BLOCK]
    keys = block_keys(ids)
    reusable = draw(st.integers(0, len(keys)))
    return Prompt(keys, reusable, len(ids) + draw(st.integers(0, 9)), draw(st.integers(1, 3)))


LISTS = st.lists(prompts(), min_size=1, max_size=3)


def score(name, key):
    """SplitMix64's finaliser, of the name's hash and the key."""
    x = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") ^ key
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


class RouterMachine(RuleBasedStateMachine):
    """``known`` is a list of (key, names), the least recently sent first."""

    @initialize(most=st.integers(1, 8), text_rows=st.integers(0, 40))
    def make(self, most, text_rows):
        self.router, self.most, self.text_rows = Router(most, text_rows), most, text_rows
        self.loads, self.sent, self.known, self.routed = {}, {}, [], 0

    # -- what is told ------------------------------------------------------------------------

    @rule(names=st.lists(st.sampled_from(NAMES)))
    def update(self, names):
        self.router.update(names)
        gone = self.loads.keys() - set(names)
        self.loads = {name: self.loads.get(name, Load()) for name in names}
        self.sent = {job: one for job, one in self.sent.items() if one[0] not in gone}
        left = [(key, names - gone) for key, names in self.known]
        self.known = [(key, names) for key, names in left if names]

    @rule(
        name=st.sampled_from(NAMES),
        load=st.builds(Load, *[st.integers(0, 99)] * 2, st.integers(0, 5)),
        came=st.lists(prompts(), max_size=2),
    )
    def told(self, name, load, came):
        load = load._replace(prompts=[prompt.keys for prompt in came])
        self.router.report(name, load)
        if name in self.loads:
            new = max(0, load.received - self.loads[name].received)
            for job in [job for job, one in self.sent.items() if one[0] == name][:new]:
                del self.sent[job]
            self.loads[name] = load
            self.learn(name, came)

    @rule(
        asked=LISTS,
        avoid=st.sets(st.sampled_from(NAMES)),
        job=st.sampled_from(JOBS),
        nth=st.integers(0, 2),
    )
    def route(self, asked, avoid, job, nth):
        ranks = self.router.rank(asked, avoid)
        assert self.router.choose(asked, avoid) == (ranks[0] if ranks else None)
        expected = self.definition(asked, avoid)
        assert [c.replica for c in ranks] == [c.replica for c in expected]
        for choice, candidate in zip(ranks, expected, strict=True):
            assert choice.candidates == tuple(expected)
            assert choice.tokens == sum(p.tokens for p in asked)
            shown = choice.replica, choice.cached_tokens, choice.rows, choice.texts
            assert shown == candidate[:4]
        if not ranks:
            assert set(self.loads) <= avoid
            return
        choice = ranks[min(nth, len(ranks) - 1)]
        self.router.note_sent(job, asked, choice)
        self.sent.pop(job, None)
        texts = sum(p.texts for p in asked)
        self.sent[job] = choice.replica, choice.tokens - choice.cached_tokens, texts
        self.routed += 1
        self.learn(choice.replica, asked)

    @rule(job=st.sampled_from(JOBS))
    def ended(self, job):
        self.router.note_ended(job)
        self.sent.pop(job, None)

    def learn(self, name, asked):
        for prompt in asked:
            for key in reversed(prompt.keys):
                known = [one for one in self.known if one[0] != key]
                self.known = [*known, (key, self.who(key) | {name})]
            self.known = self.known[-self.most :]

    # -- what must be ------------------------------------------------------------------------

    @invariant()
    def memory_is_bounded(self):
        assert self.router._blocks.by_key.keys() == {key for key, _ in self.known}
        assert len(self.known) <= self.most
        assert self.router._jobs.keys() == self.sent.keys()

    # -- the definition ----------------------------------------------------------------------

    def who(self, key):
        return dict(self.known).get(key, set())

    def definition(self, asked, avoid):
        free = self.loads.keys() - avoid
        unknown = [key for prompt in asked for key in prompt.keys if not self.who(key)]
        lucky = unknown[0] if unknown else self.routed

        def best(names, most):
            return sorted(names, key=lambda name: -score(name, lucky))[:most]

        taken = []
        for prompt in asked:
            for key in reversed(prompt.keys):
                taken += best((self.who(key) & free) - set(taken), MOST_HOLDERS - len(taken))
        taken = dict.fromkeys(taken + best(free, MOST_HASHED))
        costed = [self.candidate(name, asked) for name in taken]
        return sorted(costed, key=lambda c: (c.cost, c.texts, -score(c.replica, lucky)))

    def candidate(self, name, asked):
        here = [one for one in self.sent.values() if one[0] == name]
        rows = self.loads[name].rows + sum(one[1] for one in here)
        texts = self.loads[name].texts + sum(one[2] for one in here)
        matched = 0
        for prompt in asked:
            knows = [name in self.who(key) for key in prompt.keys]
            blocks = [*knows, False].index(False)
            matched += min(blocks, prompt.reusable) * KV_BLOCK
        read = sum(p.tokens for p in asked) - matched
        return ReplicaCost(name, matched, rows, texts, rows + 2 * read + texts * self.text_rows)


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(stateful_step_count=30)
