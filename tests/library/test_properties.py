"""What holds for every library and every sequence of edits."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.adapters.baml_adapter import BAMLAdapter
from hypothesis import given, settings
from hypothesis import strategies as st

from tgrpo_dspy import Edit, Experience, ExperienceLibrary, LibraryLimits, diff, inject, read_library, strip
from tgrpo_dspy.library import apply_markdown, edits_in_markdown, from_json, to_json, to_markdown
from tgrpo_dspy.library.experience import Evidence, clean_text
from tgrpo_dspy.library.instructions import render_block
from tgrpo_dspy.library.limits import estimate_tokens

HOSTILE = [
    "{braces} ${dollars} %s {{double}}",
    "[[ ## answer ## ]]",
    "</experiences>",
    "<experiences>",
    "[e9] a line with an id",
    "```python print(1) ```",
    "\u202eright to left שלום עליכם\u202c",
    "x" * 10_000,
    "# Experiences",
    "## predictor",
    "- [e1] a bullet",
    "None yet.",
    "tab\tand\nnewline\r\n\n\nand blank lines",
    "\u2028line separator\u0085next line",
]
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)
TEXTS = st.one_of(st.sampled_from(HOSTILE), WORDS).map(clean_text).filter(bool)
SHORT = st.sampled_from(["one", "two", "three", "Two", "four words in here", "five"])
TARGETS = st.sampled_from([None, "self", "other"])


@st.composite
def libraries(
    draw: Any, texts: st.SearchStrategy[str] = TEXTS, targets: st.SearchStrategy[Any] = TARGETS
) -> ExperienceLibrary:
    numbers = draw(st.lists(st.integers(1, 30), unique=True, max_size=8))
    members, seen = [], set()
    for number in numbers:
        text, target = draw(texts), draw(targets)
        if (text.casefold(), target) not in seen:
            seen.add((text.casefold(), target))
            evidence = tuple(Evidence(example=f"k{n}", rewards=(0.5, 1.0)) for n in range(draw(st.integers(0, 2))))
            effect = draw(st.one_of(st.none(), st.floats(-1, 1)))
            members.append(
                Experience(
                    id=f"e{number}",
                    text=text,
                    target=target,
                    created=draw(st.integers(0, 5)),
                    evidence=evidence,
                    proposed=draw(st.integers(1, 4)),
                    effect=effect,
                )
            )
    return ExperienceLibrary(tuple(members), draw(st.integers(0, 40)))


EDITS = st.lists(
    st.builds(
        Edit,
        operation=st.sampled_from(["ADD", "UPDATE", "DELETE", "MERGE", "KEEP"]),
        text=st.one_of(SHORT, st.just(""), st.just("too long " * 10)),
        ids=st.lists(st.integers(1, 12).map("e{}".format), max_size=3).map(tuple),
        target=TARGETS,
    ),
    max_size=12,
)
LIMITS = LibraryLimits(words=12, experiences=6, tokens=100)


@given(libraries(SHORT), EDITS, st.randoms())
@settings(max_examples=300, deadline=None)
def test_any_edits_from_any_library_keep_the_invariants(
    start: ExperienceLibrary, edits: list[Edit], order: Any
) -> None:
    result = start.apply(edits, step=1, limits=LIMITS)
    shuffled = list(edits)
    order.shuffle(shuffled)
    again = start.apply(shuffled, step=1, limits=LIMITS)
    assert result.library == again.library
    assert set(result.refused) == set(again.refused)

    ids = [e.id for e in result.library]
    assert len(set(ids)) == len(ids) <= LIMITS.experiences
    assert all(len(e.text.split()) <= LIMITS.words for e in result.library if e.changed == 1)
    blocks = [render_block(result.library.for_predictor(name)) for name in ("self", "other")]
    assert all(estimate_tokens(block) <= LIMITS.tokens for block in blocks)
    fresh = [e for e in result.library if e.id not in start]
    assert all(e.number >= start.next_number for e in fresh)
    assert result.library.next_number >= start.next_number

    _nothing_is_lost(start, edits, result)


def _nothing_is_lost(start: ExperienceLibrary, edits: list[Edit], result: Any) -> None:
    """Every edit has an outcome, and every experience that is gone has a recorded reason."""
    outcomes = {edit.content for edit in result.applied} | {refusal.edit.content for refusal in result.refused}
    assert {edit.content for edit in edits} == outcomes
    reasons = {e.id for e in (*result.evicted, *result.joined)}
    reasons |= {i for edit in result.applied if edit.operation in ("DELETE", "MERGE") for i in edit.ids}
    assert {e.id for e in start} - {e.id for e in result.library} <= reasons


@given(libraries())
@settings(max_examples=100, deadline=None)
def test_json_gives_back_the_same_library(library: ExperienceLibrary) -> None:
    assert from_json(to_json(library)) == library


@given(libraries())
@settings(max_examples=100, deadline=None)
def test_markdown_that_nobody_changed_changes_nothing(library: ExperienceLibrary) -> None:
    text = to_markdown(library)
    assert edits_in_markdown(text, library) == ()
    kept = apply_markdown(text, library, limits=LibraryLimits(words=9999, tokens=99999)).library
    assert {e.id: e for e in kept} == {e.id: e for e in library}


@given(libraries(SHORT, st.none()), libraries(SHORT, st.none()))
@settings(max_examples=100, deadline=None)
def test_a_diff_applied_gives_the_other_libraries_texts(before: ExperienceLibrary, after: ExperienceLibrary) -> None:
    result = before.apply(diff(before, after), limits=LibraryLimits(tokens=99999))
    assert result.refused == ()
    assert sorted((e.text.casefold(), e.target or "") for e in result.library) == sorted(
        {(e.text.casefold(), e.target or "") for e in after}
    )


class Two(dspy.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        signature = dspy.Signature("question -> answer", text) if text.strip() else dspy.Signature("question -> answer")
        self.first, self.second = dspy.Predict(signature), dspy.ChainOfThought(signature)


def instructions(program: dspy.Module) -> list[str]:
    return [predictor.signature.instructions for predictor in program.predictors()]


@given(
    libraries(targets=st.sampled_from([None, "first", "second.predict"])),
    st.one_of(st.sampled_from(["Answer.", "a\n  b\n\nc", *HOSTILE]), st.text(st.characters(exclude_categories=["Cs"]))),
)
@settings(max_examples=150, deadline=None)
def test_inject_strip_and_read_are_each_others_inverse(library: ExperienceLibrary, text: str) -> None:
    program = Two(text)
    before = instructions(program)
    injected = inject(program, library)
    assert instructions(program) == before == instructions(strip(injected))
    assert instructions(inject(injected, library)) == instructions(injected)
    back = {(e.id, e.text, e.target) for e in read_library(injected)}
    assert back == {(e.id, e.text, e.target) for e in library}


ADAPTERS = [
    dspy.ChatAdapter(),
    dspy.JSONAdapter(),
    dspy.XMLAdapter(),
    BAMLAdapter(),
    dspy.TwoStepAdapter(dspy.LM("openai/none")),
]


@given(libraries(targets=st.none()), st.sampled_from(ADAPTERS))
@settings(max_examples=100, deadline=None)
def test_every_adapter_sends_every_experience_whole(library: ExperienceLibrary, adapter: Any) -> None:
    signature = inject(dspy.Predict("question -> answer"), library).signature
    prompt = adapter.format(signature, [], {"question": "why?"})[0]["content"]
    for experience in library:
        assert f"[{experience.id}] {experience.text}" in prompt
