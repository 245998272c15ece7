"""Driving the reflection modules: groups in, edits out, nothing that stops the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import LMAuthError, LMBillingError

from tgrpo_dspy.errors import LMUnavailableError
from tgrpo_dspy.library.edits import Edit, Refusal
from tgrpo_dspy.library.experience import Evidence
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Advantage, Group
from tgrpo_dspy.reflection.curation import Cluster, clusters, parts, render_proposals
from tgrpo_dspy.reflection.parsing import to_edits
from tgrpo_dspy.reflection.trajectory import render_groups, render_library
from tgrpo_dspy.runs.events import Announcer, ReflectionFinished
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.executor import Slots, gather, is_async_only
from tgrpo_dspy.sampling.traces import shorten
from tgrpo_dspy.settings import Reflection

logger = logging.getLogger(__name__)

# Reflection goes before rollouts: what follows waits for it.
_PRIORITY = 0


class Reflector:
    """Runs the reflection modules on the reflection LM.

    Args:
        advantage: called with ``task``, ``attempts`` and ``lessons``; returns ``advantage`` and ``edits``.
        curation: called with ``lessons`` and ``proposals``; returns ``edits``.
        lm: the LM that reflects.
        task: what the student does, as text.
        predictors: names of the student's predictors.
        settings: bounds of the prompts.
        with_labels: whether the right answers are shown.
    """

    def __init__(
        self,
        *,
        advantage: dspy.Module,
        curation: dspy.Module,
        lm: dspy.BaseLM,
        task: str,
        predictors: Sequence[str],
        settings: Reflection,
        with_labels: bool,
        slots: Slots,
        ledger: UsageLedger,
        announce: Announcer,
    ) -> None:
        self._advantage, self._curation, self._lm = advantage, curation, lm
        self._task, self._predictors = task, list(predictors)
        self._settings, self._with_labels = settings, with_labels
        self._slots, self._ledger, self._announce = slots, ledger, announce

    async def advantage(self, groups: Sequence[Group], library: ExperienceLibrary) -> Advantage:
        """The semantic advantage of a few groups, and the edits that follow from it."""
        attempts = render_groups(groups, max_tokens=self._settings.max_prompt_tokens, with_labels=self._with_labels)
        answer = await self._ask(self._advantage, task=self._task, attempts=attempts, lessons=render_library(library))
        edits = None if answer is None else to_edits(answer.edits, [_evidence(group) for group in groups])
        self._announce(ReflectionFinished(edits=len(edits or ()), lost=edits is None))
        return Advantage(text=str(getattr(answer, "advantage", "")), edits=edits, groups=len(groups))

    async def curate(self, edits: Sequence[Edit], library: ExperienceLibrary) -> tuple[list[Edit], tuple[Refusal, ...]]:
        """One consistent set of edits for the step, and the edits for predictors that do not exist.

        A cluster whose answer cannot be read keeps its own edits.
        """
        edits, refused = self._aimed(edits)
        groups = clusters(edits, library, similarity=self._settings.similarity, embed=self._settings.embed)
        settled = await gather([partial(self._settle, cluster, library) for cluster in groups])
        edits, refused_late = self._aimed([edit for cluster in settled for edit in cluster])
        return edits, (*refused, *refused_late)

    def _aimed(self, edits: Sequence[Edit]) -> tuple[list[Edit], tuple[Refusal, ...]]:
        """Edits whose target exists; in a program of one predictor every lesson is for the whole program."""
        if len(self._predictors) == 1:
            return [replace(edit, target=None) for edit in edits], ()
        known = [edit for edit in edits if edit.target in (None, *self._predictors)]
        reason = f"the program has no such predictor, only {', '.join(self._predictors)}"
        return known, tuple(Refusal(edit=edit, reason=reason) for edit in edits if edit not in known)

    async def _settle(self, cluster: Cluster, library: ExperienceLibrary) -> Sequence[Edit]:
        """Reconcile a cluster: in parts that fit the prompt, then what came out of them, until one part is left."""
        while cluster.needs_model:
            split = parts(cluster, self._settings.max_prompt_tokens // 2)
            settled = await gather([partial(self._reconcile, part, library) for part in split])
            merged = replace(cluster, edits=tuple(edit for part in settled for edit in part))
            if len(split) == 1 or merged.different >= cluster.different:
                return merged.edits
            cluster = merged
        return cluster.edits

    async def _reconcile(self, part: Cluster, library: ExperienceLibrary) -> Sequence[Edit]:
        """The edits to make instead of a part's; the part's own where the answer cannot be read."""
        if not part.needs_model:
            return part.edits
        about = ExperienceLibrary(tuple(e for e in library if e.id in part.about))
        half = 2 * self._settings.max_prompt_tokens  # characters: four to a token, half of the prompt for each
        answer = await self._ask(
            self._curation,
            lessons=shorten(render_library(about), half),
            proposals=shorten(render_proposals(part.edits), half),
        )
        evidence = sorted({e for edit in part.edits for e in edit.evidence}, key=lambda e: (e.example, e.rewards))
        settled = to_edits(answer.edits, evidence) if answer is not None else ()
        return settled or part.edits

    async def _ask(self, module: dspy.Module, **inputs: str) -> Any:
        """The module's answer, or None when it gave none that can be read."""
        is_async = is_async_only(module)

        def settings() -> Any:
            # A program's adapter may be anything; the demonstrations and the retries here are made for this one.
            return dspy.context(lm=self._lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False), trace=[])

        async def awaited() -> Any:
            with settings(), self._ledger.count("reflection"):
                return await module.acall(**inputs)

        def threaded() -> Any:
            with settings(), self._ledger.count("reflection"):
                return module(**inputs)

        async with self._slots.place(priority=_PRIORITY, lane=-1):
            try:
                return await self._slots.call(awaited if is_async else threaded, is_async=is_async)
            except (LMAuthError, LMBillingError) as error:
                raise LMUnavailableError(f"the reflection LM refuses to answer: {error}") from error
            except Exception as error:  # whatever a model or a user's module does, the step goes on without it
                logger.warning("a reflection was lost: %s: %s", type(error).__name__, error)
                return None


def _evidence(group: Group) -> Evidence:
    return Evidence(example=group.key, rewards=group.rewards)
