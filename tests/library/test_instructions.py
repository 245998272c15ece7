"""The experience block in a program's instructions."""

from __future__ import annotations

import threading

import dspy
import pytest

from tgrpo_dspy import Experience, ExperienceLibrary, LibraryError, inject, read_library, strip
from tgrpo_dspy.library import render_block

LIBRARY = ExperienceLibrary(
    (
        Experience(id="e2", text="Keep {braces}, ${dollars} and `ticks`."),
        Experience(id="e7", text="Only when drafting.", target="draft.predict"),
        Experience(id="e9", text="Mind the [[ ]] and <b>tags</b>: שלום."),
    )
)


class Essay(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.ChainOfThought("topic -> text")
        self.polish = dspy.Predict("text -> text2")
        self.lock = threading.Lock()  # cannot be copied

    def forward(self, topic: str) -> dspy.Prediction:
        return self.polish(text=self.draft(topic=topic).text)


def instructions(program: dspy.Module) -> dict[str, str]:
    return {name: p.signature.instructions for name, p in program.named_predictors()}


def test_each_predictor_carries_its_own_and_the_common_experiences() -> None:
    written = instructions(inject(Essay(), LIBRARY))
    assert "[e7]" in written["draft.predict"] and "[e7]" not in written["polish"]
    assert all("[e2]" in text and "[e9]" in text for text in written.values())
    assert all(text.endswith("</experiences>") for text in written.values())


def test_inject_replaces_strip_undoes_and_read_gives_back() -> None:
    program = Essay()
    before = instructions(program)
    once = inject(program, LIBRARY)
    assert instructions(inject(once, LIBRARY)) == instructions(once)
    assert instructions(strip(once)) == before == instructions(program)
    back = read_library(once)
    assert [(e.id, e.text, e.target) for e in back] == [(e.id, e.text, e.target) for e in LIBRARY]


@pytest.mark.parametrize(
    "text", ["Short.", "First line.\n\n    indented\n    block", "a\n  b\nc", "<experiences> is a word here"]
)
def test_the_instructions_above_the_block_stay_as_they_are(text: str) -> None:
    program = dspy.Predict(dspy.Signature("question -> answer", text))
    library = ExperienceLibrary((Experience(id="e1", text="Be brief."),))
    injected = inject(program, library)
    assert injected.signature.instructions.startswith(program.signature.instructions)
    assert strip(injected).signature.instructions == program.signature.instructions
    prompt = dspy.ChatAdapter().format(injected.signature, [], {"question": "x"})[0]["content"]
    assert "[e1] Be brief." in prompt


def look(where: str) -> str:
    """Look somewhere."""
    return where


AGENTS = {
    "ReAct": lambda: dspy.ReAct("question -> answer", tools=[look]),
    "ReActV2": lambda: dspy.ReActV2("question -> answer", tools=[look]),
    "CodeAct": lambda: dspy.CodeAct("question -> answer", tools=[look], interpreter_factory=dspy.LocalInterpreter),
    "ProgramOfThought": lambda: dspy.ProgramOfThought("question -> answer", interpreter_factory=dspy.LocalInterpreter),
    "RLM": lambda: dspy.RLM("question -> answer", interpreter_factory=dspy.LocalInterpreter),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", AGENTS)
def test_the_protocol_of_an_agent_is_kept(kind: str) -> None:
    agent = AGENTS[kind]()
    library = ExperienceLibrary((Experience(id="e1", text="Look first."),))
    before = instructions(agent)
    injected = inject(agent, library)
    assert before
    for name, text in before.items():
        assert instructions(injected)[name] == f"{text}\n\n{render_block(library)}"
    assert instructions(strip(injected)) == before == instructions(agent)


def test_an_experience_for_a_predictor_that_does_not_exist_is_an_error() -> None:
    library = ExperienceLibrary((Experience(id="e1", text="x", target="nowhere"),))
    with pytest.raises(
        LibraryError, match=r"e1 is for predictor 'nowhere', but the program has draft\.predict, polish"
    ):
        inject(Essay(), library)


def test_lms_are_shared_with_the_copy_even_where_the_program_cannot_be_copied_whole() -> None:
    program = Essay()
    lm = dspy.LM("openai/none")
    program.draft.predict.lm = program.polish.lm = lm
    injected = inject(program, LIBRARY)
    assert injected.draft.predict.lm is injected.polish.lm is lm
    assert injected.lock is program.lock


def test_two_predictors_with_equal_signatures_are_told_apart() -> None:
    class Twins(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = dspy.Predict("q -> a"), dspy.Predict("q -> a")

    written = instructions(inject(Twins(), ExperienceLibrary((Experience(id="e1", text="x", target="b"),))))
    assert "<experiences>" in written["b"] and "<experiences>" not in written["a"]
