"""Turning the edits of a whole step into one consistent set. An LM is asked only where edits overlap or contradict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import dspy
from rapidfuzz import fuzz, process

from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.reflection import demonstrations
from tgrpo_dspy.reflection.signatures import ReconcileEdits


class Curation(dspy.Module):
    """Asks a model to replace overlapping edits by the fewest that say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.reconcile = dspy.Predict(ReconcileEdits)
        self.reconcile.demos = demonstrations.for_reconciliation()

    def forward(self, lessons: str, proposals: str) -> dspy.Prediction:
        """Reconcile one cluster.

        Args:
            lessons: the experiences the cluster is about, with ids.
            proposals: the edits, one a line, with their support.

        Returns:
            A prediction with ``edits`` (list of ``ProposedEdit``).
        """
        return self.reconcile(lessons=lessons, proposals=proposals)


def clusters(edits: Sequence[Edit], library: ExperienceLibrary, *, similarity: int) -> list[list[Edit]]:
    """Group edits that touch the same experience or whose lessons are nearly the same.

    Edits that say exactly the same stay in one cluster but are no reason to ask a model (see ``needs_model``). The
    clusters and the edits in them are in an order that does not depend on the order of arrival.
    """
    ordered = sorted(edits, key=lambda edit: edit.content)
    parent = list(range(len(ordered)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(a: int, b: int) -> None:
        parent[max(root(a), root(b))] = min(root(a), root(b))

    first_with_id: dict[str, int] = {}
    for index, edit in enumerate(ordered):
        for identifier in _touched(edit, library, similarity):
            join(index, first_with_id.setdefault(identifier, index))
    for a, b in _similar_pairs([edit.text for edit in ordered], similarity):
        join(a, b)
    grouped: dict[int, list[Edit]] = {}
    for index, edit in enumerate(ordered):
        grouped.setdefault(root(index), []).append(edit)
    return list(grouped.values())


def needs_model(cluster: Sequence[Edit]) -> bool:
    """Whether a cluster holds two different proposals, KEEP aside."""
    return len({edit.content for edit in cluster if edit.operation != "KEEP"}) > 1


def render_proposals(cluster: Sequence[Edit]) -> str:
    """The different edits of a cluster, one a line, most often proposed first."""
    counts = Counter((edit.operation, edit.ids, edit.text) for edit in cluster)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join(
        f"{' '.join((operation, *ids))} ({count} time{'s' if count > 1 else ''}){': ' + text if text else ''}"
        for (operation, ids, text), count in ordered
    )


def _touched(edit: Edit, library: ExperienceLibrary, similarity: int) -> list[str]:
    """Ids an edit is about: those it names and those whose lesson it nearly repeats."""
    near = [e.id for e in library if edit.text and fuzz.token_sort_ratio(edit.text, e.text) >= similarity]
    return [*edit.ids, *near]


def _similar_pairs(texts: Sequence[str], similarity: int) -> list[tuple[int, int]]:
    """Pairs of positions whose texts are at least that alike; empty texts are like nothing."""
    written = {index: text for index, text in enumerate(texts) if text}
    pairs = []
    for index, text in list(written.items()):
        del written[index]
        matches = process.extract_iter(text, written, scorer=fuzz.token_sort_ratio, score_cutoff=similarity)
        pairs += [(index, other) for _, _, other in matches]
    return pairs
