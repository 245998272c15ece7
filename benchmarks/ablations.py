"""What each decision is worth: all defaults but for one, on the same students, models and examples.

``python -m benchmarks.ablations --task country_records --seeds 0 1`` measures the paper's ablations and those of our
own decisions, cell by cell, and ``--table`` prints them beside all defaults. It is ``benchmarks.compare`` with another
list, and takes the same options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import compare
from benchmarks.learning import ABLATIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or print the table; 1 when a cell could not be measured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    defaults = ["--variants", *ABLATIONS, "--against", "full"]
    return compare.main([*defaults, *given], prog="python -m benchmarks.ablations", about=__doc__)


if __name__ == "__main__":
    sys.exit(main())
