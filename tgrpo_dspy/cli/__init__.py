"""The command ``tgrpo``: look at what was learned, compare it, move it, without the code of the program."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from tgrpo_dspy.cli.parser import parser
from tgrpo_dspy.errors import TGRPOError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 for files that cannot be used.

    Raises:
        SystemExit: by ``argparse``, with 2 for wrong usage and 0 after ``--help``.
    """
    options = parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except TGRPOError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename2 or error.filename or 'a file'}: {error.strerror or error}")
    return 0


def _fail(message: str) -> int:
    print(f"tgrpo: {' '.join(message.split())}", file=sys.stderr)
    return 2
