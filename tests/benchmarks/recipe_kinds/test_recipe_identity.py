"""What a recipe's dataset is known by: what decides it, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import runpy
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.training.data import recipes
from trimtab.benchmarks.training.data.behaviour import BehaviourPolicy, behaviour_folder
from trimtab.benchmarks.training.data.recipes import (
    definition,
    definition_digest,
    is_recipe,
    recipe_identity,
)
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.settings.groups import group_options, load_group
from trimtab.datasets.catalog import made_datasets
from trimtab.datasets.recipes.waypoints import WaypointController
from trimtab.files import sha256_json

PUBLISHED = {
    "fetch_reach": "caad701049",
    "hopper_medium": "20e4f92fc7",
    "hopper_replay": "cf4bb59739",
    "push_noisy": "feecae93dc",
    "robosuite_lift": "a6ca8cb8d4",
    "two_routes": "0116617856",
    "walker2d_medium_expert": "890ee808f2",
}
"""Digests of version 0.1, when they still hung on the bytes of the controllers' files."""


def recipe(name: str, **changes: Any) -> dict[str, Any]:
    return {**load_group("dataset", name), **changes}


def identity(wanted: dict[str, Any]) -> str:
    return recipe_identity(wanted, Path("runs"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_keeps_its_digits(name: str) -> None:
    assert identity(recipe(name)) == PUBLISHED[name]


def test_the_catalogue_has_every_recipes_definition() -> None:
    made = made_datasets()
    for name in filter(is_recipe, group_options("dataset")):
        told = f"run `python scripts/catalogue.py runs {name}` and commit datasets/made.yaml"
        assert made[name]["definition"] == definition_digest(recipe(name), Path("runs")), told
    identities = [row["identity"] for row in made.values()]
    assert len(set(identities)) == len(identities)


def test_where_a_controller_is_written_is_not_in_its_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same class under another path, as after a file was moved, and with other bytes."""
    before = identity(recipe("two_routes"))
    module = type(sys)("trimtab.elsewhere")
    module.Renamed = WaypointController  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trimtab.elsewhere", module)
    monkeypatch.setattr(inspect, "getsourcefile", lambda kind: "no file of ours is read")
    moved = {**recipe("two_routes")["controller"], "_target_": "trimtab.elsewhere.Renamed"}
    assert identity(recipe("two_routes", controller=moved)) == before


def test_defaults_that_are_spelt_out_change_nothing() -> None:
    short = recipe("two_routes")
    spelt = {**short["controller"], "reached": 0.3, "derivative": 0.5, "spread": [0.0, 0.0]}
    assert identity({**short, "controller": spelt, "steps": None}) == identity(short)
    del short["only_successful"]
    assert identity(short) == identity({**short, "only_successful": False})
    options = {"horizon": 150, "reward": "sparse", "terminate_on_success": True}
    assert identity(recipe("push_noisy", env_options=options)) == PUBLISHED["push_noisy"]


def test_a_number_without_its_point_is_the_same_number() -> None:
    settings = recipe("two_routes")["controller"]
    assert isinstance(settings["noise"], float)
    ones = [recipe("two_routes", controller={**settings, "noise": one}) for one in (1, 1.0)]
    assert identity(ones[0]) == identity(ones[1]) != identity(recipe("two_routes"))


def test_where_a_policy_lies_is_not_in_a_datasets_identity(tmp_path: Path) -> None:
    """Its weights are: a copy of a bundle in another folder makes the same data."""
    settings = recipe("hopper_medium")["controller"]
    policies = [behaviour_folder(name) for name in settings["policies"]]
    found = set()
    for place in (tmp_path / "here", tmp_path / "there"):
        copies = [str(shutil.copytree(one, place / one.name)) for one in policies]
        wanted = recipe("hopper_medium", controller={**settings, "policies": copies})
        found.add(identity(wanted))
    assert len(found) == 1


def test_all_that_decides_a_dataset_is_in_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    short = recipe("two_routes")
    slower = {**short["controller"], "reached": 0.2}
    seen = [
        identity(changed)
        for changed in (
            short,
            {**short, "seed": 1},
            {**short, "episodes": 399},
            {**short, "only_successful": False},
            {**short, "id": "trimtab/two-routes-v1"},
            {**short, "env_options": {"horizon": 50}},
            {**short, "controller": slower},
        )
    ]
    monkeypatch.setattr(WaypointController, "revision", 2)
    seen.append(identity(short))
    monkeypatch.undo()
    weights = ["of a policy that was trained longer"]
    monkeypatch.setattr(BehaviourPolicy, "identity", staticmethod(lambda settings: weights))
    seen += [identity(recipe("hopper_medium")), identity(recipe("hopper_medium_expert"))]
    assert len(set(seen)) == len(seen)
    assert not set(seen[1:]) & {row["identity"] for row in made_datasets().values()}


def test_other_physics_are_another_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    known = recipes.get_spec
    monkeypatch.setattr(
        recipes, "get_spec", lambda *a, **k: replace(known(*a, **k), fingerprint="other")
    )
    assert identity(recipe("two_routes")) != PUBLISHED["two_routes"]


def test_identities_are_digests_of_definitions_that_are_json() -> None:
    wanted = recipe("fetch_reach", seed=5)
    found = definition(wanted, Path("runs"))
    assert identity(wanted) == sha256_json(found)[:10]
    assert found["controller"]["acts"] == [{"name": "reach", "revision": 1}]
    assert found["controller"]["settings"]["gain"] == 8.0  # left to the controller


def test_a_strangers_controller_is_known_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from trimtab.datasets.recipes.waypoints import WaypointController

        class Mine(WaypointController):
            strength = {strength}
    """
    monkeypatch.syspath_prepend(tmp_path)
    controller = {**recipe("two_routes")["controller"], "_target_": "strangers.Mine"}
    wanted = recipe("two_routes", controller=controller)
    seen = []
    for strength in (1, 2, 1):
        (tmp_path / "strangers.py").write_text(textwrap.dedent(code.format(strength=strength)))
        importlib.invalidate_caches()
        sys.modules.pop("strangers", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        seen.append(identity(wanted))
    assert seen[0] == seen[2] != seen[1]
    assert "0116617856" not in seen
    monkeypatch.setattr(WaypointController, "revision", 2)  # its parent is a part of it
    assert identity(wanted) != seen[2]


def test_every_controller_has_a_name_of_its_own_and_a_revision() -> None:
    files = [load_group("dataset", name) for name in group_options("dataset")]
    targets = {file["controller"]["_target_"] for file in files if "controller" in file}
    kinds: list[Any] = [class_of(target, "controller") for target in targets]
    assert len({kind.name for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert {"name", "revision"} <= set(vars(kind)) and kind.revision >= 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--help"], 0, "usage: catalogue.py"),
        (["runs", "two_rotes"], 2, "catalogue: two_rotes is no recipe; did you mean two_routes?\n"),
    ],
)
def test_the_catalogues_script_answers_words_that_make_nothing(
    words: list[str], code: int, told: str, root: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["catalogue.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(root / "scripts" / "catalogue.py"), run_name="__main__")
    shown = capsys.readouterr()
    assert ended.value.code == code
    assert (shown.out + shown.err).startswith(told)
