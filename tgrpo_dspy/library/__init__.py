"""The experience library: data, the edits that change it, its files, and its place in a program's instructions."""

from tgrpo_dspy.library.codec import from_json, to_json
from tgrpo_dspy.library.comparing import diff, retarget
from tgrpo_dspy.library.edits import Edit, Operation, Refusal
from tgrpo_dspy.library.experience import Evidence, Experience
from tgrpo_dspy.library.files import load_library, save_library
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.instructions import inject, read_library, render_block, strip
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.library.listing import to_markdown
from tgrpo_dspy.library.markdown import apply_markdown, edits_in_markdown

__all__ = [
    "Applied",
    "Edit",
    "Evidence",
    "Experience",
    "ExperienceLibrary",
    "Guards",
    "Operation",
    "Refusal",
    "apply_markdown",
    "diff",
    "edits_in_markdown",
    "from_json",
    "inject",
    "load_library",
    "read_library",
    "render_block",
    "retarget",
    "save_library",
    "strip",
    "to_json",
    "to_markdown",
]
