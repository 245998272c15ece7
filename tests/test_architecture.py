"""Data goes one way: a file imports only from rooms that stand above its own. The optimizer alone sees everything."""

from __future__ import annotations

import ast
from pathlib import Path

import tgrpo_dspy

PACKAGE = Path(tgrpo_dspy.__file__).parent
ROOMS = (
    "errors",
    "text",
    "settings",
    "cloning",
    "library",
    "records",
    "runs",
    "sampling",
    "reflection",
    "evaluation",
    "learning",
    "loop",
    "estimation",
    "views",
    "optimizer",
    "cli",
    "__main__",
    "testing",
)


def room(module: str) -> str:
    return module.removeprefix("tgrpo_dspy.").split(".")[0]


def imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.startswith("tgrpo_dspy.")}


def test_every_file_imports_only_from_rooms_above_its_own() -> None:
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if parts == ("__init__",):
            continue
        own = ROOMS.index(parts[0])
        wrong += [f"{'/'.join(parts)} imports {name}" for name in imports(file) if ROOMS.index(room(name)) > own]
    assert wrong == []


def test_every_room_is_listed() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} == set(ROOMS)


def test_the_package_exports_what_it_says() -> None:
    assert sorted(tgrpo_dspy.__all__) == sorted(set(tgrpo_dspy.__all__))
    assert all(hasattr(tgrpo_dspy, name) for name in tgrpo_dspy.__all__)
