"""How tests are handed to parallel workers: whole groups, and each test in one of them."""

from __future__ import annotations

import collections
import importlib.metadata
import importlib.util
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="module")
def module() -> Any:
    """The settings of all tests."""
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("settings_of_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_group_is_a_file_or_a_family_of_it(module: Any) -> None:
    path = Path(__file__).with_name("conftest.py")
    contract = "tests/envs/test_contract.py"
    assert module.group_of(f"{contract}::test_a[gym/Ant-v5]") == "envs/test_contract.py[gym]"
    assert module.group_of(f"{contract}::test_b[gym/Ant-v5-2]") == "envs/test_contract.py[gym]"
    assert module.group_of(f"{contract}::test_a") == "envs/test_contract.py"
    assert module.group_of("tests/envs/test_robosuite.py::test_d") == f"{contract[6:]}[robosuite]"
    recipes = "tests/datasets/recipes/test_recipes.py"
    played = f"{recipes}::test_every_recipe_plays"
    assert module.group_of(f"{played}[robosuite_lift]") == f"{contract[6:]}[robosuite]"
    assert module.group_of(f"{played}[two_routes]") == recipes[6:]
    assert module.group_of("tests/test_conf.py::test_c[policy/flow]") == "test_conf.py"
    recorded = json.loads(path.with_name("durations.json").read_text(encoding="utf-8"))
    assert recorded.keys() >= module.WAITING
    for group in recorded:  # none of a file that is gone
        assert (path.parent / group.partition("[")[0]).is_file(), group
    for member in module.TOGETHER:  # nor of a test
        file, _, test = member.partition("[")[0].partition("::")
        text = (path.parent / file).read_text(encoding="utf-8")
        assert not test or f"\ndef {test}(" in text, member


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ((), []),
        (("robosuite",), ["robosuite/ (needs robosuite)"]),
        (
            ("shapely", "dm-control"),
            ["dmc/ (needs dm-control); ogbench/ (needs dm-control); pusht/ (needs shapely)"],
        ),
    ],
)
def test_missing_families_are_named_at_the_end(
    module: Any, monkeypatch: pytest.MonkeyPatch, gone: tuple[str, ...], told: list[str]
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in gone:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    lines: list[str] = []
    module.pytest_terminal_summary(SimpleNamespace(write_line=lambda line, **_: lines.append(line)))
    assert lines == [f"families that are missing: {families}" for families in told]


class Node:
    """Stands for a worker: does its tests one after another, and keeps the last until it has more.

    Args:
        number: that of the worker.
    """

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.left = collections.deque[int]()
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.left.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_go_on(self) -> bool:
        return len(self.left) > 1 or (self.shutting_down and bool(self.left))


def started(module: Any, tests: list[str], count: int) -> tuple[Any, list[Node]]:
    """Return the scheduler of some workers that have been given their first tests, and those."""
    config = SimpleNamespace(
        getvalue={"dist": "loadgroup", "tx": ["popen"] * count}.__getitem__,
        option=SimpleNamespace(loadscopereorder=False),
        hook=SimpleNamespace(pytest_collectreport=None),
    )
    quiet = SimpleNamespace(loadscopesched=lambda *_: None)
    groups = module.pytest_xdist_make_scheduler(config, quiet)
    nodes = [Node(number) for number in range(count)]
    for node in nodes:
        groups.add_node(node)
        groups.add_node_collection(node, tests)
    groups.schedule()
    return groups, nodes


def test_a_third_worker_is_given_what_waits(module: Any) -> None:
    names = [f"test_{number}.py" for number in range(9)] + sorted(module.WAITING)[:4]
    tests = [f"tests/{name}::test_{number}" for name in names for number in range(3)]
    groups, nodes = started(module, tests, 3)
    ran: dict[Node, list[str]] = {node: [] for node in nodes}
    while going := [node for node in nodes if node.can_go_on]:
        for node in going:
            test = node.left.popleft()
            ran[node].append(module.group_of(tests[test]))
            groups.mark_test_complete(node, test)
    assert {*ran[nodes[2]]} == module.WAITING & {*names}
    assert all(not module.WAITING & {*ran[node]} for node in nodes[:2])
    assert sum(map(len, ran.values())) == len(tests)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_every_group_is_run_also_where_workers_crash(count: int, crashes: int, module: Any) -> None:
    """In random orders; another worker comes in the place of one that crashed in a test."""
    for case in range(20):
        dice = random.Random(f"{case} of {count} and {crashes}")
        names = [f"test_{number}.py" for number in range(dice.randint(1, 12))]
        names += dice.sample(sorted(module.WAITING), dice.randint(0, 6))
        tests = [f"tests/{name}::test_{n}" for name in names for n in range(dice.randint(1, 4))]
        groups, nodes = started(module, tests, count)
        done, left = collections.Counter[str](), crashes
        while going := [node for node in nodes if node.can_go_on]:
            node = dice.choice(going)
            if left and dice.random() < 0.15:
                left -= 1
                nodes.remove(node)
                assert groups.remove_node(node) == tests[node.left[0]]  # which is run once more
                nodes.append(Node(count + crashes - left))
                groups.add_node(nodes[-1])
                groups.add_node_collection(nodes[-1], tests)
                groups.schedule()
                continue
            test = node.left.popleft()
            done[tests[test]] += 1
            groups.mark_test_complete(node, test)
        assert done == collections.Counter(tests), (case, names)
        assert groups.tests_finished
