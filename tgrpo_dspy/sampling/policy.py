"""The policy: a program with a library in its instructions, drawn from by sampling its LMs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import dspy

from tgrpo_dspy.cloning import clone, held_lms
from tgrpo_dspy.library.instructions import inject
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.runs.identity import describe_adapter, describe_lm, describe_program, fingerprint

# DSPy keeps this key only for models that refuse any temperature but their own.
_FIXED_TEMPERATURE_MARK = "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class Policy:
    """A program that carries a library. Never run itself: every run takes a fresh copy of it.

    Args:
        program: the program.
        identity: hash of what its runs depend on: the program, the LMs, the adapter.
    """

    program: dspy.Module
    identity: str

    @classmethod
    def of(cls, student: dspy.Module, library: ExperienceLibrary) -> Policy:
        """The student with the library injected; the student is not changed."""
        program = inject(student, library)
        lm, adapter = dspy.settings.lm, dspy.settings.adapter
        return cls(program, fingerprint([describe_program(program), describe_lm(lm), describe_adapter(adapter)]))

    def as_is(self) -> tuple[dspy.Module, dspy.BaseLM | None]:
        """A copy to run with the user's own settings, and the LM of the context."""
        return clone(self.program), dspy.settings.lm

    def sampled(self, rollout_id: int, temperature: float) -> tuple[dspy.Module, dspy.BaseLM | None]:
        """A copy whose LMs sample under ``rollout_id``, and the sampling copy of the context's LM.

        One copy is made per original LM, so that modules which ask for "the" LM of a program still find one. A
        temperature or rollout id pinned on a predictor would beat the LM's; it is dropped from the copy.
        """
        context_lm = dspy.settings.lm
        originals = held_lms(self.program) + ([context_lm] if context_lm is not None else [])
        copies = {id(lm): sample_lm(lm, rollout_id, temperature) for lm in originals}
        program = clone(self.program, copies)
        for _, predictor in program.named_predictors():
            predictor.config = {k: v for k, v in predictor.config.items() if k not in ("temperature", "rollout_id")}
        return program, copies.get(id(context_lm))


def sample_lm(lm: dspy.BaseLM, rollout_id: int, temperature: float) -> dspy.BaseLM:
    """A copy of an LM that samples, cached apart from every other rollout id."""
    if _FIXED_TEMPERATURE_MARK in lm.kwargs:
        return lm.copy(rollout_id=rollout_id)
    return lm.copy(rollout_id=rollout_id, temperature=temperature)


def rollout_id(*parts: object) -> int:
    """A 48-bit integer from any parts: far apart, since modules such as BestOfN count upwards from it.

    Example:
        >>> rollout_id(0, 1, "key", 2) == rollout_id(0, 1, "key", 2) != rollout_id(0, 1, "key", 3)
        True
    """
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:6], "big")
