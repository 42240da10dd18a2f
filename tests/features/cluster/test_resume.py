"""Replicas are killed, silent or full, and no bit of any text is another."""

import asyncio
import json
import threading
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import AsyncLLM
from cutaway.engine import Ended
from cutaway.errors import CutawayError, QueueFullError, ReplicaLostError
from cutaway.requests.prepared import prepare
from support.paced import Paced
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_qwen35 import write_tiny_qwen35
from support.replicas import Killable, Models, cluster
from support.resumed import LONG, PROMPT, strip_times, write
from support.waiting import poll_until

WORDS = {"regex": "[a-z ]{5,60}"}

samplers = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**31), "temperature": st.sampled_from([0, 0.5, 1.0, 2.0])},
    optional={
        "top_k": st.integers(1, 40),
        "top_p": st.floats(0.1, 1.0),
        "min_p": st.floats(0.0, 0.2),
        "repetition_penalty": st.sampled_from([1.1, 1.5]),
        "presence_penalty": st.sampled_from([0.5, 1.0]),
        "dry_multiplier": st.just(0.8),
        "stop": st.lists(st.text("ab e", min_size=1, max_size=2), max_size=2),
        "min_tokens": st.integers(1, 20),
        "bad_words": st.just(["a"]),
        "logit_bias": st.just({5: 3.0}),
        "forced": st.lists(st.integers(0, 200), min_size=1, max_size=4),
    },
)
more = st.sampled_from(
    [
        {},
        {"speculate": "ngram"},
        {"speculate": "jacobi"},
        {"logprobs": 3},
        {"candidates": 4, "ledger": True},
        {"prompt_logprobs": 2},
        WORDS,
        {"json_schema": {"type": "array", "items": {"type": "integer"}}},
    ]
)
runs = st.builds(
    lambda a, b, n, length: {"max_tokens": length, **a, **b, "n": n},
    samplers, more, st.sampled_from([1, 1, 1, 2, 3]), st.integers(5, 60),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(runs, st.lists(st.integers(0, 90), max_size=3), st.booleans(), st.integers(0, 3))
def test_a_killed_replica_changes_nothing(models, options, kills, tells, before):
    async def main():
        async with AsyncLLM(models.take(1)[0]) as alone:
            expected = await write(alone, options)
        async with cluster(models, 1, kills=kills, tells_deaths=tells) as (front, _):
            beside = (front.generate("x", max_tokens=9) for _ in range(before))
            texts, *_ = await asyncio.gather(write(front, options), *beside)
            assert texts == expected

    asyncio.run(main())


@pytest.mark.parametrize("kills", [[0], [1], [7], [39], [3, 3], [0, 0, 0], [2, 9, 30]])
async def test_kills_do_happen_and_are_counted(models, expected, kills):
    async with cluster(models, 1, kills=kills) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        await texts.finish()
        assert [strip_times(text) for text in texts.generations] == expected
        why, resumed, replayed = texts.route
        assert resumed == len(kills)
        assert [*why] == [f"{job.replica} is the first" for job in replicas.jobs]
        assert len({*why}) == len(kills) + 1
        assert replayed == sum(max(kills[: i + 1]) for i in range(len(kills)))


@pytest.mark.parametrize(
    "write_model", [write_tiny_lfm2, write_tiny_qwen35, write_tiny_granite_hybrid]
)
async def test_a_text_with_a_recurrent_state_goes_on_elsewhere(write_model, tmp_path):
    models = Models(write_model(tmp_path / "tiny.gguf"))
    async with AsyncLLM(models.take(1)[0]) as alone:
        expected = await write(alone, LONG)
    async with cluster(models, 1, kills=[7, 3]) as (front, replicas):
        assert await write(front, LONG) == expected
        assert len(replicas.jobs) == 3


async def test_texts_that_have_ended_are_not_written_again(models):
    """Of several texts of one job, those that are left go on."""
    async with cluster(models, 1, kills=[10]) as (front, replicas):
        lengths = (1, 30)
        asked = [
            prepare(front, PROMPT, front.parse({**LONG, "max_tokens": n})).request for n in lengths
        ]
        reader = await front.queue([(request, 1) for request in asked])
        ended = []
        while news := await reader.read():
            ended += [one.sequence_index for one in news if isinstance(one.event, Ended)]
        assert ended == [0, 1]
        assert [len(job.requests) for job in replicas.jobs] == [2, 1]


async def test_other_bits_end_the_text_and_say_where(models):
    """A replica that says that it computes the same, and does not."""

    def edit(step):
        return step._replace(fingerprint=step.fingerprint ^ (step.index == 3))

    async with cluster(models, 1, kills=[5]) as (front, replicas):
        replicas.members[1].replica.edit = edit
        with pytest.raises(CutawayError, match=r"resume: step 4 is token .* where it was"):
            await front.generate(PROMPT, **LONG)


async def test_another_model_is_refused(models, tiny_diffusion_path, expected):
    async with cluster(models, 1, kills=[5]) as (front, replicas):
        other = Killable(AsyncLLM(Models(tiny_diffusion_path).take(1)[0]))
        replicas.members.insert(1, other)
        texts = await front.submit([PROMPT], front.parse(LONG))
        await texts.finish()
        assert [strip_times(text) for text in texts.generations] == expected
        assert [job.replica for job in replicas.jobs][1] == other.name
        await replicas.members[2].kill()
        with pytest.raises(CutawayError, match="computes other bits: its weights is"):
            await front.generate(PROMPT, **LONG)


@settings(max_examples=25, deadline=None)
@given(
    rule=st.fixed_dictionaries(
        {"order": st.sampled_from(["confidence", "entropy", "random", "left"])},
        optional={"steps": st.integers(2, 12), "block_length": st.sampled_from([4, 8, 16])},
    ),
    kills=st.lists(st.integers(0, 30), max_size=2),
    seed=st.integers(0, 99),
)
def test_canvases_go_on_pass_for_pass(canvases, rule, kills, seed):
    options = {"denoise": rule, "max_tokens": 16, "seed": seed, "n": 1 + seed % 2}

    async def main():
        async with AsyncLLM(canvases.take(1)[0]) as alone:
            expected = await write(alone, options)
        async with cluster(canvases, 1, kills=kills) as (front, _):
            assert await write(front, options) == expected

    asyncio.run(main())


@pytest.fixture(scope="module")
def canvases(tiny_diffusion_path):
    return Models(tiny_diffusion_path)


@pytest.mark.parametrize("kills", [[], [0], [9], [5, 20]])
async def test_the_trace_is_that_of_an_undisturbed_run(models, tmp_path, kills):
    async def record(llm, path):
        texts = await llm.submit([PROMPT], llm.parse({**LONG, "trace": str(path)}, traced=True))
        await texts.finish()

    async with AsyncLLM(models.take(1)[0]) as alone:
        await record(alone, tmp_path / "alone.jsonl")
    async with cluster(models, 1, kills=kills) as (front, _):
        await record(front, tmp_path / "cluster.jsonl")
    one, other = (steps_of(tmp_path / f"{name}.jsonl") for name in ("alone", "cluster"))
    assert len(one) == LONG["max_tokens"]
    assert one == other


def steps_of(path):
    records = map(json.loads, path.read_text().splitlines())
    return [record | {"ms": None} for record in records if record["kind"] == "step"]


async def test_vectors_come_from_afar(models):
    texts = ["a text", "another", "a third one that is longer"] * 9
    async with AsyncLLM(models.take(1)[0]) as alone:
        expected = await alone.embed(texts)
    async with cluster(models, 2) as (front, _):
        assert (await front.embed(texts)).vectors.tobytes() == expected.vectors.tobytes()


answers = st.lists(st.lists(st.integers(3, 200), min_size=1, max_size=150), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(answers, st.lists(st.integers(0, 12), max_size=3))
def test_answers_are_scored_once_whoever_scores_them(models, answers, kills):
    """Long ones are told in parts, of which a replica may have told some."""

    async def main():
        async with AsyncLLM(models.take(1)[0]) as alone:
            expected = await alone.score("ab", answers)
        async with cluster(models, 1, kills=kills) as (front, _):
            assert await front.score("ab", answers) == expected

    asyncio.run(main())


# -- a replica that shuts down, is silent, hangs or is full; and readers that leave ----------------


async def test_a_text_that_has_begun_waits_for_replicas_that_are_starting(models, expected):
    """All have died at once, and the next one takes seconds to start."""
    async with cluster(models, 1, kills=[5]) as (front, replicas):
        last = replicas.members.pop()
        texts = await front.submit([PROMPT], front.parse(LONG))
        await replicas.members[0].dead.wait()
        asyncio.get_running_loop().call_later(0.6, replicas.members.append, last)
        await texts.finish()
        assert [strip_times(text) for text in texts.generations] == expected
        assert texts.route.resumed == 1


async def test_a_text_fails_where_no_replica_is_left(models, monkeypatch):
    monkeypatch.setattr("cutaway.features.cluster.resume._PATIENCE_S", 0.2)
    async with cluster(models, 0, kills=[5]) as (front, _):
        with pytest.raises(CutawayError, match="no replica is left; 3 others were lost"):
            await front.generate(PROMPT, **LONG)


async def test_a_replica_that_shuts_down_hands_its_texts_over(models, expected):
    async with cluster(models, 1, kills=[5], ends="stalls") as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        leaving = replicas.members[0].replica
        await leaving.ended.wait()
        await leaving.leave(within=10)
        assert leaving.jobs == 0
        with pytest.raises(ReplicaLostError, match="is leaving"):
            await leaving.write(replicas.jobs[0])
        await texts.finish()
        assert [strip_times(text) for text in texts.generations] == expected
        assert len(replicas.jobs) == 2


async def test_a_silent_replica_is_lost(models, expected):
    """One that is stopped, or behind a network that was cut: its connection stays open."""
    how = {"kills": [5], "ends": "is silent", "silent_s": 0.5}
    async with cluster(models, 1, tells_deaths=False, **how) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        await texts.finish()
        assert [strip_times(text) for text in texts.generations] == expected
        assert len(replicas.jobs) == 2


async def test_a_full_queue_is_an_error_at_first_and_waited_for_later(
    models, expected, monkeypatch
):
    async with cluster(models, 1, kills=[5]) as (front, replicas):
        second, full = replicas.members[1], [0]

        async def queue(asked):
            if full[0]:
                full[0] -= 1
                raise QueueFullError("the queue is full")
            return await AsyncLLM.queue(second.replica.llm, asked)

        monkeypatch.setattr(second.replica.llm, "queue", queue)
        texts, full[0] = await front.submit([PROMPT], front.parse(LONG)), 3
        await texts.finish()
        assert full == [0]
        assert texts.route[1:] == (1, 5)  # what was only tried was not written
        assert [strip_times(text) for text in texts.generations] == expected
        full[0] = 1
        with pytest.raises(QueueFullError):
            await front.generate(PROMPT, **LONG)
        await front.generate(PROMPT, **LONG)


@pytest.mark.parametrize("forgets", [False, True])
async def test_whoever_leaves_or_forgets_ends_what_runs(models, forgets, monkeypatch):
    async with cluster(models, 1) as (front, replicas):
        replica = replicas.members[0].replica
        paced = Paced(replica.llm.engine.engine, 6, monkeypatch)
        texts = await front.submit([PROMPT], front.parse({**LONG, "n": 3}))
        await texts.read()
        assert replica.jobs == 1
        if not forgets:
            texts.close()
        del texts
        await poll_until(lambda: not (replica.jobs or front.exchange.owners))
        paced.allowed.release(1000)
        await poll_until(lambda: paced.engine.is_idle)
        assert paced.steps < LONG["max_tokens"]


async def test_what_a_front_asked_for_ends_with_it(models):
    async with cluster(models, 0, kills=[5], ends="is silent") as (front, replicas):
        [replica] = replicas.members
        texts = await front.submit([PROMPT], front.parse(LONG))
        await texts.read()
        front.close()
        with pytest.raises(CutawayError, match="closed before this text"):
            while await texts.read():
                pass
        with pytest.raises(CutawayError, match="takes no more requests"):
            await front.generate(PROMPT)
        await poll_until(lambda: not replica.replica.jobs)


async def test_an_engine_that_does_not_answer_is_lost(models, expected, monkeypatch):
    monkeypatch.setattr("cutaway.features.cluster.replica.PULSE_S", 0.05)
    async with cluster(models, 1, kills=[5], ends="stalls", hung_s=0.3) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        hung, go_on = replicas.members[0].replica.llm.engine, threading.Event()
        hung.ask(go_on.wait)
        finishing = asyncio.create_task(texts.finish())
        await poll_until(lambda: len(replicas.jobs) == 2)
        front.exchange._hung_s = inf  # the other may be slow
        await finishing
        go_on.set()
        assert [strip_times(text) for text in texts.generations] == expected
        assert len(replicas.jobs) == 2


async def test_a_function_is_called_where_the_weights_are(models):
    async with cluster(models, 1) as (front, _):
        assert await front.run_blocking(tokens_of, "abc") == front.tokenize("abc")
        with pytest.raises(TypeError):
            await front.run_blocking(tokens_of)


def tokens_of(llm, text):
    return llm.tokenize(text)
