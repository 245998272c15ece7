"""Driving the semantic advantage: groups in, edits out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import dspy

from tgrpo_dspy.library.edits import Edit, Refusal
from tgrpo_dspy.library.experience import Evidence
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.outside import Outside
from tgrpo_dspy.records import Advantage, Group
from tgrpo_dspy.reflection.asking import Asker
from tgrpo_dspy.reflection.curator import Curator
from tgrpo_dspy.reflection.parsing import to_edits
from tgrpo_dspy.reflection.summary import Summarizer
from tgrpo_dspy.reflection.trajectory import render_groups, render_library
from tgrpo_dspy.runs.events import Announcer, ReflectionFinished
from tgrpo_dspy.sampling.curriculum import example_of
from tgrpo_dspy.settings import Reflection


class Reflector:
    """Turns the groups of a step into edits.

    Args:
        advantage: called with ``task``, ``lessons`` and ``attempts``; returns ``advantage`` and ``edits``.
        curator: makes the edits of the step consistent.
        asker: calls the modules.
        task: what the student does, as text.
        predictors: names of the student's predictors.
        settings: bounds of the prompts.
        with_labels: whether the right answers are shown.
        announce: told of every finished reflection.
    """

    def __init__(
        self,
        *,
        advantage: dspy.Module,
        curator: Curator,
        asker: Asker,
        task: str,
        predictors: Sequence[str],
        settings: Reflection,
        with_labels: bool,
        announce: Announcer,
    ) -> None:
        self._advantage, self._curator, self._asker = advantage, curator, asker
        self._task, self._predictors = task, list(predictors)
        self._settings, self._with_labels, self._announce = settings, with_labels, announce
        self._summarizer = Summarizer(
            asker=asker, task=task, max_tokens=settings.max_prompt_tokens, with_labels=with_labels
        )

    async def advantage(self, groups: Sequence[Group], library: ExperienceLibrary) -> Advantage:
        """The semantic advantage of a few groups, and the edits that follow from it."""
        attempts = render_groups(
            groups,
            max_tokens=self._settings.max_prompt_tokens,
            with_labels=self._with_labels,
            summaries=await self._summarizer.summaries(groups),
        )
        answer = await self._asker.ask(
            self._advantage,
            task=self._task,
            lessons=render_library(library),
            attempts=attempts,
        )
        evidence = [_evidence(group) for group in groups]
        proposed = None if answer is None else tuple(map(self._addressed, to_edits(answer.edits, evidence)))
        refused = self._from_outside(groups, proposed or ())
        foreign = {refusal.edit for refusal in refused}
        own = proposed and tuple(edit for edit in proposed if edit not in foreign)
        edits = own and own[: self._most_edits(groups)]
        self._announce(ReflectionFinished(edits=len(edits or ()), lost=edits is None))
        return Advantage(
            text=str(getattr(answer, "advantage", "")),
            edits=edits,
            groups=len(groups),
            surplus=len(own or ()) - len(edits or ()),
            refused=refused,
        )

    def _from_outside(self, groups: Sequence[Group], proposed: Sequence[Edit]) -> tuple[Refusal, ...]:
        """The edits whose lesson came in from outside, and did not grow out of the attempts."""
        outside = Outside.of((text for group in groups for text in group.from_outside), known=self._task)
        reasons = {edit: outside.refuse(edit.text) for edit in proposed if edit.text}
        return tuple(Refusal(edit=edit, reason=reason) for edit, reason in reasons.items() if reason is not None)

    def _addressed(self, edit: Edit) -> Edit:
        """A rule that begins with the name of one of several predictors is for that predictor."""
        name, _, rest = edit.text.partition(":")
        if len(self._predictors) == 1 or edit.target is not None or name.strip() not in self._predictors:
            return edit
        return replace(edit, target=name.strip(), text=rest.strip())

    def _most_edits(self, groups: Sequence[Group]) -> int | None:
        per_group = self._settings.experiences_per_group
        return None if per_group is None else per_group * len(groups)

    async def curate(
        self, edits: Sequence[Edit], library: ExperienceLibrary, ran: Collection[str] = ()
    ) -> tuple[list[Edit], tuple[Refusal, ...]]:
        """One consistent set of edits for the step, and the edits for predictors that do not exist or never ran.

        ``ran`` names the predictors that ran in the step; empty: it is not known.
        """
        aimed, refused = self._aimed(edits, ran)
        settled, refused_late = self._aimed(await self._curator.curate(aimed, library), ran)
        return settled, (*refused, *refused_late)

    def _aimed(self, edits: Sequence[Edit], ran: Collection[str]) -> tuple[list[Edit], tuple[Refusal, ...]]:
        """Edits whose target ran; in a program of one predictor every lesson is for the whole program."""
        if len(self._predictors) == 1:
            return [replace(edit, target=None) for edit in edits], ()
        reasons = {edit: self._why_not(edit.target, ran) for edit in edits}
        refused = tuple(Refusal(edit=edit, reason=why) for edit in edits if (why := reasons[edit]) is not None)
        return [edit for edit in edits if reasons[edit] is None], refused

    def _why_not(self, target: str | None, ran: Collection[str]) -> str | None:
        if target is None:
            return None
        if target not in self._predictors:
            return f"the program has no such predictor, only {', '.join(self._predictors)}"
        if target not in ran and not set(self._predictors).isdisjoint(ran):
            return f"predictor {target} did not run in these attempts"
        return None


def _evidence(group: Group) -> Evidence:
    return Evidence(example=example_of(group.key), rewards=group.rewards)
