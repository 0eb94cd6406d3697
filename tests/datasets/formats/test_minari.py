"""The Minari layout: round trip, the Minari package's own reader, and random damage."""

from __future__ import annotations

import dataclasses
import resource
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.catalog import external_datasets
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.minari.reader import load
from trimtab.datasets.formats.minari.writer import FORMAT_VERSION, save
from trimtab.envs.registry import make
from trimtab.types import TrimtabError


def assert_same(one: Dataset, two: Dataset) -> None:
    for name in ("id", "env", "env_options", "action_low", "action_high", "control_rate"):
        assert getattr(one, name) == getattr(two, name)
    assert (one.recipe, one.fingerprint) == (two.recipe, two.fingerprint)
    assert one.content_hash == two.content_hash
    assert_same_arrays(one, two)


def assert_same_arrays(one: Dataset, two: Dataset) -> None:
    for first, second in zip(one.episodes, two.episodes, strict=True):
        assert first.seed == second.seed
        for key, array in first.arrays().items():
            assert array.dtype == second.arrays()[key].dtype
            np.testing.assert_array_equal(array, second.arrays()[key])


@pytest.mark.bits
def test_round_trip_and_same_bytes(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset()
    save(dataset, tmp_path / "one")
    save(make_dataset(), tmp_path / "two")
    assert_same(load(tmp_path / "one"), dataset)
    for name in ("main_data.hdf5", "metadata.json"):
        one, two = (tmp_path / folder / "data" / name for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    save(make_dataset(seed=1), tmp_path / "one")  # replaces
    assert_same(load(tmp_path / "one"), make_dataset(seed=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_the_minari_package_reads_it(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = make_dataset()
    save(dataset, tmp_path / dataset.id)
    assert FORMAT_VERSION in minari.supported_dataset_versions
    loaded = minari.load_dataset(dataset.id)
    assert (loaded.id, loaded.total_episodes, loaded.total_steps) == (dataset.id, 3, 12)
    assert loaded.observation_space.shape == (3,)
    np.testing.assert_array_equal(loaded.action_space.high, dataset.action_high)
    for ours, theirs in zip(dataset.episodes, loaded.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(ours.observations, theirs.observations)
        np.testing.assert_array_equal(ours.actions, theirs.actions)
        np.testing.assert_array_equal(ours.rewards, theirs.rewards)
        np.testing.assert_array_equal(ours.terminations, theirs.terminations)
        np.testing.assert_array_equal(ours.truncations, theirs.truncations)
        np.testing.assert_array_equal(ours.infos["success"], theirs.infos["success"])
        assert theirs.terminations.dtype == np.bool_
        assert loaded.observation_space.contains(theirs.observations[0])
        assert "rewards=" in repr(theirs)
    (first, *_) = loaded.storage.get_episode_metadata([0])
    assert first["seed"] == dataset.episodes[0].seed
    assert first["rewards_sum"] == pytest.approx(dataset.episodes[0].total_reward)
    assert dataset.id in minari.list_local_datasets()


def test_a_dataset_that_minari_wrote_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari
    from gymnasium import spaces

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    generator = np.random.default_rng(0)
    parts = {"goal": generator.normal(size=(4, 1)), "a": generator.normal(size=(4, 2))}
    episode = minari.data_collector.EpisodeBuffer(
        id=0,
        seed=7,
        observations=parts,
        actions=generator.uniform(-1, 1, size=(3, 2)),
        rewards=[0.0, 1.0, 2.0],
        terminations=[False, False, False],
        truncations=[False, False, True],
        infos={"success": [False, True, False, True], "text": ["a", "b", "c", "d"]},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for an author
        minari.create_dataset_from_buffers(
            "foreign/box-v2",
            [episode],
            observation_space=spaces.Dict(
                {name: spaces.Box(-9, 9, part.shape[1:]) for name, part in parts.items()}
            ),
            action_space=spaces.Box(-1, 1, (2,)),
        )
    dataset = load(tmp_path / "foreign/box-v2")
    assert (dataset.id, dataset.env, dataset.action_low) == ("foreign/box-v2", "unknown", (-1, -1))
    (read,) = dataset.episodes
    assert read.seed == 7
    wanted = np.concatenate([parts["a"], parts["goal"]], axis=1).astype(np.float32)
    np.testing.assert_array_equal(read.observations, wanted)
    np.testing.assert_array_equal(read.infos["success"], [True, False, True])
    assert set(read.infos) == {"success"}
    (chosen,) = load(tmp_path / "foreign/box-v2", keys="goal, a").episodes
    np.testing.assert_array_equal(chosen.observations, wanted[:, [2, 0, 1]])
    (chosen,) = load(tmp_path / "foreign/box-v2", keys="goal").episodes
    np.testing.assert_array_equal(chosen.observations, wanted[:, [2]])
    with pytest.raises(TrimtabError, match="no part 'b'; there are a, goal; change keys="):
        load(tmp_path / "foreign/box-v2", keys="a,b")


def test_keys_of_a_vector_are_refused(make_dataset: Any, tmp_path: Path) -> None:
    save(make_dataset(), tmp_path / "x")
    with pytest.raises(TrimtabError, match="no part 'a'; it is one vector"):
        load(tmp_path / "x", keys="a")


def test_a_maze_that_minari_recorded_is_observed_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their collector over their environment, our reader with the catalogue's keys, our task."""
    import gymnasium
    import gymnasium_robotics
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    gymnasium.register_envs(gymnasium_robotics)
    entry = external_datasets()["minari/pointmaze-umaze-v2"]
    task = entry.env.removeprefix("robotics/")
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 2)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = minari.DataCollector(gymnasium.make(task, max_episode_steps=10))
        recorded.reset(seed=3)
        for action in actions:
            recorded.step(action)
        recorded.create_dataset(entry.file)
        recorded.close()
    (episode,) = load(tmp_path / entry.file, keys=entry.keys or "").episodes
    env = make(entry.env)
    expected = [env.reset(seed=3)[0], *(env.step(action)[0] for action in actions)]
    env.close()
    np.testing.assert_allclose(episode.observations, np.array(expected), atol=1e-6)
    np.testing.assert_array_equal(episode.actions, actions)


@pytest.mark.parametrize("name", ["plain", "a b-v0", "x/../y-v0", "/etc/x-v0", "é/x-v0"])
def test_ids_that_minari_would_refuse_are_refused(
    make_dataset: Any, tmp_path: Path, name: str
) -> None:
    with pytest.raises(TrimtabError, match="is not of the form namespace/name-v0"):
        save(dataclasses.replace(make_dataset(), id=name), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_ever_replaced(make_dataset: Any, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("precious", "file"):
        with pytest.raises(TrimtabError, match="choose another folder"):
            save(make_dataset(), tmp_path / name)
    assert (tmp_path / "precious/thesis.txt").read_text() == "x"
    assert (tmp_path / "file").read_text() == "x"


def test_an_invalid_dataset_is_not_written(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset()
    bad = [
        dataclasses.replace(dataset, episodes=()),
        dataclasses.replace(dataset, recipe={"f": object()}),
        dataclasses.replace(dataset, action_high=(1.0,)),
    ]
    for broken in bad:
        with pytest.raises(TrimtabError, match="test/random-v0"):
            save(broken, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_keeps_the_old(make_dataset: Any, tmp_path: Path) -> None:
    save(make_dataset(), tmp_path / "x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))
    try:
        told = f"^cannot write {tmp_path / 'x'}: .*the shell allows files of 8,000 bytes"
        with pytest.raises(TrimtabError, match=told):
            save(make_dataset(seed=1), tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_same(load(tmp_path / "x"), make_dataset())
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
