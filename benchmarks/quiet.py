"""Keeps what DSPy's optimizers print, log, warn of and draw off the terminal; their errors are raised all the same."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is written to the terminal inside the block."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(_Nowhere()), redirect_stderr(_Nowhere()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
