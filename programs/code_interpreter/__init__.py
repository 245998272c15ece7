"""A Python interpreter for agents: programs run isolated and limited, and every breach comes back as a text.

from programs.code_interpreter import open_interpreter, python_tool

agent = dspy.ReAct("question -> answer", tools=[python_tool(open_interpreter())])
"""

from programs.code_interpreter.interpreter import CodeError, Interpreter, InterpreterUnavailableError
from programs.code_interpreter.limits import Limits
from programs.code_interpreter.opening import open_interpreter
from programs.code_interpreter.tool import python_tool

__all__ = ["CodeError", "Interpreter", "InterpreterUnavailableError", "Limits", "open_interpreter", "python_tool"]
