"""How often a program calls its parts in one run, read from its modules."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import dspy

# A loop's rounds are not known before it runs.
_ROUNDS = 5
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# DSPy's modules that call a part more than once, by class name: some leave DSPy with 3.5. A sub-LM's answer counts as
# an action more, and the advice that Refine asks for between two attempts as an attempt more.
_AGENTS: Mapping[str, Callable[[Any], Mapping[str, tuple[int, int]]]] = {
    "ReAct": lambda m: {"react": (1, m.max_iters), "extract": (1, 1)},
    "ReActV2": lambda m: {"react": (1, m.max_iters + 1)},
    "CodeAct": lambda m: {"codeact": (1, m.max_iters), "extractor": (1, 1)},
    "ProgramOfThought": lambda m: {
        "code_generate": (1, 1),
        "code_regenerate": (0, m.max_iters - 1),
        "generate_output": (1, 1),
    },
    "RLM": lambda m: {"generate_action": (1, m.max_iters + m.max_llm_calls), "extract": (0, 1)},
    "BestOfN": lambda m: {"module": (1, m.N)},
    "Refine": lambda m: {"module": (1, 2 * m.N - 1)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A module inside another, and how often a run of the outer one calls it.

    Args:
        turns: how many earlier turns it is shown of what the outer module did, on average at most.
    """

    module: dspy.Module
    fewest: int
    most: int
    turns: int = 1


def parts(module: dspy.Module) -> list[Part]:
    """The modules a module is made of.

    Where the code does not say that a part runs, its ``fewest`` is 0; then one of them runs at least.
    """
    agent = _agent(module)
    if agent is None:
        uses = _uses(type(module))
        children = list(_children(module))
        fewest = int(len(children) == 1)
        return [Part(module=child, fewest=fewest, most=max(1, uses[name])) for name, child in children]
    longest = max(most for _, most in agent.values())
    return [
        # Part of a loop, it sees half of the turns on average.
        Part(module=part, fewest=fewest, most=most, turns=longest if most == 1 else (longest + 1) // 2)
        for name, (fewest, most) in agent.items()
        if isinstance(part := getattr(module, name, None), dspy.Module)
    ]


def loops(program: dspy.Module) -> list[str]:
    """Names of the program's own classes that call their parts in a loop, or whose code cannot be read."""
    kinds = {type(module): None for _, module in program.named_sub_modules() if list(_children(module))}
    return [kind.__name__ for kind in kinds if not _is_dspys(kind) and _loops(kind)]


def _agent(module: dspy.Module) -> Mapping[str, tuple[int, int]] | None:
    for kind in type(module).__mro__:
        if _is_dspys(kind) and kind.__name__ in _AGENTS:
            return _AGENTS[kind.__name__](module)
    return None


def _children(module: dspy.Module) -> Iterator[tuple[str, dspy.Module]]:
    """The modules in a module's attributes, each once, with the attribute's name."""
    seen: set[int] = set()
    for name, value in vars(module).items():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for item in items:
            if isinstance(item, dspy.Module) and id(item) not in seen:
                seen.add(id(item))
                yield name, item


def _uses(kind: type) -> Counter[str]:
    """How often one method names each attribute at most; in a loop, as often as it may go round."""
    most: Counter[str] = Counter()
    for method in _methods(kind) or ():
        most |= _mentions(method)
    return most


def _mentions(node: ast.AST, times: int = 1) -> Counter[str]:
    found: Counter[str] = Counter()
    if isinstance(node, ast.Attribute) and _is_self(node.value):
        found[node.attr] += times
    for child in ast.iter_child_nodes(node):
        found += _mentions(child, _ROUNDS if isinstance(node, _LOOPS) else times)
    return found


def _loops(kind: type) -> bool:
    methods = _methods(kind)
    if methods is None:
        return True
    nodes = (node for method in methods for node in ast.walk(method) if isinstance(node, _LOOPS))
    return any(_is_self(inner) for node in nodes for inner in ast.walk(node))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@cache
def _methods(kind: type) -> list[ast.AST] | None:
    """The methods a class has from its authors, constructors aside; None when their code cannot be read."""
    own = [base for base in kind.__mro__ if issubclass(base, dspy.Module) and not _is_dspys(base)]
    try:
        trees = [ast.parse(textwrap.dedent(inspect.getsource(base))) for base in own]
    except (OSError, TypeError, SyntaxError):
        return None
    bodies = [node for tree in trees for node in ast.iter_child_nodes(tree.body[0])]
    functions = [node for node in bodies if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [function for function in functions if function.name != "__init__"]


def _is_dspys(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "dspy"
