"""Driving curation: the edits of a step in, one consistent set out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import dspy

from tgrpo_dspy.library.edits import Edit, Operation
from tgrpo_dspy.library.experience import join_evidence
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.reflection.asking import Asker
from tgrpo_dspy.reflection.curation import Cluster, clusters, parts, render_proposals
from tgrpo_dspy.reflection.parsing import to_edits
from tgrpo_dspy.reflection.trajectory import render_library
from tgrpo_dspy.sampling.executor import gather
from tgrpo_dspy.settings import Reflection
from tgrpo_dspy.text import shorten


class Curator:
    """Reconciles edits that overlap or contradict each other.

    Args:
        module: called with ``lessons`` and ``proposals``; returns ``edits``.
        asker: calls it.
        settings: what counts as overlapping, and the bound of a prompt.
    """

    def __init__(self, module: dspy.Module, asker: Asker, settings: Reflection) -> None:
        self._module, self._asker, self._settings = module, asker, settings

    async def curate(self, edits: Sequence[Edit], library: ExperienceLibrary) -> list[Edit]:
        """One consistent set of edits; a cluster whose answer cannot be read keeps its own."""
        found = clusters(edits, library, similarity=self._settings.similarity, embed=self._settings.embed)
        settled = await gather([partial(self._settle, cluster, library) for cluster in found])
        return [edit for cluster in settled for edit in cluster]

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
        answer = await self._asker.ask(
            self._module,
            lessons=shorten(render_library(about), half),
            proposals=shorten(render_proposals(part.edits), half),
        )
        evidence = join_evidence(*(edit.evidence for edit in part.edits))
        answered = to_edits(answer.edits, evidence) if answer is not None else ()
        return [edit for edit in (_on_known(edit, part) for edit in answered) if edit is not None] or part.edits


def _on_known(edit: Edit, part: Cluster) -> Edit | None:
    """The edit on the experiences that were shown. Small models make up ids for the proposals, and a lesson that all of
    them came to would be refused for that; one without a lesson is none.
    """
    known = tuple(identifier for identifier in edit.ids if identifier in part.about)
    if len(known) == len(edit.ids):
        return edit
    if not edit.text:
        return None
    operation: Operation = "MERGE" if len(known) > 1 else "UPDATE" if known else "ADD"
    return replace(edit, operation=operation, ids=known)
