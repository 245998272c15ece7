"""Experiences on trial: each is left out of half of every group, so the rollouts of learning measure it for free.

``masks`` plans who is left out, ``estimate_effects`` reads the experiment. What it measures is the change of the reward
by having an experience in, averaged over libraries that hold a random half of the others (its Banzhaf value).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import mul, sub
from random import Random
from statistics import fmean
from zlib import crc32

from tgrpo_dspy.records import Measured
from tgrpo_dspy.sampling.curriculum import example_of
from tgrpo_dspy.settings import require

Mask = frozenset[str]
"""The ids that one rollout goes without."""

_MAX_MASKS_IN_GROUP = 12
_CANDIDATES = 16
_PASSES = 2
_NEGLIGIBLE = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One scored rollout of the experiment.

    Args:
        group: key of its group; further groups of an example are groups of their own, of the same example.
        step: its step.
        left_out: ids of the experiences that were in the library but not in its prompt.
        reward: its reward.
    """

    group: str
    step: int
    left_out: Mask
    reward: float


def masks(
    ids: Sequence[str], *, group_size: int, step: int, seed: int, group: int = 0, count: int | None = None
) -> tuple[Mask, ...]:
    """What each rollout of a group goes without: one set of ids per rollout number.

    Every id is left out of half of the rollouts of every group. Half of an odd number is rounded down and up in turn
    over blocks of groups and over steps. A step has few different masks: groups take turns over as many blocks of
    ``group_size`` masks as are needed to tell the ids apart, one block when there are fewer ids than rollouts in a
    group. Within these bounds the ids' patterns are drawn at random and then made as uncorrelated as can be found.

    Args:
        ids: the experiences on trial, each once.
        group_size: rollouts per group, 2 or more.
        step, seed: the masks depend on these (and on the ids) alone.
        group: place of the group in its batch.
        count: most different masks in the step, 2 or more; None: as many as are needed to tell all ids apart. Fewer
            let more prompts share a prefix, but then it takes more steps until the effects can be told apart. One
            below ``group_size`` is rounded down to an even number, and rollouts of a group share masks.

    Raises:
        ConfigurationError: when ``group_size`` or ``count`` is below 2.

    Example:
        >>> [sorted(mask) for mask in masks(["e1", "e2"], group_size=4, step=1, seed=0)]
        [['e2'], ['e1'], [], ['e1', 'e2']]
    """
    require(group_size >= 2, "group_size", group_size, "a trial compares rollouts within a group: use 2 or more")
    require(count is None or count >= 2, "count", count, "use 2 or more, or None")
    blocks = _design(tuple(ids), group_size, step, seed, count)
    return blocks[group % len(blocks)]


@lru_cache(maxsize=8)
def _design(
    ids: tuple[str, ...], group_size: int, step: int, seed: int, count: int | None
) -> tuple[tuple[Mask, ...], ...]:
    """The blocks of masks that the groups of a step take turns over."""
    rows = min(group_size, _MAX_MASKS_IN_GROUP, count or group_size)
    if rows < group_size:
        rows -= rows % 2  # masks that are shared halve a group for certain only when they are even in number
    # r different masks differ in r - 1 ways. A third more ways than ids keep the estimates from inflating each other.
    blocks = max(1, math.ceil(len(ids) * 4 / 3 / (rows - 1)))
    blocks = min(blocks, max(1, count // rows)) if count else blocks
    sizes = [[(group_size + _parity(i, step + block)) // 2 for block in range(blocks)] for i in ids]
    columns = _uncorrelated(sizes, group_size, rows, Random(f"{seed}/{step}"))
    left_out = [
        frozenset(i for i, column in zip(ids, columns, strict=True) if column >> place & 1)
        for place in range(blocks * group_size)
    ]
    return tuple(tuple(left_out[block * group_size :][:group_size]) for block in range(blocks))


def _parity(identifier: str, turn: int) -> int:
    """0 and 1 in turn; which comes first differs between ids, whatever company they are in."""
    return (crc32(identifier.encode()) + turn) % 2


def _uncorrelated(sizes: Sequence[Sequence[int]], group_size: int, rows: int, random: Random) -> list[int]:
    """One column per id, a bit for each rollout of each block that goes without it, as many in a block as asked for.

    Starts at random and exchanges one block of one column at a time for one that lowers the sum of squared
    correlations, a criterion that serves with more ids than differences too (E(s²), Booth and Cox 1962).
    """
    halves = {size: _subsets(group_size, rows, size) for size in {size for column in sizes for size in column}}
    columns = [
        sum(random.choice(halves[size]) << block * group_size for block, size in enumerate(column)) for column in sizes
    ]
    for _ in range(_PASSES):
        for own, of_own in enumerate(sizes):
            # Two columns without correlation still share some rollouts.
            by_chance = [sum(map(mul, of_own, of_other)) / group_size for of_other in sizes]
            others = [other for n, other in enumerate(zip(columns, by_chance, strict=True)) if n != own]
            for block, size in enumerate(of_own):
                kept = columns[own] & ~((1 << group_size) - 1 << block * group_size)
                choices = random.sample(halves[size], min(_CANDIDATES, len(halves[size])))
                exchanged = [kept | choice << block * group_size for choice in choices]
                columns[own] = min([columns[own], *exchanged], key=partial(_correlation, others))
    return columns


def _correlation(others: Sequence[tuple[int, float]], column: int) -> float:
    """Sum of squares of what the column shares with each of the others beyond what it would by chance."""
    return sum(((column & other).bit_count() - by_chance) ** 2 for other, by_chance in others)


def _subsets(group_size: int, rows: int, size: int) -> list[int]:
    """Every set of ``size`` rollouts, as bits, in which rollouts of the same row (``number % rows``) go together."""
    row_bits = [sum(1 << rollout for rollout in range(row, group_size, rows)) for row in range(rows)]
    sets = [sum(bits for row, bits in enumerate(row_bits) if chosen >> row & 1) for chosen in range(1 << rows)]
    return [bits for bits in sets if bits.bit_count() == size]


def estimate_effects(
    observations: Iterable[Observation], ids: Sequence[str], *, since: Mapping[str, int] | None = None
) -> dict[str, Measured]:
    """The effect of having each experience in, in units of the reward, with its standard error.

    Least squares on all experiences together, within groups: an example's difficulty, and everything else that the
    rollouts of one group in one step share, cancels out. The standard error is the larger of the classical one and the
    one clustered by example. Clustering allows for a lesson that helps some examples more than others; taking the
    larger guards against its downward bias with few examples (Angrist and Pischke 2009, chapter 8).

    Args:
        observations: the scored rollouts of all steps so far.
        ids: the experiences to report. Others that were left out in some rollout are adjusted for.
        since: by id, the last step whose rollouts ran with another text of it. They do not count for the id.

    Returns:
        For every id its estimate, where ``n`` is the number of examples of which some rollouts had it and some had not.
        The standard error is infinite (and the mean 0) where the data cannot tell its effect from that of others.

    Example:
        >>> runs = [("a", "", 1.0), ("a", "e1", 0.5), ("b", "", 0.5), ("b", "e1", 0.5), ("c", "", 0.5), ("c", "e1", 0)]
        >>> seen = [Observation(group=g, step=1, left_out=frozenset(out.split()), reward=r) for g, out, r in runs]
        >>> effect = estimate_effects(seen, ["e1"])["e1"]
        >>> round(effect.mean, 3), round(effect.standard_error, 3), effect.n
        (0.333, 0.204, 3)
    """
    fit = _Fit(_groups(observations, since or {}))
    return {i: fit.estimate(i) for i in ids}


@dataclass(frozen=True, slots=True)
class _Group:
    """The rollouts of one example in one step: who was left out of each, and how far its reward is from their mean."""

    example: str
    left_out: tuple[Mask, ...]
    rewards: tuple[float, ...]


def _groups(observations: Iterable[Observation], since: Mapping[str, int]) -> list[_Group]:
    """The groups that tell something: those whose rollouts did not all go without the same."""
    together: dict[tuple[str, int], list[Observation]] = {}
    for o in observations:
        together.setdefault((o.group, o.step), []).append(o)
    groups = []
    for (key, step), members in together.items():
        # An older text is an experience of its own: adjusted for, never reported.
        old = {i for i, last in since.items() if step <= last}
        left_out = tuple(frozenset(f"{i} before" if i in old else i for i in o.left_out) for o in members)
        if len(set(left_out)) > 1:
            groups.append(_Group(example_of(key), left_out, _centred([o.reward for o in members])))
    return groups


class _Fit:
    """Least squares of the rewards on who was in, both as differences from their group's mean.

    Being in is one minus being left out, so within a group the differences of the two differ in sign alone.
    """

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.groups = groups
        self.names = sorted({i for group in groups for mask in group.left_out for i in mask})
        self.counts = [Counter(i for mask in group.left_out for i in mask) for group in groups]
        self.examples = self._examples()
        self.inverse, self.rank, self.identified = _inverse(self._products())
        self.effects = dict(zip(self.names, _times(self.inverse, self._moments(groups)), strict=True))
        self.differences = sum(len(group.rewards) - 1 for group in groups)
        self.errors = self._standard_errors()

    def estimate(self, identifier: str) -> Measured:
        """The estimate for one id; one that never varied within a group is as unknown as one that is confounded."""
        n = len(self.examples.get(identifier, ()))
        error = self.errors.get(identifier, math.inf)
        return Measured(mean=0.0 if math.isinf(error) else self.effects[identifier], standard_error=error, n=n)

    def _examples(self) -> dict[str, set[str]]:
        """By id, the examples some of whose rollouts had it while others in the same group had not."""
        examples: dict[str, set[str]] = {}
        for group, counts in zip(self.groups, self.counts, strict=True):
            for i, count in counts.items():
                if count < len(group.left_out):
                    examples.setdefault(i, set()).add(group.example)
        return examples

    def _products(self) -> list[list[float]]:
        """Sums of products of the centred columns: rollouts without both, less what each group would have by chance."""
        bits = dict.fromkeys(self.names, 0)
        for place, mask in enumerate(mask for group in self.groups for mask in group.left_out):
            for i in mask:
                bits[i] |= 1 << place
        per_group = {i: [counts[i] for counts in self.counts] for i in self.names}
        shares = {
            i: [count / len(group.rewards) for count, group in zip(per_group[i], self.groups, strict=True)]
            for i in self.names
        }
        return [
            [(bits[i] & bits[j]).bit_count() - sum(map(mul, per_group[i], shares[j])) for j in self.names]
            for i in self.names
        ]

    def _moments(self, groups: Iterable[_Group]) -> list[float]:
        """Sums of products of the centred columns and rewards."""
        sums = dict.fromkeys(self.names, 0.0)
        for group in groups:
            for mask, reward in zip(group.left_out, group.rewards, strict=True):
                for i in mask:
                    sums[i] -= reward
        return list(sums.values())

    def _residuals(self) -> list[_Group]:
        """The groups with what the effects leave of their rewards."""
        residuals = []
        for group in self.groups:
            fitted = _centred([-sum(self.effects[i] for i in mask) for mask in group.left_out])
            residuals.append(replace(group, rewards=tuple(map(sub, group.rewards, fitted))))
        return residuals

    def _standard_errors(self) -> dict[str, float]:
        """By id, the larger of the classical and the clustered standard error; infinite when there is none."""
        freedom = self.differences - self.rank
        if freedom < 1:
            return {}
        residuals = self._residuals()
        classical = sum(r * r for group in residuals for r in group.rewards) / freedom
        by_example: dict[str, list[_Group]] = {}
        for group in residuals:
            by_example.setdefault(group.example, []).append(group)
        influences = [_times(self.inverse, self._moments(groups)) for groups in by_example.values()]
        errors = {}
        for place, i in enumerate(self.names):
            n = len(self.examples.get(i, ()))
            if place in self.identified and n > 1:
                clustered = sum(own[place] ** 2 for own in influences) * n / (n - 1) * self.differences / freedom
                errors[i] = math.sqrt(max(clustered, classical * self.inverse[place][place]))
        return errors


def _centred(values: Sequence[float]) -> tuple[float, ...]:
    mean = fmean(values)
    return tuple(value - mean for value in values)


def _times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(map(mul, row, vector)) for row in matrix]


def _inverse(products: Sequence[Sequence[float]]) -> tuple[list[list[float]], int, set[int]]:
    """Inverse over a largest set of independent columns (0 elsewhere), their number, and which columns are identified.

    Sweeps one column after another, the most independent first (Goodnight 1979). What it leaves between a swept and an
    unswept column is the share of the latter that the former explains; a column is identified when it has no share in
    any unswept one.
    """
    matrix = [list(row) for row in products]
    everywhere = range(len(matrix))
    left = {n for n in everywhere if products[n][n] > _NEGLIGIBLE}
    swept: set[int] = set()
    while left:
        pivot = max(left, key=lambda n: (matrix[n][n] / products[n][n], -n))
        if matrix[pivot][pivot] <= _NEGLIGIBLE * products[pivot][pivot]:
            break
        _sweep(matrix, pivot)
        swept.add(pivot)
        left.remove(pivot)
    inverse = [[matrix[i][j] if i in swept and j in swept else 0.0 for j in everywhere] for i in everywhere]
    identified = {n for n in swept if all(abs(matrix[n][other]) < 1e-6 for other in left)}
    return inverse, len(swept), identified


def _sweep(matrix: list[list[float]], pivot: int) -> None:
    """Solve for one column in place; entries of swept columns become those of the inverse."""
    divisor = matrix[pivot][pivot]
    row = [value / divisor for value in matrix[pivot]]
    for n, other in enumerate(matrix):
        if n != pivot and other[pivot]:
            factor = other[pivot]
            other[:] = [value - factor * own for value, own in zip(other, row, strict=True)]
            other[pivot] = -factor / divisor
    row[pivot] = 1 / divisor
    matrix[pivot] = row
