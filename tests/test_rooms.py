"""The rooms of the package: which may import which, and no circle of imports."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import load_module

ROOT = Path(__file__).resolve().parent.parent
ORDER = (
    {"core"}, {"training"},
    {"suites", "board", "artefacts", "speed", "recipe_kinds", "contracts"}, {"api"}, {"cli"},
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
    assert ROOMS.circle(edges) == []


def test_no_two_rooms_import_each_other(edges: dict[str, set[str]]) -> None:
    found = ROOMS.rooms(edges)
    inside = {room: others & found.keys() for room, others in found.items() if "." in room}
    assert len(inside) > 30
    assert ROOMS.circle(inside) == []


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
    found = ROOMS.circle(ROOMS.graph(ROOMS.modules(tmp_path)))
    assert {*found} == {"envs.a", "envs.b", "envs.c"}


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
