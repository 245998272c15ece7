"""Turning the edits of a whole step into one consistent set. An LM is asked only where edits overlap or contradict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import dspy
from rapidfuzz import fuzz, process

from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.reflection import demonstrations
from tgrpo_dspy.reflection.signatures import ReconcileEdits

Embed = Callable[[list[str]], Sequence[Sequence[float]]]


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


@dataclass(frozen=True, slots=True)
class Cluster:
    """Edits that belong together, and the ids of the experiences they name or nearly repeat."""

    edits: tuple[Edit, ...]
    about: frozenset[str]

    @property
    def different(self) -> int:
        """How many different edits it holds."""
        return len({edit.content for edit in self.edits})

    @property
    def needs_model(self) -> bool:
        """Whether it holds two different proposals, KEEP aside, or a new lesson that nearly repeats an old one."""
        proposals = {edit.content: edit for edit in self.edits if edit.operation != "KEEP"}
        repeats = any(edit.operation == "ADD" for edit in proposals.values()) and bool(self.about)
        return len(proposals) > 1 or repeats


def clusters(
    edits: Sequence[Edit], library: ExperienceLibrary, *, similarity: int, embed: Embed | None = None
) -> list[Cluster]:
    """Group edits that touch the same experience or whose lessons are nearly the same.

    Args:
        edits: the edits of a step.
        library: the experiences they are about.
        similarity: 1 to 100; texts at least this alike belong together.
        embed: turns texts into vectors; compares meanings by cosine beside the words.

    Returns:
        The clusters; they and the edits in them are in an order that does not depend on the order of arrival. A new
        lesson that repeats an old one to the letter is support for it, and no overlap.
    """
    ordered = sorted(edits, key=lambda edit: edit.content)
    union = _Union(len(ordered))
    first_with_id: dict[str, int] = {}
    for index, edit in enumerate(ordered):
        for identifier in edit.ids:
            union.join(index, first_with_id.setdefault(identifier, index))
    written = [(index, edit.text) for index, edit in enumerate(ordered) if edit.text]
    known = [(e.id, e.text) for e in library]
    texts = [text for _, text in written] + [text for _, text in known]
    for a, b in [*_alike_by_words(texts, similarity), *_alike_by_meaning(texts, similarity, embed)]:
        if a >= len(written):
            continue
        if b < len(written):
            union.join(written[a][0], written[b][0])
        elif texts[a].casefold() != texts[b].casefold():
            union.join(written[a][0], first_with_id.setdefault(known[b - len(written)][0], written[a][0]))
    members: dict[int, list[Edit]] = {}
    for index, edit in enumerate(ordered):
        members.setdefault(union.root(index), []).append(edit)
    about: dict[int, set[str]] = {}
    for identifier, index in first_with_id.items():
        about.setdefault(union.root(index), set()).add(identifier)
    return [Cluster(tuple(found), frozenset(about.get(root, ()))) for root, found in members.items()]


def parts(cluster: Cluster, max_tokens: int) -> list[Cluster]:
    """The cluster in parts whose proposals fit ``max_tokens`` (estimated): equal edits together, two different ones in
    every part but the last at least.
    """
    found: list[list[Edit]] = []
    tokens = different = 0
    for _, group in groupby(sorted(cluster.edits, key=lambda edit: edit.content), key=lambda edit: edit.content):
        equal = list(group)
        cost = estimate_tokens(render_proposals(equal))
        if not found or (different >= 2 and tokens + cost > max_tokens):
            found.append([])
            tokens = different = 0
        found[-1] += equal
        tokens, different = tokens + cost, different + 1
    return [Cluster(tuple(edits), cluster.about) for edits in found]


def render_proposals(cluster: Sequence[Edit]) -> str:
    """The different edits of a cluster, one a line, most often proposed first."""
    counts = Counter((edit.operation, edit.ids, edit.text) for edit in cluster)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join(
        f"{' '.join((operation, *ids))} ({count} time{'s' if count > 1 else ''}){': ' + text if text else ''}"
        for (operation, ids, text), count in ordered
    )


class _Union:
    """Disjoint sets of positions; the root of a set is its smallest member."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

    def join(self, a: int, b: int) -> None:
        first, second = sorted((self.root(a), self.root(b)))
        self._parent[second] = first


def _alike_by_words(texts: Sequence[str], similarity: int) -> list[tuple[int, int]]:
    """Pairs of positions, the smaller first, whose texts share their words."""
    # Sorting the words once makes the plain ratio below the token-sort ratio.
    prepared = dict(enumerate(" ".join(sorted(text.casefold().split())) for text in texts))
    pairs = []
    for index, text in list(prepared.items()):
        del prepared[index]
        matches = process.extract_iter(text, prepared, scorer=fuzz.ratio, processor=None, score_cutoff=similarity)
        pairs += [(index, other) for _, _, other in matches]
    return pairs


def _alike_by_meaning(texts: Sequence[str], similarity: int, embed: Embed | None) -> list[tuple[int, int]]:
    if embed is None or len(texts) < 2:
        return []
    import numpy as np

    vectors = np.asarray(embed(list(texts)), dtype=float)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    rows, columns = np.nonzero(np.triu(vectors @ vectors.T, k=1) >= similarity / 100)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
