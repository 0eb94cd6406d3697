"""D4RL's files, laid out by hand: every number lands where the format says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.types import TrimtabError


def load_d4rl(path: Path, **hints: Any) -> Dataset:
    return get_format("d4rl").load(path, **hints)


def test_d4rl_drops_what_has_no_successor(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "hopper medium.hdf5"
    arrays = foreign.d4rl(path)
    dataset = load_d4rl(path)
    assert (dataset.id, dataset.env) == ("imported/hopper-medium-v0", "unknown")
    assert (dataset.action_low, dataset.action_high) == ((-1, -1), (1, 1))
    # Rows 0 to 2 end at a terminal; 3 and 4 by the clock, so that 4 is only an observation; row 5
    # is a beginning that nothing follows.
    assert foreign.ends(dataset) == [(3, True, False), (1, False, True)]
    one, two = dataset.episodes
    foreign.equal(one.observations, arrays["observations"][[0, 1, 2, 2]])
    foreign.equal(two.observations, arrays["observations"][[3, 4]])
    foreign.equal(one.actions, arrays["actions"][:3])
    foreign.equal(two.rewards, arrays["rewards"][3:4])
    foreign.equal(two.infos["qpos"], arrays["infos/qpos"][3:4])


def qlearning_transitions(arrays: Any) -> list[tuple[Any, ...]]:
    """Return what D4RL's own rule keeps, row by row; after a terminal the next one is void."""
    found = []
    for row in range(len(arrays["rewards"]) - 1):
        if arrays["timeouts"][row]:
            continue
        done = bool(arrays["terminals"][row])
        following = None if done else arrays["observations"][row + 1].tolist()
        found.append((arrays["observations"][row].tolist(), following, done))
    return found


def test_d4rl_keeps_the_transitions_that_d4rl_keeps(foreign: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    rows = 300
    arrays = {
        **foreign.frames(rows=rows),
        "terminals": generator.random(rows) < 0.05,
        "timeouts": generator.random(rows) < 0.05,
        "infos/qpos": np.zeros((rows, 2)),
    }
    arrays["timeouts"] &= ~arrays["terminals"]
    arrays["terminals"][-1] = False
    foreign.d4rl(tmp_path / "x.hdf5", **arrays)
    found = []
    for episode in load_d4rl(tmp_path / "x.hdf5").episodes:
        for row in range(len(episode)):
            done = bool(episode.terminations[row])
            following = None if done else episode.observations[row + 1].tolist()
            found.append((episode.observations[row].tolist(), following, done))
    kept = qlearning_transitions(arrays)
    assert found == kept
    # What TD3+BC's authors normalise by: the observations of those transitions, and no others.
    states = np.array([here for here, *_ in kept])
    statistics = load_d4rl(tmp_path / "x.hdf5").statistics(transitions_only=True)
    np.testing.assert_allclose(statistics.obs_mean, states.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics.obs_std, states.std(0), rtol=1e-5)


def test_d4rl_uses_next_observations_where_they_are(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    seen = foreign.frames(rows=6)["observations"]
    following = np.concatenate([seen[1:], seen[:1]]) + [[0], [0], [3], [0], [4], [0]]
    arrays = foreign.d4rl(path, next_observations=following)  # a reset follows rows 2 and 4
    dataset = load_d4rl(path)
    assert foreign.ends(dataset) == [(3, True, False), (2, False, True), (1, False, True)]
    foreign.equal(dataset.episodes[1].observations, np.concatenate(
        [arrays["observations"][3:5], following[4:5]]
    ))  # fmt: skip
    # Without timeouts an episode ends where the next row does not go on from it.
    following = np.concatenate([arrays["observations"][1:], np.zeros((1, 3))])
    following[4] += 1
    foreign.d4rl(path, next_observations=following, timeouts=None)
    assert foreign.ends(load_d4rl(path)) == [(3, True, False), (2, False, True), (1, False, True)]


def test_d4rl_looks_at_next_observations_inside_of_episodes_too(
    foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where an episode ends may the next row be another observation."""
    path = tmp_path / "x.hdf5"
    seen = foreign.frames(rows=6)["observations"]
    following = np.concatenate([seen[1:], seen[:1]])
    foreign.d4rl(path, next_observations=following)
    load_d4rl(path)
    assert "next_observations" not in caplog.text
    for value in (np.nan, np.inf):
        foreign.d4rl(path, next_observations=np.where(np.eye(6, 3, -1) > 0, value, following))
        with pytest.raises(TrimtabError, match="'next_observations': row 1 is not finite"):
            load_d4rl(path)
    for shape in ((6, 4), (6, 1)):
        foreign.d4rl(path, next_observations=np.zeros(shape))
        with pytest.raises(TrimtabError, match="'next_observations': shape .*'observations' have"):
            load_d4rl(path)
    for row in (0, 1, 3):
        foreign.d4rl(path, next_observations=following + (np.arange(6) == row)[:, None])
        with pytest.raises(
            TrimtabError, match=f"row {row} is not the observation of row {row + 1}"
        ):
            load_d4rl(path)
    foreign.d4rl(path, next_observations=following + 1, timeouts=None)  # in any order
    with pytest.raises(TrimtabError, match="'next_observations': in 4 of 6 rows it is not the obs"):
        load_d4rl(path)
    foreign.d4rl(path, next_observations=following, timeouts=None)
    assert len(load_d4rl(path, horizon=3).episodes) == 2
    assert "has no 'timeouts'; an episode ends where" in caplog.text
    assert "2 episodes of 6 rows" in caplog.text
    with pytest.raises(TrimtabError, match="an episode has 3 steps, but horizon= says 2"):
        load_d4rl(path, horizon=2)


def test_d4rl_without_timeouts_needs_a_horizon(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    foreign.d4rl(path, timeouts=None)
    with pytest.raises(TrimtabError, match="give horizon=<steps of a whole episode>"):
        load_d4rl(path)
    assert foreign.ends(load_d4rl(path, horizon=2)) == [
        (1, False, True),
        (1, True, False),
        (1, False, True),
    ]
    assert foreign.ends(load_d4rl(path, horizon=9)) == [(3, True, False), (2, False, True)]


def test_columns_are_read(foreign: Any, tmp_path: Path) -> None:
    arrays = foreign.d4rl(tmp_path / "plain.hdf5")
    columns = {name: arrays[name][:, None] for name in ("rewards", "terminals")}
    foreign.d4rl(tmp_path / "x.hdf5", **columns)
    read, wanted = load_d4rl(tmp_path / "x.hdf5"), load_d4rl(tmp_path / "plain.hdf5")
    for one, two in zip(read.episodes, wanted.episodes, strict=True):
        foreign.equal(one.observations, two.observations)
        foreign.equal(one.rewards, two.rewards)


@pytest.mark.parametrize("key", ["episode_terminals", "discrete_action"])
def test_d3rlpys_files_are_refused(key: str, foreign: Any, tmp_path: Path) -> None:
    """It marks all ends in an array of its own, which an advised horizon would contradict."""
    foreign.d4rl(tmp_path / "x.hdf5", timeouts=None, **{key: np.array([0, 0, 1, 0, 1, 1])})
    with pytest.raises(TrimtabError, match=f"'{key}': a file of d3rlpy 1"):
        load_d4rl(tmp_path / "x.hdf5", horizon=2)


@pytest.mark.parametrize(
    "change",
    [
        {"actions": np.arange(6)},
        {"actions": np.zeros(6, np.float32)},
        {"actions": np.zeros((6, 1), np.int32)},
        {"actions": np.zeros((6, 2), bool)},
    ],
)
def test_discrete_actions_are_named(change: Any, foreign: Any, tmp_path: Path) -> None:
    foreign.d4rl(tmp_path / "x.hdf5", **change)
    with pytest.raises(TrimtabError, match="key 'actions': discrete actions .* only continuous"):
        load_d4rl(tmp_path / "x.hdf5")


def test_actions_of_one_number_and_pictures(foreign: Any, tmp_path: Path) -> None:
    actions = np.linspace(-0.9, 0.9, 6, dtype=np.float32)
    foreign.d4rl(tmp_path / "x.hdf5", actions=actions)
    foreign.equal(load_d4rl(tmp_path / "x.hdf5").episodes[0].actions, actions[:3, None])
    foreign.d4rl(tmp_path / "x.hdf5", observations=np.zeros((6, 4, 4, 3), np.uint8))
    with pytest.raises(TrimtabError, match="'observations': pictures of shape .* not read as obs"):
        load_d4rl(tmp_path / "x.hdf5")
    foreign.ogbench(tmp_path / "x.npz", observations=np.zeros((7, 4, 4, 3), np.uint8))
    with pytest.raises(TrimtabError, match="'observations': pictures of shape .* not read as obs"):
        recognise(tmp_path / "x.npz").load(tmp_path / "x.npz")


def test_what_fits_no_row(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    foreign.d4rl(path, **{"infos/goal": np.zeros((5, 2)), "infos/name": np.array([b"a"] * 6)})
    dataset = load_d4rl(path)
    assert dataset.recipe["left_out"] == ["infos/goal", "infos/name"]
    assert set(dataset.episodes[0].infos) == {"qpos"}
