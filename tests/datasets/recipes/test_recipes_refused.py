"""Recipes with wrong settings, controllers, parts or runs are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loading import load_module

from trimtab.benchmarks.training.data.recipes import make_dataset
from trimtab.types import TrimtabError

recipe = load_module(Path(__file__).with_name("changed.py")).recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"of": []}, "must be a list of recipes' names"),
        ({"of": ["push_noise"]}, "dataset=push_noise: there is no such dataset"),
        ({"of": ["two_routes"]}, "two_routes has env robotics/PointMaze-TwoRoutes-v0, not"),
    ],
)
def test_a_recipe_of_wrong_ones_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    whole = {"id": "trimtab/both-v0", "env": "metaworld/push-v3", "env_options": {}, **changes}
    with pytest.raises(TrimtabError, match=message):
        make_dataset(whole, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 5}, "either dataset.episodes or dataset.steps"),
        ({"episodes": None}, "either dataset.episodes or dataset.steps"),
        ({"episodes": 0}, "dataset.episodes=0: must be a whole number of at least 1"),
        ({"episodes": None, "steps": 1.5}, "dataset.steps=1.5: must be a whole number"),
        ({"seed": None}, "dataset.seed=None: must be a whole number"),
        ({"only_successful": "maybe"}, "dataset.only_successful=maybe: must be true or false"),
        ({"id": 5}, "dataset.id=5: must be given, as text"),
        ({"env": ["a"]}, "must be given, as text"),
        ({"env_options": 5}, "dataset.env_options=5: must be a mapping"),
        ({"env_options": {1: 2, "a": 3}}, "env_options: 1 is no option"),
        ({"env_options": {"id": 3}}, "env_options: 'id' is no option"),
    ],
)
def test_a_wrong_setting_is_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=message) as error:
        make_dataset(recipe("two_routes", **changes), tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("two_routes", 3, "dataset.controller=3: must name a class"),
        ("two_routes", None, "dataset.controller=None: must name a class"),
        ("two_routes", {"_target_": "nothing"}, "_target_=nothing: must be a class"),
        ("two_routes", {"_target_": "no.Thing"}, r"_target_=no.Thing: cannot be imported \(Mod"),
        ("two_routes", {"_target_": "os.system"}, "_target_=os.system: is no class"),
        ("two_routes", {"_target_": "builtins.dict"}, "_target_=builtins.dict: is no controller"),
        ("two_routes", {"noise": "x"}, "dataset.controller.noise=x: must be a number"),
        ("two_routes", {"noise": float("nan")}, "dataset.controller.noise=nan: must be a number"),
        ("two_routes", {"noise": -0.1}, "dataset.controller.noise=-0.1: must be at least 0"),
        ("two_routes", {"noise_levels": [0.1]}, "noise_levels"),
        ("two_routes", {"routes": [[[0, float("inf")]]]}, "controller.routes=.* must be finite"),
        ("two_routes", {"routes": []}, "its controller cannot act with these settings"),
        ("two_routes", {"extra": 1}, "its controller cannot act with these settings"),
        ("hopper_medium", {"policies": [5]}, r"controller.policies=\[5\]: must be a list"),
        ("hopper_medium", {"policies": 5}, "controller.policies=5: must be a list"),
        ("hopper_medium", {"policies": "hopper/ppo-200000"}, "must be a list"),
        ("hopper_medium", {"policies": ["walker2d/ppo-100000"]}, r"\(1, 11\); the policy reads"),
        (
            "two_routes",
            {"_target_": "trimtab.benchmarks.training.data.behaviour.BehaviourPolicy"},
            "cannot act",
        ),
    ],
)
def test_a_wrong_controller_is_one_line(
    name: str, changes: Any, message: str, tmp_path: Path
) -> None:
    wanted = recipe(name, episodes=1, steps=None)
    if isinstance(changes, dict):
        changes = {**wanted["controller"], **changes}
    with pytest.raises(TrimtabError, match=message) as error:
        make_dataset({**wanted, "controller": changes}, tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_replay_recipe_of_an_on_policy_run_is_refused(tmp_path: Any) -> None:
    words = ["algorithm=ppo", "online_steps=64", "algorithm.rollout_steps=32", "eval_episodes=1"]
    with pytest.raises(TrimtabError, match="keeps no replay buffer"):
        make_dataset({**recipe("hopper_replay"), "run": words}, tmp_path)
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (5, "must be a list of words"),
        ([3], "must be a list of words"),
        (["algorithm=sac", "env=gym/Ant-v5"], "env=gym/Ant-v5 is not the run's to say"),
        (["algorithm=sac", "+seed=5"], "is not the run's to say"),
        (["algorithm=sack"], "did you mean"),
        (["algorithm=sac", "online_steps=0"], "keeps no replay buffer"),
    ],
)
def test_a_replay_recipe_with_a_wrong_run_is_one_line(words: Any, told: str, tmp_path: Any) -> None:
    with pytest.raises(TrimtabError, match=told) as error:
        make_dataset({**recipe("hopper_replay"), "run": words}, tmp_path)
    assert "\n" not in str(error.value)
