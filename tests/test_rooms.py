"""The rooms of the house: who may import whom, no circle, nothing too large to be read."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from loading import load_module

ROOT = Path(__file__).resolve().parent.parent
LONGEST_FILE = 400
"""Lines of a file of code."""
LONGEST_FUNCTION = 60
"""Lines of a function's body, without its docstring."""
ORDER = (
    {"core"}, {"training"},
    {"suites", "board", "artefacts", "speed", "recipe_kinds", "contracts"}, {"cli", "api"},
)  # fmt: skip
"""The rooms of ``benchmarks/`` from the ground up; those of one set do not know one another."""


ROOMS = load_module(ROOT / "scripts" / "rooms.py")


@pytest.fixture(scope="module")
def edges() -> dict[str, set[str]]:
    """Which modules each module imports, also inside functions and for types alone."""
    found: dict[str, set[str]] = ROOMS.graph(ROOMS.modules())
    return found


def test_no_import_circle(edges: dict[str, set[str]]) -> None:
    assert len(edges) > 200
    assert ROOMS.circles(edges) == []


def test_a_circle_is_found_wherever_an_import_stands(tmp_path: Path) -> None:
    package = tmp_path / "src" / "trimtab"
    package.mkdir(parents=True)
    (tmp_path / "envs").mkdir()
    files = {
        "a": "from trimtab.envs.b import x",
        "b": "def f():\n    import trimtab.envs.c",
        "c": "if TYPE_CHECKING:\n    from trimtab.envs import a",
        "d": "from trimtab.envs.a import y",
    }
    for name, text in files.items():
        (tmp_path / "envs" / f"{name}.py").write_text(text)
    assert ROOMS.circles(ROOMS.graph(ROOMS.modules(tmp_path))) == [["envs.a", "envs.b", "envs.c"]]


def test_rooms_of_the_harness_know_only_those_below(edges: dict[str, set[str]]) -> None:
    level = {room: height for height, rooms in enumerate(ORDER) for room in rooms}
    inside = {module for module in edges if module.startswith("benchmarks.")}
    assert {module.split(".")[1] for module in inside} == set(level)
    wrong = [
        f"{module} imports {other}"
        for module in inside
        for other in edges[module] & inside
        if (mine := module.split(".")[1]) != (theirs := other.split(".")[1])
        and level[theirs] >= level[mine]
    ]
    assert not wrong


def test_rooms_of_environments_know_only_those_below(edges: dict[str, set[str]]) -> None:
    order = ["envs.core", "envs.registry", "envs.engines", "envs.families", "envs.vector"]
    for module, imported in edges.items():
        mine = ROOMS.room_of(module)
        if mine in order:
            above = set(order[order.index(mine) + 1 :])
            assert not above & {ROOMS.room_of(other) for other in imported}, module


def _code() -> list[Path]:
    scripts = (ROOT / "scripts").rglob("*.py")
    return [*ROOMS.modules().values(), *scripts]


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every function of a file with the lines of its body, docstring left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1:2] if ast.get_docstring(node) is not None else node.body
            lines = (node.end_lineno or 0) - first[0].lineno + 1 if first else 0
            yield node.name, lines


def test_files_and_functions_that_are_long_are_listed() -> None:
    """A limit that fails makes people squeeze lines; a list makes them think of a better cut."""
    found = {}
    for path in _code():
        name = path.relative_to(ROOT).as_posix()
        found[name] = len(path.read_text(encoding="utf-8").splitlines())
        for function, lines in _functions(path):
            found[f"{name}:{function}"] = lines
    assert len(found) > 1000
    long = {
        name: lines
        for name, lines in found.items()
        if lines > (LONGEST_FUNCTION if ":" in name else LONGEST_FILE)
    }
    if long:
        told = ", ".join(f"{name} ({lines} lines)" for name, lines in sorted(long.items()))
        warnings.warn(f"cut these where a reader would: {told}", stacklevel=1)


def reached(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what each node reaches."""
    found = {node: set(others) for node, others in edges.items()}
    for middle in found:
        for node in found:
            if middle in found[node]:
                found[node] |= found[middle]
    return found


def test_the_picture_has_every_room_above_those_that_it_imports(
    edges: dict[str, set[str]], tmp_path: Path
) -> None:
    ROOMS.draw(edges, tmp_path / "rooms.png")
    lines = ROOMS.drawn(edges)
    assert ROOMS.drawn_in(tmp_path / "rooms.png") == lines
    places = ROOMS._places(ROOMS._inside(edges))
    assert places.keys() == lines.keys() == {room for room in ROOMS.rooms(edges) if "." in room}
    assert len(set(places.values())) == len(places)
    assert reached(lines) == reached(ROOMS._inside(edges))
    up = [(room, other) for room in lines for other in lines[room]
          if places[other][1] >= places[room][1]]  # fmt: skip
    assert not up


def test_the_committed_picture_is_of_the_rooms_as_they_are(edges: dict[str, set[str]]) -> None:
    """Apart from lines between algorithms: a new method may use what none of its room did."""
    now, then = ROOMS.drawn(edges), ROOMS.drawn_in(ROOMS.PICTURE)
    redraw = "run python scripts/rooms.py, look at the picture and commit it"
    assert now.keys() == then.keys(), redraw
    assert all(now[room] == then[room] for room in now if not room.startswith("algorithms.")), (
        redraw
    )
