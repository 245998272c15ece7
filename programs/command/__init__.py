"""The command of every example program: ``python -m programs.<name> compile|evaluate|compare``."""

from programs.command.application import Application, CommandError
from programs.command.main import run

__all__ = ["Application", "CommandError", "run"]
