"""Recipes: the same seed makes the same bytes, and the demonstrations are what they claim to be."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from hydra.utils import get_class
from loading import load_module

from trimtab.benchmarks.training.data.published import (
    beginning_problem,
    beginnings,
    made_on_this_kind,
)
from trimtab.benchmarks.training.data.recipes import (
    is_recipe,
    make_dataset,
    recipe_digest,
    recipe_folder,
)
from trimtab.benchmarks.training.data.recording import Stage, dataset_of
from trimtab.benchmarks.training.settings.groups import group_options, load_group
from trimtab.datasets.catalog import made_datasets
from trimtab.datasets.episodes import Dataset, validate
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.recipes.maze_planner import shortest_path
from trimtab.datasets.recipes.metaworld_expert import MetaWorldExpert
from trimtab.datasets.recipes.waypoints import WaypointController
from trimtab.envs.registry import get_spec, make
from trimtab.types import TrimtabError

pytestmark = pytest.mark.bits

recipe = load_module(Path(__file__).with_name("changed.py")).recipe
SMALL = {"two_routes": 4, "push_noisy": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """A few episodes of each recipe."""
    out = tmp_path_factory.mktemp("made")
    return {name: make_dataset(recipe(name, episodes=count), out) for name, count in SMALL.items()}


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_makes_the_same_bytes(
    name: str, made: dict[str, Dataset], tmp_path: Any
) -> None:
    again = make_dataset(recipe(name, episodes=SMALL[name]), tmp_path)
    assert again.content_hash == made[name].content_hash
    other = make_dataset(recipe(name, episodes=SMALL[name], seed=1), tmp_path)
    assert other.content_hash != made[name].content_hash


@pytest.mark.parametrize("name", SMALL)
def test_more_episodes_begin_with_the_same_ones(
    name: str, made: dict[str, Dataset], tmp_path: Any
) -> None:
    (first,) = make_dataset(recipe(name, episodes=1), tmp_path).episodes
    for key, array in first.arrays().items():
        np.testing.assert_array_equal(array, made[name].episodes[0].arrays()[key])


@pytest.mark.parametrize("name", SMALL)
def test_what_a_recipe_makes(name: str, made: dict[str, Dataset]) -> None:
    dataset, wanted = made[name], recipe(name)
    spec = get_spec(wanted["env"], **wanted["env_options"])
    assert (dataset.id, dataset.env) == (wanted["id"], wanted["env"])
    assert dataset.fingerprint == spec.fingerprint
    assert dataset.recipe["controller"] == wanted["controller"]
    assert len(dataset) == SMALL[name]
    assert len({episode.seed for episode in dataset.episodes}) == SMALL[name]
    for episode in dataset.episodes:
        assert episode.success
        assert len(episode) <= spec.horizon
        assert (episode.actions >= spec.action_low).all()
        assert (episode.actions <= spec.action_high).all()
        ends = episode.terminations | episode.truncations
        assert ends[-1] and not ends[:-1].any()


@pytest.mark.parametrize("name", SMALL)
def test_an_episode_repeats_from_its_seed_and_actions(name: str, made: dict[str, Dataset]) -> None:
    dataset = made[name]
    env = make(dataset.env, **dataset.env_options)
    episode = dataset.episodes[-1]
    obs, _ = env.reset(seed=episode.seed)
    np.testing.assert_array_equal(obs, episode.observations[0])
    for step, action in enumerate(episode.actions):
        obs, reward, *_ = env.step(action)
        np.testing.assert_array_equal(obs, episode.observations[step + 1])
        assert np.float32(reward) == episode.rewards[step]
    env.close()


def played() -> list[str]:
    names = group_options("dataset")
    return [name for name in names if "controller" in load_group("dataset", name)]


@pytest.mark.parametrize("name", played())
def test_every_recipe_plays(name: str) -> None:
    wanted = recipe(name)
    with contextlib.closing(Stage(wanted)) as stage:
        episodes = [stage.play(attempt) for attempt in (0, 0)]
        limits = stage.env.action_space
        assert isinstance(limits, gymnasium.spaces.Box)
    first, again = (dataset_of(wanted, [episode]) for episode in episodes)
    validate(first, name)
    assert first.content_hash == again.content_hash
    told = f"`python scripts/catalogue.py runs {name}` writes it, if it is meant to differ"
    assert name in beginnings(), told
    assert beginning_problem(name, first.episodes[0]) is None, told
    if made_on_this_kind(name):
        assert first.content_hash == made_datasets()[name]["beginning"], told
    assert (first.episodes[0].actions >= limits.low).all()
    assert (first.episodes[0].actions <= limits.high).all()
    if wanted.get("only_successful"):
        assert first.episodes[0].success  # so the first attempt of each of ours does


def test_the_catalogue_is_of_the_recipes_there_are() -> None:
    made = made_datasets()
    assert set(made) == {name for name in group_options("dataset") if is_recipe(name)}
    for name, row in made.items():
        told = f"run `python scripts/catalogue.py runs {name}` and commit datasets/made.yaml"
        assert row["recipe"] == recipe_digest(recipe(name)), told
        assert row["id"] == recipe(name)["id"] and len(row["content_hash"]) == 64


def test_another_controllers_code_is_another_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are the same; what acts is not, so what lies on disk is not taken for it."""
    code = """
        import numpy as np

        class Pushes:
            def __init__(self, task, generator):
                pass

            def act(self, obs):
                return np.full(2, {force}, np.float32)
    """
    monkeypatch.syspath_prepend(tmp_path)
    changed = {"controller": {"_target_": "pushes.Pushes"}, "only_successful": False}
    wanted = recipe("two_routes", episodes=1, **changed)
    seen = []
    for force in (0.5, -0.5, 0.5):
        (tmp_path / "pushes.py").write_text(textwrap.dedent(code.format(force=force)))
        importlib.invalidate_caches()
        sys.modules.pop("pushes", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        (episode,) = make_dataset(wanted, tmp_path / "runs").episodes
        seen.append(float(episode.actions[0, 0]))
    assert seen == [0.5, -0.5, 0.5]
    assert len(list((tmp_path / "runs" / "datasets").iterdir())) == 2


def test_a_recipe_of_others_has_their_episodes(tmp_path: Path) -> None:
    few = recipe("two_routes", episodes=2)
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few))
    whole = {
        "id": "trimtab/both-v0",
        "env": few["env"],
        "env_options": few["env_options"],
        "of": [str(tmp_path / "few.yaml")] * 2,
    }
    shares: list[float] = []
    both = make_dataset(whole, tmp_path, shares.append)
    one = make_dataset(few, tmp_path)
    assert len(both) == 2 * len(one) == 4 and shares[-1] == 1.0
    for half in (both.episodes[: len(one)], both.episodes[len(one) :]):
        assert dataset_of(few, list(half)).content_hash == one.content_hash


@pytest.mark.parametrize("any_way", [True, False])
def test_the_planner_takes_shortest_ways(any_way: bool) -> None:
    cells = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
    ways = set()
    for seed in range(40):
        generator = np.random.default_rng(seed) if any_way else None
        way = shortest_path(cells, (1, 1), (3, 3), generator)
        assert (way[0], way[-1], len(way)) == ((1, 1), (3, 3), 5)
        for (row, column), (below, right) in itertools.pairwise(way):
            assert abs(row - below) + abs(column - right) == 1 and not cells[below][right]
        ways.add(way[1])
    assert len(ways) == (2 if any_way else 1)
    with pytest.raises(TrimtabError, match="no way"):
        shortest_path([[0, 1, 0]], (0, 0), (0, 2))


def test_a_dataset_is_made_once(tmp_path: Any) -> None:
    wanted, shares = recipe("two_routes", episodes=2), list[float]()
    first = make_dataset(wanted, tmp_path, shares.append)
    assert shares == [0.5, 1.0]
    assert make_dataset(wanted, tmp_path, shares.append).content_hash == first.content_hash
    assert shares == [0.5, 1.0]
    assert load_minari(recipe_folder(wanted, tmp_path)).content_hash == first.content_hash
    assert recipe_folder({**wanted, "seed": 1}, tmp_path) != recipe_folder(wanted, tmp_path)


def test_the_routes_are_equally_likely() -> None:
    settings = dict(recipe("two_routes")["controller"])
    assert get_class(settings.pop("_target_")) is WaypointController
    sides = []
    for attempt in range(2000):
        seed = int(np.random.SeedSequence([0, attempt]).generate_state(2)[1])
        controller = WaypointController("", np.random.default_rng(seed), **settings)
        sides.append(controller.route[0][1] > 0)
    # Five standard deviations of a fair coin.
    assert abs(np.mean(sides) - 0.5) < 5 * 0.5 / np.sqrt(len(sides))


def test_the_demonstrations_go_by_both_sides(tmp_path: Any) -> None:
    dataset = make_dataset(recipe("two_routes", episodes=8), tmp_path)
    above = [bool(episode.observations[:, 1].max() > 2.0) for episode in dataset.episodes]
    below = [bool(episode.observations[:, 1].min() < -2.0) for episode in dataset.episodes]
    assert [not side for side in above] == below  # each by one side
    assert 2 <= sum(above) <= 6


def test_a_waypoint_is_left_when_it_is_reached() -> None:
    controller = WaypointController(
        "", np.random.default_rng(0), routes=[[[1.0, 0.0], [1.0, 2.0]]], noise=0.0
    )
    at_rest = controller.act(np.array([0.9, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(at_rest, [0.2, 1.0])  # 2 times the distance, clipped to 1
    braking = controller.act(np.array([1.0, 1.9, 0.0, 1.0]))
    np.testing.assert_allclose(braking, [0.0, 2.0 * 0.1 - 0.5 * 1.0])


def test_the_noise_of_the_expert_has_its_size() -> None:
    obs = make("metaworld/push-v3").reset(seed=0)[0]
    exact = MetaWorldExpert("push-v3", np.random.default_rng(0)).act(obs)
    noisy = MetaWorldExpert("push-v3", np.random.default_rng(0), noise=0.3)
    errors = np.array([noisy.act(obs) - exact for _ in range(2000)])
    assert np.abs(exact).max() <= 1
    np.testing.assert_allclose(errors.std(0), 0.3, rtol=0.1)
    with pytest.raises(TrimtabError, match="no scripted expert for 'psuh-v3'"):
        MetaWorldExpert("psuh-v3", np.random.default_rng(0))


def replay_recipe(*words: str, steps: int = 120) -> dict[str, Any]:
    small = [f"online_steps={steps}", "algorithm.hidden=[8]", "algorithm.warmup_steps=60"]
    return {**recipe("hopper_replay"), "run": ["algorithm=sac", "eval_episodes=1", *small, *words]}


def test_a_replay_recipe_keeps_all_that_a_run_met(tmp_path: Any) -> None:
    wanted = replay_recipe()
    dataset = make_dataset(wanted, tmp_path / "a")
    assert dataset.num_steps == 120 and dataset.env == "gym/Hopper-v5"
    assert make_dataset(wanted, tmp_path / "b").content_hash == dataset.content_hash
    # The actions of the first episode lead through its observations in Gymnasium's own Hopper.
    env = make("gym/Hopper-v5")
    episode = dataset.episodes[1]
    env.reset(seed=0)
    simulator: Any = env.unwrapped
    simulator = getattr(simulator, "raw", simulator)
    start = episode.observations[0].astype(np.float64)
    simulator.set_state(np.concatenate([[0.0], start[:5]]), start[5:])
    obs, reward, *_ = simulator.step(episode.actions[0])
    env.close()
    np.testing.assert_allclose(obs, episode.observations[1], atol=1e-5)
    assert reward == pytest.approx(float(episode.rewards[0]), abs=1e-2)


def test_a_recipe_whose_id_has_no_namespace_keeps_to_its_folder(tmp_path: Any) -> None:
    make_dataset(recipe("two_routes", id="mine-v0", episodes=1), tmp_path)
    assert {path.name for path in (tmp_path / "datasets").iterdir()} == {
        recipe_folder(recipe("two_routes", id="mine-v0", episodes=1), tmp_path).parent.name
    }
