"""Read the imports of the package off its syntax trees, and draw its rooms from them.

python scripts/rooms.py            # writes docs/rooms.png
python scripts/rooms.py --list     # prints which room imports which, and by which modules

A room is a folder of code; a module that stands beside rooms is one of its own. Every import
counts: at the top of a module, inside a function, or for types alone.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

__all__ = ["CODE", "ROOT", "circles", "draw", "graph", "modules", "room_of", "rooms"]

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "rooms.png"
CODE = ("envs", "datasets", "policies", "algorithms", "benchmarks")
COLOURS = {
    "": "#e9e4d8", "envs": "#d7e8d4", "datasets": "#d3e4ee", "policies": "#e6daee",
    "algorithms": "#f3ddd3", "benchmarks": "#f1e9c9",
}  # fmt: skip
Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return every module of the package by its dotted name without ``trimtab.``."""
    found = {path.stem: path for path in (root / "src" / "trimtab").glob("*.py")}
    for folder in CODE:
        for path in (root / folder).rglob("*.py"):
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


def circles(edges: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach one another (Tarjan's strong components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in edges:
        if node not in index:
            visit(node)
    return found


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


def draw(edges: Graph, path: Path) -> None:
    """Draw the rooms as boxes, from the ground up, and their imports as lines."""
    between = rooms(edges)
    levels = _levels(between)
    sizes = {room: sum(room_of(module) == room for module in edges) for room in between}
    figure, axes = plt.subplots(figsize=(13, 1.15 * len(levels) + 0.6))
    places: dict[str, tuple[float, float]] = {}
    for height, level in enumerate(levels):
        for number, room in enumerate(level):
            places[room] = ((number + 0.5) / len(level) * 13, height * 1.15)
    for room, imported in between.items():
        for other in imported:
            (x, y), (to_x, to_y) = places[room], places[other]
            axes.plot([x, to_x], [y, to_y], color="#7a8796", linewidth=0.6, alpha=0.35, zorder=1)
    for room, (x, y) in places.items():
        top, _, name = room.rpartition(".")
        width = 13 / max(len(level) for level in levels) * 0.94
        box = (x - width / 2, y - 0.3)
        axes.add_patch(
            FancyBboxPatch(
                box, width, 0.6, boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=COLOURS[top], edgecolor="#4b5563", linewidth=0.8, zorder=2,
            )
        )  # fmt: skip
        several = f"\n{sizes[room]} files" if sizes[room] > 1 else ""
        label = f"{top}/{name}" if top else name
        axes.text(x, y, label + several, ha="center", va="center", fontsize=7.5, zorder=3)
    axes.set_xlim(0, 13)
    axes.set_ylim(-0.6, (len(levels) - 1) * 1.15 + 0.6)
    axes.axis("off")
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def _levels(between: Graph) -> list[list[str]]:
    """Return the rooms from the ground up: each stands above all that it imports.

    Rooms that reach one another, such as a folder and the module that is its door, share a level.
    """
    together = {room: group[0] for group in circles(between) for room in group}
    height: dict[str, int] = {}

    def of(room: str) -> int:
        head = together.get(room, room)
        if head not in height:
            group = [one for one in between if together.get(one, one) == head]
            below = {other for one in group for other in between[one]} - set(group)
            height[head] = 1 + max((of(other) for other in below), default=-1)
        return height[head]

    levels: list[list[str]] = []
    for room in sorted(between, key=lambda room: (of(room), room)):
        while len(levels) <= of(room):
            levels.append([])
        levels[of(room)].append(room)
    return levels


def main() -> int:
    """Write the picture, or print what it is drawn from."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the rooms' imports")
    edges = graph(modules())
    if parser.parse_args().list:
        for room, imported in sorted(rooms(edges).items()):
            sys.stdout.write(f"{room}: {', '.join(sorted(imported)) or 'nothing'}\n")
        return 0
    draw(edges, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
