"""An interpreter as a tool of a DSPy agent."""

from __future__ import annotations

import dspy

from programs.code_interpreter.fences import without_fences
from programs.code_interpreter.interpreter import CodeError, Interpreter


def python_tool(interpreter: Interpreter) -> dspy.Tool:
    """The tool `python`, with the argument `code`: what the program printed, or "error: …" and what it printed before.

    Only an interpreter that does not start raises, `InterpreterUnavailableError`. The tool is a blocking function that
    any number of threads may call at once.
    """

    def python(code: str) -> str:
        try:
            output = interpreter.run(without_fences(code))
        except CodeError as error:
            return f"error: {error}" + (f"\nprinted before that:\n{error.output}" if error.output else "")
        return output or "(no output: print what you want to see)"

    limits = interpreter.limits
    return dspy.Tool(
        python,
        name="python",
        desc=(
            "Runs a Python program; returns what it prints, and the value of its last expression. Every call starts "
            "anew, without the variables of earlier calls, so send a whole program. "
            f"{interpreter.abilities} Programs may take {limits.seconds:g} s and {limits.memory_mb} MB of memory."
        ),
        arg_desc={"code": "the program, as plain Python"},
    )
