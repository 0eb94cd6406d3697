"""Read the imports of the package off its syntax trees, and draw its rooms from them.

python scripts/rooms.py            # writes docs/rooms.png
python scripts/rooms.py --list     # prints which room imports which, and by which modules

A room is a folder of code; a module that stands beside rooms is one of its own. Every import
counts: at the top of a module, inside a function, or for types alone.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch
from PIL import Image

__all__ = [
    "CODE", "PICTURE", "ROOT", "circles", "draw", "drawn", "drawn_in", "graph", "modules",
    "room_of", "rooms",
]  # fmt: skip

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "rooms.png"
CODE = ("envs", "datasets", "policies", "algorithms", "benchmarks")
COLOURS = {
    "envs": "#d7e8d4", "datasets": "#d3e4ee", "policies": "#e6daee",
    "algorithms": "#f3ddd3", "benchmarks": "#f1e9c9",
}  # fmt: skip
LINES = {
    "envs": "#4d8a45", "datasets": "#3f7da3", "policies": "#8a5fa8", "algorithms": "#b3653f",
    "benchmarks": "#a08a2c",
}  # fmt: skip
"""Colours of the lines, by the folder that imports."""
WIDE = 3.4
"""From one column to the next; a box is 2 wide."""
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


def drawn(edges: Graph) -> Graph:
    """Return the lines of the picture: the imports of each room that do not follow from others.

    The modules at the top of the package, which everything may import, are left out.
    """
    return _needed(_inside(edges))


def draw(edges: Graph, path: Path) -> None:
    """Draw the rooms as boxes, a column a top folder, and their imports as lines.

    A box stands above all that it imports; only two rooms that import each other, by different
    modules, have a line with two heads. Beside a column are the lines that pass other boxes of it.
    The picture's description holds what is drawn (``drawn_in``).
    """
    lines, places = drawn(edges), _places(_inside(edges))
    tall = max(y for _, y in places.values())
    figure, axes = plt.subplots(figsize=(WIDE * len(CODE), 0.75 * tall + 1.6))
    for room, imported in lines.items():
        for other in imported:
            (x, y), (to_x, to_y) = places[room], places[other]
            if y < to_y:  # the room above it draws both heads
                continue
            beside = x == to_x and y - to_y > 1
            axes.annotate(
                "", (to_x - 1.0, to_y) if beside else (to_x, to_y + 0.27),
                (x - 1.0, y) if beside else (x, y - 0.27), zorder=3 if beside else 1,
                arrowprops={
                    "arrowstyle": "<|-|>" if room in lines[other] else "-|>",
                    "connectionstyle": f"arc3,rad={0.9 / (y - to_y + 1)}" if beside else "arc3",
                    "color": LINES[room.partition(".")[0]], "lw": 0.8, "shrinkA": 0, "shrinkB": 0,
                },
            )  # fmt: skip
    for room, (x, y) in places.items():
        top, _, name = room.partition(".")
        axes.add_patch(
            FancyBboxPatch(
                (x - 1.0, y - 0.27), 2.0, 0.54, boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=COLOURS[top], edgecolor="#4b5563", linewidth=0.8, zorder=2,
            )
        )  # fmt: skip
        axes.text(x, y, name, ha="center", va="center", fontsize=10, zorder=3)
    for number, top in enumerate(CODE):
        axes.text(number * WIDE, tall + 0.75, f"{top}/", ha="center", fontsize=12, weight="bold")
    axes.set_xlim(-1.7, WIDE * len(CODE) - 1.9)
    axes.set_ylim(-0.5, tall + 1.1)
    axes.axis("off")
    told = json.dumps({room: sorted(imported) for room, imported in lines.items()})
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Description": told})
    plt.close(figure)


def drawn_in(path: Path) -> Graph:
    """Return what a picture's description says was drawn."""
    with Image.open(path) as picture:
        told = json.loads(picture.info["Description"])
    return {room: set(imported) for room, imported in told.items()}


def _inside(edges: Graph) -> Graph:
    return {
        room: {other for other in imported if "." in other}
        for room, imported in rooms(edges).items()
        if "." in room
    }


def _needed(between: Graph) -> Graph:
    """Return the imports that do not follow from others (a transitive reduction).

    Of rooms that reach one another none makes another's import needless: each would do so in turn.
    """
    together = {room: group[0] for group in circles(between) for room in group}

    def one_circle(*some: str) -> bool:
        return len({together.get(room, room) for room in some}) == 1

    def reached(room: str, seen: set[str]) -> set[str]:
        for other in between[room] - seen:
            seen.add(other)
            reached(other, seen)
        return seen

    return {
        room: {
            other
            for other in imported
            if not any(
                other in reached(third, set())
                for third in imported - {other}
                if not one_circle(third, room) and not one_circle(third, other)
            )
        }
        for room, imported in between.items()
    }


def _places(between: Graph) -> dict[str, tuple[float, float]]:
    """Return where each room stands: its top folder's column, and above all that it imports."""
    together = {room: group[0] for group in circles(between) for room in group}
    height: dict[str, int] = {}

    def of(room: str) -> int:
        """Count the rooms on the longest way down; rooms that reach one another share it."""
        head = together.get(room, room)
        if head not in height:
            group = [one for one in between if together.get(one, one) == head]
            below = {other for one in group for other in between[one]} - set(group)
            height[head] = 1 + max((of(other) for other in below), default=-1)
        return height[head]

    places: dict[str, tuple[float, float]] = {}
    free = dict.fromkeys(CODE, 0.0)
    for room in sorted(between, key=lambda room: (of(room), room)):
        top = room.partition(".")[0]
        below = [places[other][1] + 1 for other in between[room] if other in places]
        free[top] = max([free[top], *below])
        places[room] = (CODE.index(top) * WIDE, free[top])
        free[top] += 1.0
    return places


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
