"""How tests are handed to parallel workers: whole groups, and each test in one of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path


def test_a_group_is_a_file_or_a_family_of_it() -> None:
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("settings_of_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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
