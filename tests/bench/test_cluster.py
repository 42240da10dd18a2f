"""The benchmark of replicas: which threads count, and what its table says."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import cluster
import kills
import router_cost
import routing
from routing_replicas import Machine, Replica, Text
from routing_traces import Shape, conversations


def test_processes_and_what_they_started_are_a_tree():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while len(found := cluster.tree(os.getpid())) < 3:
            pass
        assert found[0] == os.getpid()
        assert child.pid in found
        assert child.stdin
        child.stdin.close()


def test_the_threads_that_compute_do_not_count():
    before = {Path("a"): 1.0, Path("b"): 5.0}
    after = {Path("a"): 4.0, Path("b"): 5.5, Path("new"): 0.25}
    assert cluster.beside(before, after, computing=1) == 0.75
    assert cluster.beside(before, after, computing=0) == 3.75


def test_the_table_says_what_was_measured():
    one = {"first_ms": 5.0, "token_ms": 4.0, "cpu_ms": 0.3}
    found = {
        "cores": 2, "streams_asked": 16,
        "one": {"alone": one, "cluster": {"first_ms": 9.5, "token_ms": 4.1, "cpu_ms": 0.35}},
        "idle": {"alone": 0.0, "cluster": 0.117},
        "prefix": {"routed": 0.9, "random": 0.7},
        "memory": [("small", 10.0), ("ray::Engine", 244.4)],
        "streams": {
            "alone": 700.0, "one replica": 690.0, "one on each core": 900.0, "split_ratio": 1.3,
        },
    }  # fmt: skip
    text = cluster.table(found)
    assert "| first token, ms | 5.00 | 9.50 | +4.50 |" in text
    assert "| 2 replicas of one core | 900, 1.30 times `cutaway serve` |" in text
    assert "| 2 replicas behind the router | 90% |" in text
    assert text.index("ray::Engine") < text.index("small")
    assert "11.7% of a processor" in text


def test_requests_that_are_killed_are_drawn_and_every_kind_comes():
    random = kills.Random(0)
    each = [kills.drawn(random) for _ in range(300)]
    assert each == [kills.drawn(again) for again in [kills.Random(0)] for _ in range(300)]
    for kind in kills.KINDS:
        assert any(kind.items() <= options.items() for _, options, _ in each)
    assert all(0 <= after <= options["max_tokens"] for _, options, after in each)


# -- routing ---------------------------------------------------------------------------------------

# bench/routing.py: one seed has one result, nothing is lost, and prefixes are found.


SMALL = ["--replicas", "4", "--seconds", "200", "--load", "0.4", "--json"]


def run(capsys, *argv):
    assert routing.main([*SMALL, *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_seed_has_one_result_and_another_another(capsys):
    found = run(capsys)
    assert run(capsys) == found
    assert run(capsys, "--seed", "1")["ways"] != found["ways"]


def test_whoever_knows_prefixes_finds_more_than_chance(capsys):
    found = {way["way"]: way for way in run(capsys)["ways"]}
    for chance in ("random", "round robin", "the shorter queue of two"):
        assert found["cutaway"]["hits"] > found[chance]["hits"]
        assert found["cutaway"]["rows"] / found["cutaway"]["texts"] < (
            found[chance]["rows"] / found[chance]["texts"]
        )
    for way in found.values():
        assert 0 <= way["queue_p50_s"] <= way["queue_p99_s"] <= way["first_p99_s"]
        assert way["imbalance"] >= 1


def test_the_table_goes_where_it_is_asked_for(capsys, tmp_path):
    page = tmp_path / "scale.md"
    page.write_text("a\n<!-- routing-4-0.4:begin -->\n<!-- routing-4-0.4:end -->\nb\n")
    found = run(capsys, "--way", "random", "--write", str(page))
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("a", "b", 4 + 3)
    assert f"| random | {found['ways'][0]['hits']:.0%} |" in page.read_text()


def test_keys_are_shared_as_far_as_texts_are():
    asked = conversations(Shape(burst=1, burst_s=20), 2.0, 60, 4, seed=3)
    kinds = Counter(len(one.parts) for one in asked)
    assert kinds[1] > 50 and kinds[2] == 3 * 4
    for one in asked[:20]:
        for other in asked[:20]:
            shared = [a == b for a, b in zip(one.keys(3000), other.keys(3000), strict=True)]
            same = 0
            for part, theirs in zip(one.parts, other.parts, strict=False):
                if part != theirs:
                    break
                same += part[1]
            expected = 3000 // 32 if one is other else same // 32
            assert shared == [True] * expected + [False] * (len(shared) - expected)
        tokens, answer = one.prompts[0]
        assert one.keys(tokens + answer)[: tokens // 32] == one.keys(tokens)


def test_a_replica_takes_the_time_that_its_rows_take():
    machine, ended = Machine(row_s=0.01, step_s=0.1, blocks=100), []
    due = []
    replica = Replica(machine, lambda time, one: due.append(time))
    keys = tuple(range(20))

    def text():
        return Text(0.0, keys[:18], keys, 600, 40, ended.append)

    def steps_until(time):
        while replica.next_due >= 0 and replica.next_due <= time:
            replica.due(replica.next_due)

    first, second = text(), text()
    replica.add(first, 0.0)
    assert (replica.rows_waiting, replica.texts, replica.next_due) == (600, 1, 0.1 + 512 * 0.01)
    replica.add(second, 1.0)  # while the first is read
    steps_until(100)
    assert first.first_token == pytest.approx(
        0.2 + 0.01 * (600 + 88)
    )  # in its second step the other one reads, too
    assert (first.matched, second.matched) == (0, 512)  # found when its turn came
    assert (replica.rows_waiting, replica.texts, replica.held) == (0, 0, 0)
    assert len(ended) == 2 and replica.rows_done == 600 + 88 + 2 * 39
    third = text()
    replica.add(third, 200.0)
    assert replica.rows_waiting == 600 - 18 * 32 and third.matched == 576


@pytest.mark.parametrize("wrong", [["--replicas", "0"], ["--load", "0"], ["--stats-s", "-1"]])
def test_numbers_that_cannot_be(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        routing.parse(wrong)
    assert ended.value.code == 2
    assert "must be above 0" in capsys.readouterr().err


def test_what_the_router_costs(capsys, tmp_path):
    page = tmp_path / "scale.md"
    page.write_text("<!-- router-cost:begin -->\n<!-- router-cost:end -->\n")
    small = ["--replicas", "2", "40", "--choices", "20", "--json", "--write", str(page)]
    assert router_cost.main(small) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["replicas"] for row in rows] == [2, 40]
    assert all(min(row.values()) > 0 for row in rows)
    assert all(row["removal_keys"] == 15 + 20 * 16 for row in rows)  # the system prompt, texts
    assert rows[1]["bytes_by_all"] > rows[0]["bytes_by_all"]
    assert len(page.read_text().splitlines()) == 2 + 2 + 2
    with pytest.raises(SystemExit):
        router_cost.parse(["--replicas", "1"])
    assert "above 1" in capsys.readouterr().err
