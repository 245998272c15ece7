"""What the benchmarks of speed say of a run: its lower bound holds, and follows from what its calls need."""

from __future__ import annotations

from collections.abc import Iterator

import dspy
import pytest

from benchmarks import prefixes
from benchmarks.barriers import chain_with_barriers
from benchmarks.latency import Timing, bound, latencies
from benchmarks.overhead import MODES, chain_of_step, in_turn, measure


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    yield
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)


def rollout(item: str, latency: float) -> Timing:
    return Timing(item=item, text="", temperature=0.7, told=False, start=0.0, latency=latency)


def scored(item: str, latency: float, *, told: bool = False) -> Timing:
    return Timing(item=item, text="", temperature=0.0, told=told, start=0.0, latency=latency)


def asked(text: str, latency: float) -> Timing:
    return Timing(item="", text=text, temperature=0.0, told=False, start=0.0, latency=latency)


def test_the_longest_chain_of_a_step() -> None:
    step = [
        rollout("a", 1.0),
        rollout("b", 5.0),
        scored("v", 9.0),  # the student, beside the rollouts: nothing waits for its score
        asked("[[ ## attempts ## ]] a", 3.0),  # 1 + 3
        asked("[[ ## proposals ## ]]", 2.0),
        scored("v", 7.0, told=True),  # the library
    ]
    assert chain_of_step(step) == 5.0 + 2.0 + 7.0
    assert chain_of_step([*step, asked("[[ ## attempts ## ]] b", 0.5)]) == 5.0 + 0.5 + 2.0 + 7.0
    assert chain_of_step([*step, scored("w", 20.0)]) == 20.0
    assert bound(step, 2, 14.0) == 14.0 and bound(step, 1, 14.0) == 27.0


def test_the_longest_chain_with_barriers() -> None:
    timings = [
        scored("v", 1.0),
        *(rollout(item, latency) for item, latency in (("a", 1.0), ("b", 2.0))),
        *(asked(f"[[ ## {kind} ## ]] b", 0.5) for kind in ("summary", "advantage", "update")),
        asked("[[ ## batch_update ## ]]", 0.25),
        scored("v", 3.0),
    ]
    assert chain_with_barriers(timings) == 2.0 + 3 * 0.5 + 0.25 + 3.0


def test_latencies() -> None:
    heavy = latencies("heavy", 1.0, 0)
    drawn = sorted(next(heavy) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(1.0, rel=0.1) and drawn[19_800] == pytest.approx(20.0, rel=0.25)
    assert drawn[-1] <= 60.0 and next(latencies("constant", 0.5, 3)) == 0.5
    assert in_turn([3.0, 1.0, 1.0, 1.0], 2) == 3.0


@pytest.mark.parametrize("mode", MODES)
def test_no_run_is_faster_than_its_bound_and_all_do_the_same_work(mode: str) -> None:
    found = measure(mode, "constant", median=0.002, slots=4, examples=8, seed=0)
    assert found["ratio"] >= 1.0
    runs = 8 * 5 + 2 * 16
    if mode in ("tgrpo", "barriers"):
        assert found["runs"] == runs
        assert found["other_calls"] >= (1 if mode == "tgrpo" else 5 + 2 + 1)
    else:
        assert found["runs"] > runs / 2


def test_rollouts_of_a_step_share_their_system_message() -> None:
    for step in prefixes.shared_in_steps(examples=16, threads=2):
        rollouts = next(shared for shared in step if shared.kind == "rollouts")
        assert rollouts.prompts == 8 * 5 and rollouts.system == 1.0 and rollouts.whole > 0.9
