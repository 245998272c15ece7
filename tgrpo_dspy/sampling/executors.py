"""The executors by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from tgrpo_dspy.sampling.jobs import Executor
from tgrpo_dspy.sampling.ray import RayExecutor
from tgrpo_dspy.sampling.threads import ThreadExecutor
from tgrpo_dspy.settings import require

_BY_NAME: dict[str, Callable[[], Executor]] = {"threads": ThreadExecutor, "ray": RayExecutor}


def executor_of(given: str | Executor) -> Executor:
    """The executor that a setting means: a name, or an object with ``open``.

    Raises:
        ConfigurationError: when it is neither.
    """
    known = given in _BY_NAME if isinstance(given, str) else callable(getattr(given, "open", None))
    rule = "use 'threads', 'ray', RayExecutor(…), or an object with open(terms), see tgrpo_dspy.sampling.jobs.Executor"
    require(known and not inspect.isclass(given), "executor", given, rule)
    return _BY_NAME[given]() if isinstance(given, str) else given
