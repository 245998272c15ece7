"""The trial of a run: which experiences its rollouts go without, and which of them have to go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tgrpo_dspy.evaluation.effects import prune, record
from tgrpo_dspy.evaluation.scores import judge
from tgrpo_dspy.evaluation.trials import Observation, estimate_effects, masks
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Group, Measured
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rollouts import Variant
from tgrpo_dspy.settings import Sampling, require


class Trial:
    """Leaves each experience out of half of every group, and drops those that clearly lower the reward.

    An experience is on trial until it clearly helps; then every rollout has it, and its estimate rests on the steps so
    far. With ``trial="off"`` every rollout runs with the whole library.

    Whoever looks after every step finds something sooner or later. So the level of the settings is shared out among the
    looks (Bonferroni): an experience without effect is dropped in the whole run with at most that chance, and freed of
    the trial with at most the same.

    Args:
        settings: whether there is a trial, and how sure it has to be.
        seed: draws who is left out.
        looks: how often it will be judged, 1 or more: the steps of the run.

    Raises:
        ConfigurationError: when ``looks`` is below 1.
    """

    def __init__(self, settings: Sampling, seed: int, looks: int = 1) -> None:
        require(looks >= 1, "looks", looks, "use 1 or more")
        self._on, self._level, self._seed = settings.trial == "randomized", settings.trial_level / looks, seed
        self._seen: list[Observation] = []

    def variants(
        self, policy_of: Callable[[ExperienceLibrary], Policy], library: ExperienceLibrary, size: int, step: int
    ) -> Callable[[int], Sequence[Variant]]:
        """What each of the ``size`` rollouts of a group runs with, by the group's place in the batch."""
        on_trial = self._on_trial(library) if self._on and size > 1 else []
        made: dict[frozenset[str], Variant] = {}

        def variant(left_out: frozenset[str]) -> Variant:
            if left_out not in made:
                made[left_out] = Variant(policy_of(library.only(library.ids - left_out)), tuple(sorted(left_out)))
            return made[left_out]

        def of_group(lane: int) -> Sequence[Variant]:
            if not on_trial:
                return [variant(frozenset())] * size
            return [variant(m) for m in masks(on_trial, group_size=size, step=step, seed=self._seed, group=lane)]

        return of_group

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Take in the rollouts of a step."""
        if self._on:
            self._seen += [
                Observation(group=group.key, step=step, left_out=frozenset(rollout.left_out), reward=rollout.reward)
                for group in groups
                for rollout in group.rollouts
                if rollout.reward is not None
            ]

    def judge(
        self, library: ExperienceLibrary
    ) -> tuple[ExperienceLibrary, tuple[Experience, ...], dict[str, Measured]]:
        """The library with its measured effects and without what does harm, what was dropped, and the effects."""
        if not self._on:
            return library, (), {}
        effects = self._effects(library)
        kept, dropped = prune(record(library, effects), effects, level=self._level)
        return kept, dropped, effects

    def _effects(self, library: ExperienceLibrary) -> dict[str, Measured]:
        # An experience whose words changed in a step ran with the old ones in the rollouts of that step.
        since = {e.id: e.changed for e in library}
        return estimate_effects(self._seen, [e.id for e in library], since=since)

    def _on_trial(self, library: ExperienceLibrary) -> list[str]:
        effects = self._effects(library)
        return [i for i, effect in effects.items() if judge(effect, level=self._level) != "helpful"]
