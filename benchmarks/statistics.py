"""How far chance explains a difference between two programs on the same items."""

from __future__ import annotations

from collections.abc import Sequence

_DRAWS = 9999


def permutation_chance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Chance of a mean difference this large, either way, if it had no cause: a paired permutation test.

    Args:
        ours, theirs: a score per item, in the same order; two items or more.

    Returns:
        Exact where all permutations can be gone through, else from 9,999 drawn ones.

    Example:
        >>> permutation_chance([1.0] * 6, [0.0] * 6)
        0.03125
        >>> permutation_chance([1.0, 0.0], [1.0, 0.0])
        1.0
    """
    import numpy as np
    from scipy import stats

    differences = np.subtract(ours, theirs)
    if not differences.any():
        return 1.0
    tested = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=_DRAWS,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(tested.pvalue)
