"""Work that is paid for once: looked up first, then done, counted and kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter

from tgrpo_dspy.records import Role, Usage
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.runs.store import Store
from tgrpo_dspy.runs.usage import UsageLedger

T = TypeVar("T")
_RUNS = ("work/rollout/", "work/evaluation/")
_DONE: TypeAdapter[tuple[Any, dict[Role, Usage]]] = TypeAdapter(tuple[Any, dict[Role, Usage]])

_parts: ContextVar[tuple[UsageLedger, ...]] = ContextVar("_parts", default=())


class Work:
    """Does every piece of work at most once for a store.

    Args:
        store: where finished work is kept.
        ledger: counts the usage of all work, of this run and of those before it.
        secrets: what must not get into a record.
    """

    def __init__(self, store: Store, ledger: UsageLedger, secrets: Secrets) -> None:
        self._store, self.secrets = store, secrets
        self.ledger = ledger
        self.fresh = UsageLedger(ledger)

    @contextmanager
    def part(self) -> Iterator[UsageLedger]:
        """A ledger of what is done within the block, and in tasks that are started there, whenever those end."""
        ledger = UsageLedger()
        token = _parts.set((ledger,))
        try:
            yield ledger
        finally:
            _parts.reset(token)

    async def once(
        self, key: str, kind: Any, make: Callable[[UsageLedger], Awaitable[T]], *, keep: Callable[[T], bool]
    ) -> T:
        """The result kept under ``key``; else that of ``make``, which is kept when ``keep`` says so.

        Args:
            key: names the content the result depends on.
            kind: the result's type, any that pydantic can write as JSON and read back.
            make: does the work and counts its LM usage in the ledger it is given.
            keep: whether a result is final. One that failed for a passing reason is not.

        Raises:
            RunDirError: when the store cannot be read or written.
        """
        text = self._store.get(key)
        if text is not None:
            value, usage = _codec(kind).validate_json(text)
            for counting in (self.ledger, *_parts.get()):
                counting.add(usage)
            found: T = value
            return found
        ledger = UsageLedger(self.fresh, *_parts.get())
        made: T = self.secrets.mask_in(await make(ledger))
        if keep(made):
            self.keep(key, kind, made, ledger.total())
        return made

    def recall(self, key: str, kind: Any) -> Any:
        """The result kept under ``key`` with its usage counted, or None."""
        text = self._store.get(key)
        if text is None:
            return None
        value, usage = _codec(kind).validate_json(text)
        self.ledger.add(usage)
        return value

    def keep(self, key: str, kind: Any, value: Any, usage: Mapping[Role, Usage]) -> None:
        """Keep a result; ``usage`` is counted when it is recalled."""
        if self._store.keeps:
            self._store.put(key, _codec(kind).dump_json((value, usage)).decode())

    def spent_before(self) -> tuple[Usage, int]:
        """The usage of all the work that the store holds, and how many runs of the program are among it."""
        done = {key: _DONE.validate_json(text)[1] for key, text in self._store.items("work/")}
        usage = sum((part for used in done.values() for part in used.values()), start=Usage())
        return usage, sum(key.startswith(_RUNS) for key in done)


@cache
def _codec(kind: Any) -> TypeAdapter[Any]:
    # A standard error may be infinite, which JSON has no number for.
    return TypeAdapter(tuple[kind, dict[Role, Usage]], config=ConfigDict(ser_json_inf_nan="strings"))
