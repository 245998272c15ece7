"""Shows the docstrings' examples as code: griffe knows a section ``Examples:``, not ``Example:``."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExamplesInDocstrings(griffe.Extension):
    """Reads ``Example:`` as ``Examples:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is documented."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
