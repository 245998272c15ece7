"""Places: never more than allowed, none idle while a run waits, and lanes worked through one after another."""

from __future__ import annotations

import anyio

from tgrpo_dspy.sampling.executor import Slots


async def _schedule(size: int, lanes: list[int], *, priority_of: dict[int, int] | None = None) -> tuple[list[int], int]:
    slots, started, running, most = Slots(size), [], 0, 0

    async def run(lane: int) -> None:
        nonlocal running, most
        async with slots.place(priority=(priority_of or {}).get(lane, 1), lane=lane):
            started.append(lane)
            running += 1
            most = max(most, running)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            running -= 1

    async with anyio.create_task_group() as tasks:
        for lane in lanes:
            tasks.start_soon(run, lane)
    return started, most


def test_at_most_so_many_run_at_once_and_all_run() -> None:
    started, most = anyio.run(_schedule, 3, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert most == 3
    assert sorted(started) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_each_place_works_through_one_lane_after_another() -> None:
    started, _ = anyio.run(_schedule, 2, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    assert set(started[:6]) == {0, 1}
    assert set(started[6:]) == {2, 3}


def test_no_place_stays_free_while_a_lane_waits() -> None:
    _, most = anyio.run(_schedule, 4, [0] * 8)
    assert most == 4


def test_what_is_more_urgent_goes_first() -> None:
    async def urgent() -> list[int]:
        return (await _schedule(1, [5, 5, 7], priority_of={7: 0}))[0]

    assert anyio.run(urgent) == [7, 5, 5]


def test_a_run_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    async def scenario() -> list[str]:
        slots, log = Slots(1), []

        async def waiting() -> None:
            async with slots.place(priority=1, lane=1):
                log.append("never")

        async with slots.place(priority=1, lane=0):
            with anyio.move_on_after(0.01):
                await waiting()
        async with slots.place(priority=1, lane=2):
            log.append("free again")
        return log

    assert anyio.run(scenario) == ["free again"]
