"""The policy: a program with a library in its instructions, drawn from by sampling its LMs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import dspy
from dspy import LM
from dspy.utils.exceptions import LMConfigurationError

from tgrpo_dspy.cloning import clone, shared_parts
from tgrpo_dspy.library.instructions import inject
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.runs.hashing import fingerprint
from tgrpo_dspy.runs.identity import describe_adapter, describe_lm, describe_program


@dataclass(frozen=True, slots=True)
class Policy:
    """A program that carries a library. Never run itself: every run takes a fresh copy of it.

    Args:
        program: the program.
        identity: hash of what its runs depend on: the program, the LMs, the adapter.
        shared: what all copies share, see ``shared_parts``; found once, since every run makes a copy.
    """

    program: dspy.Module
    identity: str
    shared: Mapping[int, object]

    @classmethod
    def of(cls, student: dspy.Module, library: ExperienceLibrary | None = None) -> Policy:
        """The student with the library injected, or as it is; the student is not changed."""
        program = student if library is None else inject(student, library)
        lm, adapter = dspy.settings.lm, dspy.settings.adapter
        identity = fingerprint([describe_program(program), describe_lm(lm), describe_adapter(adapter)])
        return cls(program, identity, shared_parts(program))

    def as_is(self, rollout_id: int | None = None) -> tuple[dspy.Module, dspy.BaseLM | None]:
        """A copy to run with the user's own settings, and the LM of the context; a run of its own with an id."""
        if rollout_id is None:
            return clone(self.program, self.shared), dspy.settings.lm
        # At temperature 0 a run of its own would be the same run, and DSPy warns of it.
        return self._copy(
            lambda lm: lm if lm.kwargs.get("temperature") == 0 else lm.copy(rollout_id=rollout_id),
            without=("rollout_id",),
        )

    def sampled(self, rollout_id: int, temperature: float) -> tuple[dspy.Module, dspy.BaseLM | None]:
        """A copy whose LMs sample under ``rollout_id``, and the sampling copy of the context's LM."""
        return self._copy(lambda lm: sample_lm(lm, rollout_id, temperature), without=("temperature", "rollout_id"))

    def _copy(
        self, copy_lm: Callable[[dspy.BaseLM], dspy.BaseLM], *, without: Collection[str]
    ) -> tuple[dspy.Module, dspy.BaseLM | None]:
        """A copy with copies of its LMs: one per original, so that modules which ask for "the" LM still find one.

        What is pinned on a predictor would beat the LM's settings; what is ``without`` is dropped from the copy.
        """
        context_lm = dspy.settings.lm
        lms = [lm for lm in (*self.shared.values(), context_lm) if isinstance(lm, dspy.BaseLM)]
        copies = {id(lm): copy_lm(lm) for lm in lms}
        program = clone(self.program, {**self.shared, **copies})
        for _, predictor in program.named_sub_modules(dspy.Predict):  # those of frozen parts sample too
            predictor.config = {k: v for k, v in predictor.config.items() if k not in without}
        return program, copies.get(id(context_lm))


def sample_lm(lm: dspy.BaseLM, rollout_id: int, temperature: float) -> dspy.BaseLM:
    """A copy of an LM that samples, cached apart from every other rollout id.

    A reasoning model that allows no temperature but its own keeps it: none, or 1.0.
    """
    if not (isinstance(lm, LM) and _refused(lm.model, temperature)):
        return lm.copy(rollout_id=rollout_id, temperature=temperature)
    own = {} if lm.kwargs.get("temperature") is None else {"temperature": 1.0}
    return lm.copy(rollout_id=rollout_id, **own)


@cache
def _refused(model: str, temperature: float) -> bool:
    """Whether DSPy makes no LM for this model at this temperature. ``LM.copy`` would not tell: it checks nothing."""
    try:
        LM(model, temperature=temperature)
    except LMConfigurationError:
        return True
    return False


def rollout_id(*parts: object) -> int:
    """A 48-bit integer from any parts: far apart, since modules such as BestOfN count upwards from it.

    Example:
        >>> rollout_id(0, 1, "key", 2) == rollout_id(0, 1, "key", 2) != rollout_id(0, 1, "key", 3)
        True
    """
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:6], "big")
