"""Asking a reflection module: on the reflection LM, counted, once for the same question, and never the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import LMError
from pydantic_core import to_jsonable_python

from tgrpo_dspy.runs.events import Announcer, Warned
from tgrpo_dspy.runs.hashing import fingerprint
from tgrpo_dspy.runs.identity import describe_lm, describe_program
from tgrpo_dspy.runs.retries import Retries
from tgrpo_dspy.runs.spending import Spending
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.runs.work import Work
from tgrpo_dspy.sampling.executor import Slots, is_async_only
from tgrpo_dspy.sampling.failures import is_permanent

# Reflection goes before rollouts: what follows waits for it.
_PRIORITY = 0
_Answer = dict[str, Any]
_UNREADABLE: _Answer = {}


class Asker:
    """Calls reflection modules on one LM.

    Args:
        lm: the LM that reflects.
        slots: places to run in, shared with the rollouts.
        work: keeps finished answers, and gives them back.
        spending: asked before a call starts.
        retries: for LM failures that may pass.
        announce: told of what is lost.
    """

    def __init__(
        self, lm: dspy.BaseLM, slots: Slots, work: Work, spending: Spending, retries: Retries, announce: Announcer
    ) -> None:
        self._lm, self._slots, self._work = lm, slots, work
        self._spending, self._retries, self._announce = spending, retries, announce
        self._identities: dict[int, str] = {}

    async def ask(self, module: dspy.Module, **inputs: str) -> Any:
        """The module's answer, its values as plain data; None when there is none that can be read."""

        async def make(ledger: UsageLedger) -> _Answer | None:
            async with self._slots.place(priority=_PRIORITY, lane=-1), self._spending.start("reflection") as may:
                if not may:
                    return None
                answer, error = await self._retries.run(partial(self._answer, module, inputs, ledger))
            if error is not None:
                self._give_up(error)
            return answer

        content = fingerprint([self._identity(module), inputs])
        answer = await self._work.once(
            f"work/reflection/{content}", _Answer | None, make, keep=lambda answer: answer is not None
        )
        return dspy.Prediction(**answer) if answer else None

    def _identity(self, module: dspy.Module) -> str:
        """Hash of the module and the LM; worked out once, since neither changes in a run."""
        if id(module) not in self._identities:
            self._identities[id(module)] = fingerprint([describe_program(module), describe_lm(self._lm)])
        return self._identities[id(module)]

    async def _answer(
        self, module: dspy.Module, inputs: dict[str, str], ledger: UsageLedger
    ) -> tuple[_Answer | None, Exception | None]:
        """An answer, or the error of an LM that gave none."""

        @contextmanager
        def within() -> Iterator[None]:
            # A program's adapter may be anything; the demonstrations and the retries here are made for this one.
            adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
            with dspy.context(lm=self._lm, adapter=adapter, trace=[]), ledger.count("reflection"):
                yield

        is_async = is_async_only(module)
        call = partial(module.acall if is_async else module, **inputs)
        try:
            prediction = await self._slots.call(call, is_async=is_async, within=within)
            return to_jsonable_python(dict(prediction)), None
        except LMError as error:
            return None, error
        except Exception as error:  # whatever a model or a user's module does, the step goes on without it
            self._lost(error)
            return _UNREADABLE, None

    def _give_up(self, error: Exception) -> None:
        if is_permanent(error):
            self._spending.lm_failed(error, "the reflection LM refuses to answer")
        else:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        text = self._work.secrets.mask(f"{type(error).__name__}: {error}")
        self._announce(Warned(message=f"a reflection was lost: {text}"))
