"""The process in which ``equality.py`` lets math-verify compare: a JSON line with the readings in, one with the verdict
out. It reads no files, and its memory is bounded where the system can do that.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

_MAX_MEMORY_BYTES = 1 << 30


def main() -> None:
    """Say that it is ready, then answer until the input ends."""
    _bound_memory()
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr  # so that nothing that is printed can be taken for a verdict
    try:
        equal = _equality()
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    with open(os.devnull, "w") as nowhere:
        for line in sys.stdin:
            request = json.loads(line)
            # The asking process ends this one in time; when that has been killed itself, nobody else does.
            faulthandler.dump_traceback_later(request["seconds"] + 1, exit=True, file=nowhere)
            verdict = any(equal(label, answer) for label in request["labels"] for answer in request["answers"])
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"equal": verdict}), file=out, flush=True)


def _equality() -> Callable[[str, str], bool]:
    """math-verify, warmed up. Its own deadlines are off: they are signals, and cannot end a long multiplication."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # Without its units: among them are single letters and "less", which would make 2 of "2m".
    normalization = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    config = [LatexExtractionConfig(normalization_config=normalization)]

    def parsed(latex: str) -> Any:
        return parse(f"${latex}$", config, fallback_mode="no_fallback", parsing_timeout=None)

    def equal(label: str, answer: str) -> bool:
        return bool(verify(parsed(label), parsed(answer), allow_set_relation_comp=True, timeout_seconds=None))

    if not equal("1", r"\frac{2}{2}"):
        raise RuntimeError("math-verify does not find that 2/2 is 1")
    return equal


def _bound_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    except (ImportError, ValueError, OSError):
        return  # Windows, and macOS, cannot: there the deadline alone bounds what a comparison takes


if __name__ == "__main__":
    main()
