"""Trained policies as controllers, and the learned tiers that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.benchmarks.training.data.behaviour import BehaviourPolicy, behaviour_folder
from trimtab.benchmarks.training.data.published import beginning_problem, beginnings
from trimtab.benchmarks.training.data.recipes import recipe_folder
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.envs.registry import list_tasks
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.processor import processor_kind
from trimtab.types import TrimtabError

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def script() -> Any:
    return load_module(ROOT / "benchmarks" / "results" / "tiers" / "tiers.py")


TABLE: dict[str, Any] = json.loads(
    (ROOT / "benchmarks" / "results" / "tiers" / "tiers.json").read_text()
)


def controller(seed: int = 0, **settings: Any) -> BehaviourPolicy:
    settings = {"policies": ["hopper/ppo-200000"], **settings}
    return BehaviourPolicy("", np.random.default_rng(seed), **settings)


@pytest.mark.bits
def test_without_noise_it_acts_as_the_policy_is_judged() -> None:
    policy = load_bundle(behaviour_folder("hopper/ppo-200000")).policy
    obs = np.random.default_rng(1).normal(size=(5, 11)).astype(np.float32)
    expected = policy.act(torch.from_numpy(obs), deterministic=True)[:, 0].numpy()
    acts = [controller(noise_scale=0.0).act(row) for row in obs]
    np.testing.assert_allclose(acts, expected, rtol=1e-5, atol=1e-6)


def test_its_noise_has_the_size_that_is_asked_for() -> None:
    several = np.random.default_rng(1).normal(size=(200, 11)).astype(np.float32)
    still, less, more = (
        np.array([controller(noise_scale=scale).act(obs) for obs in several])
        for scale in (0.0, 0.01, 0.02)
    )
    free = np.abs(still) < 0.9  # not at a limit, where noise is cut off
    assert free.sum() > 100 and (np.abs(less - still)[free] > 1e-5).all()
    np.testing.assert_allclose((more - still)[free], 2 * (less - still)[free], rtol=0.01)


def test_each_episode_has_one_of_its_policies() -> None:
    names = ["hopper/ppo-50000", "hopper/ppo-200000"]
    firsts = {
        controller(seed, policies=names, noise_scale=0.0).act(np.zeros(11, np.float32)).tobytes()
        for seed in range(20)
    }
    assert len(firsts) == 2


def test_wrong_policies_are_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="hopper/ppo-1: neither a bundle nor one of .*hopper/"):
        controller(policies=["hopper/ppo-1"])
    with pytest.raises(TrimtabError, match="name at least one"):
        controller(policies=[])


@pytest.mark.bits
def test_other_weights_are_another_dataset(tmp_path: Path) -> None:
    recipe = load_group("dataset", "hopper_medium")
    folder = recipe_folder(recipe, tmp_path)
    other = {**recipe["controller"], "policies": [str(behaviour_folder("hopper/ppo-200000"))]}
    assert BehaviourPolicy.identity(other) == BehaviourPolicy.identity(recipe["controller"])
    changed = {**recipe["controller"], "policies": ["hopper/ppo-150000"]}
    assert BehaviourPolicy.identity(changed) != BehaviourPolicy.identity(recipe["controller"])
    assert recipe_folder({**recipe, "controller": changed}, tmp_path) != folder


def test_the_table_has_every_tier(script: Any) -> None:
    assert list(TABLE["tiers"]) == script.tiers()
    assert len(TABLE["tiers"]) == 15


@pytest.mark.bits
@pytest.mark.parametrize(
    "name", [name for name, row in TABLE["tiers"].items() if "beginning" in row]
)
def test_a_tier_begins_as_committed(name: str, script: Any) -> None:
    again = script.first_episodes(name)
    assert beginning_problem(name, again.episodes[0]) is None and name in beginnings()
    if TABLE["processor"] == processor_kind():
        assert again.content_hash == TABLE["tiers"][name]["beginning"]


@pytest.mark.parametrize("env", TABLE["references"])
def test_scores_are_normalised_with_what_was_measured(env: str) -> None:
    measured = TABLE["references"][env]
    expected = (measured["random"]["mean"], measured["expert"]["mean"])
    assert list_tasks()[env].score_references["trimtab-v0"] == expected
    assert measured["random"]["high"] < measured["expert"]["low"]


def test_the_page_is_made_from_the_table(script: Any) -> None:
    page = (ROOT / "benchmarks" / "results" / "tiers" / "tiers.md").read_text()
    assert page == script.page(TABLE)
