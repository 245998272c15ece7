"""A small cache for many threads: what one of them is making, the others wait for instead of making it too."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class OnceCache(Generic[Key, Value]):
    """The last `size` values made, by key. A failure reaches whoever waited for it and is not kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Future[Value]] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of `key`, from `make` when it is not there. Raises what `make` raises."""
        with self._lock:
            known = self._values.get(key)
            value = known or self._values.setdefault(key, Future())
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        if known is None:
            self._fill(key, value, make)
        return value.result()

    def clear(self) -> None:
        """Forget every value."""
        with self._lock:
            self._values.clear()

    def _fill(self, key: Key, value: Future[Value], make: Callable[[], Value]) -> None:
        try:
            value.set_result(make())
        except BaseException as error:
            with self._lock:
                if self._values.get(key) is value:
                    del self._values[key]
            value.set_exception(error)
