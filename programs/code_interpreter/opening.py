"""Which interpreter a machine has: the best isolation that works on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal

from programs.code_interpreter.bubblewrap import Bubblewrap
from programs.code_interpreter.host import Host
from programs.code_interpreter.interpreter import Interpreter, InterpreterUnavailableError
from programs.code_interpreter.limits import Limits
from programs.code_interpreter.monty import Monty

ISOLATING: Mapping[str, Callable[[Limits], Interpreter]] = {"bubblewrap": Bubblewrap, "monty": Monty}
"""The kinds that "auto" chooses from, the best first."""
KINDS = {**ISOLATING, "host": Host}

logger = logging.getLogger(__name__)


def open_interpreter(
    kind: Literal["auto", "bubblewrap", "monty", "host"] = "auto", *, limits: Limits | None = None
) -> Interpreter:
    """An interpreter for untrusted programs; "host" is for trusted ones only and is never chosen by "auto".

    "bubblewrap" runs CPython with its packages and needs Linux, "monty" runs a part of Python anywhere. `limits`
    defaults to `Limits()`. Raises `ValueError` for another kind, and `InterpreterUnavailableError`, which says what to
    install.
    """
    limits = limits or Limits()
    if kind != "auto":
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r} cannot work: use one of {', '.join(['auto', *KINDS])}")
        return KINDS[kind](limits)
    reasons = []
    for name, make in ISOLATING.items():
        try:
            interpreter = make(limits)
        except InterpreterUnavailableError as error:
            reasons.append(f"- {name}: {error}")
        else:
            if reasons:
                logger.warning("Programs run in %s, because of\n%s", name, "\n".join(reasons))
            return interpreter
    raise InterpreterUnavailableError(
        "No interpreter that isolates programs works here.\n" + "\n".join(reasons) + "\n"
        'If you trust the programs as you trust your own, ask for kind="host".'
    )
