"""The experience library: immutable, ordered, changed only by edits."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.library.edits import Edit, Refusal
from tgrpo_dspy.library.experience import Experience, join_evidence
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.limits import evict, too_long
from tgrpo_dspy.library.listing import to_markdown
from tgrpo_dspy.settings import LibraryLimits


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of ``ExperienceLibrary.apply``: the new library and what became of every edit.

    ``evicted`` had to go for lack of room; ``joined`` came to say what an older experience says, and went up into it.
    """

    library: ExperienceLibrary
    applied: tuple[Edit, ...]
    refused: tuple[Refusal, ...]
    evicted: tuple[Experience, ...]
    joined: tuple[Experience, ...] = ()


@dataclass(frozen=True, slots=True)
class ExperienceLibrary:
    """An immutable, ordered collection of experiences, comparable and hashable by content.

    Args:
        experiences: in the order in which they are rendered; ids must be unique.
        next_number: number of the next id; ids are never reused, so it only grows.

    Raises:
        LibraryError: when two experiences share an id.

    Example:
        >>> done = ExperienceLibrary().apply([Edit(operation="ADD", text="Write dates as YYYY-MM-DD.")])
        >>> [(e.id, e.text) for e in done.library]
        [('e1', 'Write dates as YYYY-MM-DD.')]
        >>> done.library.apply([Edit(operation="DELETE", ids=("e9",))]).refused[0].reason
        'there is no experience e9'
    """

    experiences: tuple[Experience, ...] = ()
    next_number: int = 0

    def __post_init__(self) -> None:
        ids = [e.id for e in self.experiences]
        if len(set(ids)) != len(ids):
            raise LibraryError(f"experience ids must be unique, got {ids}")
        highest = max((e.number for e in self.experiences), default=0)
        object.__setattr__(self, "next_number", max(self.next_number, highest + 1))

    def __iter__(self) -> Iterator[Experience]:
        return iter(self.experiences)

    def __len__(self) -> int:
        return len(self.experiences)

    def __contains__(self, identifier: object) -> bool:
        return any(e.id == identifier for e in self.experiences)

    def __getitem__(self, identifier: str) -> Experience:
        for experience in self.experiences:
            if experience.id == identifier:
                return experience
        raise KeyError(identifier)

    def to_markdown(self) -> str:
        """The library as Markdown; see ``apply_markdown`` for the way back."""
        return to_markdown(self.experiences)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of its experiences."""
        return frozenset(e.id for e in self.experiences)

    def only(self, ids: Container[str]) -> ExperienceLibrary:
        """The library with these of its experiences; the ids of the others are not used again."""
        return replace(self, experiences=tuple(e for e in self.experiences if e.id in ids))

    def for_predictor(self, name: str) -> tuple[Experience, ...]:
        """The experiences that the predictor of that name carries: its own and those of the whole program."""
        return tuple(e for e in self.experiences if e.target in (None, name))

    def apply(
        self,
        edits: Iterable[Edit],
        *,
        step: int = 0,
        limits: LibraryLimits | None = None,
        guards: Guards | None = None,
    ) -> Applied:
        """Carry out the edits of one step together. Pure, and independent of the order in which edits arrive.

        Edits that say the same count as one, with their evidence joined. On one experience the first of MERGE, UPDATE,
        DELETE, KEEP wins and the others are refused; among equals the one proposed most often wins, then the first in
        alphabetical order. An ADD of a lesson that is already there counts as a KEEP of it. Of several UPDATEs to one
        text the first is carried out, since the others would lose what they replace. A DELETE that loses to another
        edit is counted as a contradiction. Texts are checked against ``limits`` and ``guards`` first, so a MERGE whose
        text is refused loses none of its sources. An illustration that quotes training data is cut off.
        """
        return _Application(self, step, limits or LibraryLimits(), guards or Guards()).run(edits)


class _Application:
    """The state of one ``apply``: what was decided so far for the experiences of a library."""

    def __init__(self, library: ExperienceLibrary, step: int, limits: LibraryLimits, guards: Guards) -> None:
        self.library, self.step, self.limits, self.guards = library, step, limits, guards
        self.current: dict[str, Experience] = {e.id: e for e in library}
        self.next_number = library.next_number
        self.claimed: dict[str, str] = {}
        self.updated: dict[tuple[str, str | None], str] = {}
        self.applied: list[Edit] = []
        self.refused: list[Refusal] = []

    def run(self, edits: Iterable[Edit]) -> Applied:
        checked = (replace(edit, text=self.guards.redact(edit.text)) for edit in edits)
        for edit, count in _joined(checked):
            reason = self._reason_against(edit)
            if reason:
                self.refused.append(Refusal(edit=edit, reason=reason))
            else:
                getattr(self, f"_{edit.operation.lower()}")(edit, count)
                self.applied.append(edit)
        joined = self._join_equal()
        kept, evicted = evict(self.current.values(), self.limits)
        library = ExperienceLibrary(kept, self.next_number)
        return Applied(library, tuple(self.applied), tuple(self.refused), evicted, joined)

    def _join_equal(self) -> tuple[Experience, ...]:
        """Let an experience that came to say what an older one says go up into that one."""
        joined = []
        by_content: dict[tuple[str, str | None], str] = {}
        for experience in sorted(self.current.values(), key=lambda e: e.number):
            known = by_content.setdefault((experience.text.casefold(), experience.target), experience.id)
            if known != experience.id:
                older = self.current[known]
                self.current[known] = replace(
                    older,
                    proposed=older.proposed + experience.proposed,
                    evidence=join_evidence(older.evidence, experience.evidence),
                )
                joined.append(self.current.pop(experience.id))
        return tuple(joined)

    def _reason_against(self, edit: Edit) -> str | None:
        return self._wrong_ids(edit) or self._wrong_text(edit) or self._conflict(edit) or self._repetition(edit)

    def _wrong_ids(self, edit: Edit) -> str | None:
        unknown = [i for i in edit.ids if i not in self.library]
        if unknown:
            return f"there is no experience {', '.join(unknown)}"
        if edit.operation == "MERGE" and len(edit.ids) < 2:
            return "a MERGE needs at least two different experiences"
        if edit.operation in ("UPDATE", "DELETE", "KEEP") and len(edit.ids) != 1:
            return f"a {edit.operation} needs exactly one experience, got {len(edit.ids)}"
        if edit.operation == "ADD" and edit.ids:
            return "an ADD names no experience"
        return None

    def _wrong_text(self, edit: Edit) -> str | None:
        if edit.operation in ("DELETE", "KEEP"):
            return None
        if not edit.text:
            return f"a {edit.operation} needs a text"
        return self.guards.refuse(edit.text) or too_long(edit.text, self.limits)

    def _conflict(self, edit: Edit) -> str | None:
        taken = next((i for i in edit.ids if i in self.claimed), None)
        if taken is None:
            return None
        if edit.operation == "DELETE":
            old = self.current.get(taken)
            if old is not None:
                self.current[taken] = replace(old, contradicted=old.contradicted + 1)
        return f"{taken} already has a {self.claimed[taken]} in this step"

    def _repetition(self, edit: Edit) -> str | None:
        """Several UPDATEs to one text would leave one lesson of many; a MERGE says so when that is meant."""
        if edit.operation != "UPDATE":
            return None
        first = self.updated.setdefault((edit.text.casefold(), edit.target), edit.ids[0])
        return f"{first} becomes just that in this step" if first != edit.ids[0] else None

    def _claim(self, edit: Edit) -> None:
        self.claimed.update(dict.fromkeys(edit.ids, edit.operation))

    def _merge(self, edit: Edit, count: int) -> None:
        self._claim(edit)
        sources = [self.current[i] for i in edit.ids]
        first = sources[0]
        targets = {s.target for s in sources}
        self.current[first.id] = replace(
            first,
            text=edit.text,
            target=targets.pop() if len(targets) == 1 else None,
            changed=self.step,
            evidence=join_evidence(*(s.evidence for s in sources), edit.evidence),
            proposed=sum(s.proposed for s in sources) + count,
            effect=None,
        )
        for source in sources[1:]:
            del self.current[source.id]

    def _update(self, edit: Edit, count: int) -> None:
        self._claim(edit)
        old = self.current[edit.ids[0]]
        self.current[old.id] = replace(
            old,
            text=edit.text,
            target=old.target if edit.target is None else edit.target or None,
            changed=self.step,
            evidence=join_evidence(old.evidence, edit.evidence),
            proposed=old.proposed + count,
            effect=old.effect if edit.text == old.text else None,
        )

    def _delete(self, edit: Edit, count: int) -> None:
        self._claim(edit)
        del self.current[edit.ids[0]]

    def _keep(self, edit: Edit, count: int) -> None:
        self._support(edit.ids[0], edit, count)

    def _add(self, edit: Edit, count: int) -> None:
        same = (e for e in self.current.values() if e.text.casefold() == edit.text.casefold())
        known = next((e.id for e in same if e.target in (None, edit.target or None)), None)
        if known is not None:
            self._support(known, edit, count)
            return
        identifier = f"e{self.next_number}"
        self.next_number += 1
        self.current[identifier] = Experience(
            id=identifier,
            text=edit.text,
            target=edit.target or None,
            created=self.step,
            changed=self.step,
            evidence=join_evidence(edit.evidence),
            proposed=count,
        )

    def _support(self, identifier: str, edit: Edit, count: int) -> None:
        old = self.current[identifier]
        self.current[identifier] = replace(
            old, proposed=old.proposed + count, evidence=join_evidence(old.evidence, edit.evidence)
        )


_PRECEDENCE = {"MERGE": 0, "UPDATE": 1, "DELETE": 2, "KEEP": 3, "ADD": 4}


def _joined(edits: Iterable[Edit]) -> list[tuple[Edit, int]]:
    """Edits that say the same, as one edit and a count; in the order in which they are carried out."""
    same: dict[tuple[str, str, tuple[str, ...], str], list[Edit]] = {}
    for edit in edits:
        same.setdefault(edit.content, []).append(edit)
    joined = [
        (replace(min(group, key=lambda e: e.text), evidence=join_evidence(*(e.evidence for e in group))), len(group))
        for group in same.values()
    ]
    return sorted(joined, key=lambda pair: (_PRECEDENCE[pair[0].operation], -pair[1], pair[0].content))
