"""The experience library: data, the edits that change it, and its place in a program's instructions."""

from tgrpo_dspy.library.edits import Edit, Operation, Refusal
from tgrpo_dspy.library.experience import Evidence, Experience
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.instructions import inject, read_library, render_block, strip
from tgrpo_dspy.library.library import Applied, ExperienceLibrary

__all__ = [
    "Applied",
    "Edit",
    "Evidence",
    "Experience",
    "ExperienceLibrary",
    "Guards",
    "Operation",
    "Refusal",
    "inject",
    "read_library",
    "render_block",
    "strip",
]
