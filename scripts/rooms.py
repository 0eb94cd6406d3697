"""Print which room of the package imports which, as its syntax trees say.

python scripts/rooms.py

A room is a folder of code; a module that stands beside rooms is one of its own. Every import
counts: at the top of a module, inside a function, or for types alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

__all__ = ["CODE", "ROOT", "circle", "graph", "modules", "room_of", "rooms"]

ROOT = Path(__file__).resolve().parent.parent
CODE = ("envs", "datasets", "policies", "algorithms", "benchmarks")
Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return every module of the package by its dotted name without ``trimtab.``."""
    found = {path.stem: path for path in (root / "src" / "trimtab").glob("*.py")}
    for folder in CODE:
        for path in (root / folder).rglob("*.py"):
            if not path.is_relative_to(root / "benchmarks" / "results"):  # scripts beside rows
                found[".".join(path.relative_to(root).with_suffix("").parts)] = path
    return dict(sorted(found.items()))


def graph(found: Mapping[str, Path]) -> Graph:
    """Return which modules each module imports, wherever in it."""
    return {name: set(_imported(path, found)) - {name} for name, path in found.items()}


def _imported(path: Path, found: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in _named(node):
            parts = name.split(".")[1:] if name.startswith("trimtab.") else []
            while parts and ".".join(parts) not in found:
                parts.pop()
            if parts:
                yield ".".join(parts)


def _named(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [f"{module}.{alias.name}" for alias in node.names]
    return []


def circle(edges: Graph) -> list[str]:
    """Return nodes that reach one another, the first of them also last; nothing if none do."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def room_of(module: str) -> str:
    """Return the room of a module: the folder below its top folder, or the module itself."""
    return ".".join(module.split(".")[:2])


def rooms(edges: Graph) -> Graph:
    """Return which rooms each room imports."""
    found: Graph = {}
    for module, imported in edges.items():
        mine = found.setdefault(room_of(module), set())
        mine |= {room_of(other) for other in imported} - {room_of(module)}
    return found


if __name__ == "__main__":
    for room, imported in sorted(rooms(graph(modules())).items()):
        sys.stdout.write(f"{room}: {', '.join(sorted(imported)) or 'nothing'}\n")
