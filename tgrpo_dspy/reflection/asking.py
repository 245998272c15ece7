"""Asking a reflection module: on the reflection LM, counted, and never the end of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import LMAuthError, LMBillingError

from tgrpo_dspy.errors import LMUnavailableError
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.executor import Slots, is_async_only

logger = logging.getLogger(__name__)

# Reflection goes before rollouts: what follows waits for it.
_PRIORITY = 0


class Asker:
    """Calls reflection modules on one LM.

    Args:
        lm: the LM that reflects.
        slots: places to run in, shared with the rollouts.
        ledger: counts the LM usage as ``reflection``.
    """

    def __init__(self, lm: dspy.BaseLM, slots: Slots, ledger: UsageLedger) -> None:
        self._lm, self._slots, self._ledger = lm, slots, ledger

    async def ask(self, module: dspy.Module, **inputs: str) -> Any:
        """The module's answer, or None when it gave none that can be read.

        Raises:
            LMUnavailableError: when the LM refuses for good (no key, no credit).
        """
        is_async = is_async_only(module)
        call = partial(module.acall if is_async else module, **inputs)
        async with self._slots.place(priority=_PRIORITY, lane=-1):
            try:
                return await self._slots.call(call, is_async=is_async, within=self._context)
            except (LMAuthError, LMBillingError) as error:
                raise LMUnavailableError(f"the reflection LM refuses to answer: {error}") from error
            except Exception as error:  # whatever a model or a user's module does, the step goes on without it
                logger.warning("a reflection was lost: %s: %s", type(error).__name__, error)
                return None

    @contextmanager
    def _context(self) -> Iterator[None]:
        # A program's adapter may be anything; the demonstrations and the retries here are made for this one.
        adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
        with dspy.context(lm=self._lm, adapter=adapter, trace=[]), self._ledger.count("reflection"):
            yield
