"""Places to run in: a bounded number of program runs and LM calls at once, in threads or on the event loop."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

import dspy

# First of all anyio itself: DSPy 3.4.0 loads it lazily, and its parts cannot be loaded before it.
from anyio import CapacityLimiter, Event, create_task_group, move_on_after, run, to_thread
from anyio.abc import TaskGroup
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import checkpoint

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

T = TypeVar("T")


class DeadlinePassed(Exception):
    """A call took longer than it may."""


class Slots:
    """``size`` places to run in, shared by lanes; a lane is the runs that belong together, such as one group.

    A free place goes to the waiting run with the smallest ``priority``, then to the lane that holds the fewest places,
    then to the first lane. So no place stays free while a run waits, and with more lanes than places each place works
    through one lane after another: equal prompts follow each other on one server slot, which reuses them.
    """

    def __init__(self, size: int) -> None:
        self._free = size
        self._held: Counter[int] = Counter()
        self._waiting: dict[int, dict[int, deque[Event]]] = {}  # by priority and lane
        self._order: list[tuple[int, int, int]] = []
        self._threads = CapacityLimiter(size)

    @asynccontextmanager
    async def place(self, *, priority: int, lane: int) -> AsyncIterator[None]:
        """Hold one place for the length of the block."""
        turn = Event()
        self._waiting.setdefault(priority, {}).setdefault(lane, deque()).append(turn)
        heappush(self._order, (priority, self._held[lane], lane))
        try:
            # Let every run that starts now join the queue, so that the choice is made among all of them.
            await checkpoint()
            self._hand_out()
            await turn.wait()
        except BaseException:
            if not turn.is_set():
                self._leave(priority, lane, turn)
            raise
        yield
        # Not after an error: one that leaves a place ends the run, so nothing new may start.
        self._release(lane)

    async def call(
        self,
        function: Callable[[], Any],
        *,
        is_async: bool,
        within: Callable[[], AbstractContextManager[Any]],
        timeout: float | None = None,
    ) -> Any:
        """Run a function on a place that is already held: in a worker thread, or awaited when it is async.

        ``within`` makes the context it runs in; it is entered where the function runs.

        Raises:
            DeadlinePassed: when it takes longer than ``timeout`` seconds. A thread goes on, but nobody waits for it.
        """

        def threaded() -> Any:
            with within():
                return function()

        with move_on_after(timeout) as deadline:
            if not is_async:
                return await to_thread.run_sync(threaded, limiter=self._threads, abandon_on_cancel=timeout is not None)
            with within():
                return await function()
        assert deadline.cancelled_caught
        raise DeadlinePassed(f"took longer than {timeout:g} s")

    def _hand_out(self) -> None:
        while self._free and self._order:
            priority, held, lane = heappop(self._order)
            if held != self._held[lane] or lane not in self._waiting[priority]:
                continue  # not up to date: what is true now is further down
            turn = self._waiting[priority][lane][0]
            self._leave(priority, lane, turn)
            self._free -= 1
            self._hold(lane, 1)
            turn.set()

    def _leave(self, priority: int, lane: int, turn: Event) -> None:
        queue = self._waiting[priority][lane]
        queue.remove(turn)
        if not queue:
            del self._waiting[priority][lane]

    def _hold(self, lane: int, more: int) -> None:
        self._held[lane] += more
        for priority, lanes in self._waiting.items():
            if lane in lanes:
                heappush(self._order, (priority, self._held[lane], lane))

    def _release(self, lane: int) -> None:
        self._free += 1
        self._hold(lane, -1)
        self._hand_out()


def is_async_only(module: dspy.Module) -> bool:
    """Whether a module can only be awaited: it defines ``aforward`` and no ``forward``."""
    # Looked up on the class: DSPy warns when ``forward`` is read from an instance.
    return hasattr(type(module), "aforward") and not hasattr(type(module), "forward") and "forward" not in vars(module)


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group that raises the first error itself, not a group that wraps it."""
    try:
        async with create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


async def gather(calls: list[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all calls at once; their results in the order of the calls."""
    results: dict[int, T] = {}

    async def keep(index: int, call: Callable[[], Awaitable[T]]) -> None:
        results[index] = await call()

    async with task_group() as tasks:
        for index, call in enumerate(calls):
            tasks.start_soon(keep, index, call)
    return [results[index] for index in range(len(calls))]


class Later(Generic[T]):
    """A result that is worked out beside other work, in a task group.

    Args:
        tasks: the group.
        make: works it out.
    """

    def __init__(self, tasks: TaskGroup, make: Callable[[], Awaitable[T]]) -> None:
        self._made = Event()
        tasks.start_soon(self._make, make)

    async def _make(self, make: Callable[[], Awaitable[T]]) -> None:
        self._result = await make()
        self._made.set()

    async def get(self) -> T:
        """The result, as soon as it is there."""
        await self._made.wait()
        return self._result


def run_anywhere(call: Callable[[], Awaitable[T]]) -> T:
    """Run async code to its end, in a thread of its own when this one already runs an event loop.

    Ctrl-C ends it in order: what is in flight is finished, nothing new is started, then ``KeyboardInterrupt`` is
    raised.
    """
    if not _in_event_loop():
        try:
            return run(call)
        except asyncio.CancelledError as error:
            if sys.version_info >= (3, 11):
                raise
            raise KeyboardInterrupt from error  # all that is left of Ctrl-C before Python 3.11
    with start_blocking_portal() as portal:
        running = portal.start_task_soon(call)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
