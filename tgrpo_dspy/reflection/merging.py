"""Bringing libraries together by the curation of a step."""

from __future__ import annotations

from functools import partial

import dspy

from tgrpo_dspy.library.comparing import additions
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.reflection.asking import Asker
from tgrpo_dspy.reflection.curation import Curation
from tgrpo_dspy.reflection.curator import Curator
from tgrpo_dspy.runs.events import Announcer
from tgrpo_dspy.runs.retries import Retries
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.runs.spending import Spending
from tgrpo_dspy.runs.store import NoStore
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.runs.work import Work
from tgrpo_dspy.sampling.executor import Slots, run_anywhere
from tgrpo_dspy.settings import Budget, LibraryLimits, Reflection


def merge(
    base: ExperienceLibrary,
    *others: ExperienceLibrary,
    lm: dspy.BaseLM | None = None,
    limits: LibraryLimits | None = None,
    reflection: Reflection | None = None,
) -> Applied:
    """The experiences of ``others`` added to ``base``, which keeps its ids.

    Args:
        base: the library that grows.
        others: libraries learned elsewhere, each experience an ADD.
        lm: settles lessons that overlap or contradict each other; None: they all stay.
        limits: bounds of the result.
        reflection: what counts as overlapping, and the curation module.

    Returns:
        The library, and what became of every addition.

    Raises:
        LMUnavailableError: when the LM refuses to answer (no key, no credit).

    Example:
        >>> from tgrpo_dspy.library.experience import Experience
        >>> ours = ExperienceLibrary((Experience(id="e1", text="Be brief."),))
        >>> theirs = ExperienceLibrary((Experience(id="e1", text="Cite it."), Experience(id="e2", text="be brief.")))
        >>> [(e.id, e.text, e.proposed) for e in merge(ours, theirs).library]
        [('e1', 'Be brief.', 2), ('e2', 'Cite it.', 1)]
    """
    edits = list(additions(*others))
    if lm is not None:
        edits = run_anywhere(partial(_curated, edits, base, lm, reflection or Reflection()))
    return base.apply(edits, limits=limits)


async def _curated(edits: list[Edit], base: ExperienceLibrary, lm: dspy.BaseLM, settings: Reflection) -> list[Edit]:
    announce = Announcer()
    work = Work(NoStore(), UsageLedger(), Secrets.of([lm]))
    spending = Spending(Budget(), work.fresh.total, announce, work.secrets)
    asker = Asker(lm, Slots(dspy.settings.num_threads), work, spending, Retries(0, 0.0), announce)
    curated = await Curator(settings.curation or Curation(), asker, settings).curate(edits, base)
    if spending.lm_error is not None:
        raise spending.lm_error
    return curated
