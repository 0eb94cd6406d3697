"""Histories, sequences and goals, told again from the episodes themselves, for data and rings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.relabel import Goals, Relabelled
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, BatchSpec, Part, TrimtabError

GAMMA = 0.9
LENGTHS = (7, 1, 12, 5, 3)
PARTS = {"all": (0, 1, 2, 3), "achieved_goal": (2,), "desired_goal": (3,)}
GOALS = Goals((2,), (3,), lambda achieved, desired: -np.abs(achieved - desired)[..., 0])


def made(batch_spec: BatchSpec, window: int = 1, parts: bool = False, **settings: Any) -> Any:
    """A dataset's buffer and its episodes; an observation is (episode, step, achieved, desired)."""
    generator, episodes = np.random.default_rng(0), []
    for number, length in enumerate(LENGTHS):
        last = np.arange(length) == length - 1
        obs = np.zeros((length + 1, 4))
        obs[:, 0], obs[:, 1], obs[:, 3] = number, np.arange(length + 1), number
        obs[:, 2] = generator.normal(size=length + 1)
        whole = number != 3
        if not whole:
            obs[-1] = obs[-2]
        episodes.append(
            Episode(
                obs, generator.normal(size=(length, 1)), generator.normal(size=length),
                last & (number % 2 == 0), last & (number % 2 == 1), last_observed=whole,
            )
        )  # fmt: skip
    data = Dataset(
        id="trimtab/history-v0", env="x/y", env_options={}, episodes=tuple(episodes),
        action_low=(-9.0,), action_high=(9.0,),
    )  # fmt: skip
    buffer = ReplayBuffer.from_dataset(
        data, window=window, chunked=True, discount=GAMMA, batch_spec=batch_spec,
        parts=PARTS if parts else None, **settings,
    )  # fmt: skip
    return buffer, [
        (episode, 0, len(episode) - (not episode.last_observed)) for episode in episodes
    ]


def gathered(batch_spec: BatchSpec, rows: int, parts: bool = False, steps: int = 23) -> Any:
    """A ring of two environments; of each episode its first stored row and its rows so far."""
    obs: Any = {name: Part((len(entries),)) for name, entries in PARTS.items()} if parts else 4
    buffer = ReplayBuffer(
        2 * rows, obs, (1, 1), num_envs=2, chunked=True, discount=GAMMA, batch_spec=batch_spec
    )
    generator = np.random.default_rng(1)
    played: list[dict[str, Any]] = []
    current: list[dict[str, Any]] = []

    def begin(column: int) -> dict[str, Any]:
        first = np.array([len(played), 0, generator.normal(), len(played)], np.float32)
        episode = {"obs": [first], "action": [], "reward": [], "at": [], "end": None}
        episode["length"] = int(generator.integers(1, 11)) if column == 0 else 9
        played.append(episode)
        return episode

    current = [begin(0), begin(1)]
    for step in range(steps):
        row: dict[str, list[Any]] = {"obs": [], "next": [], "action": [], "reward": [], "ends": []}
        for column in range(2):
            episode = current[column]
            now = episode["obs"][-1]
            after = np.array([now[0], now[1] + 1, generator.normal(), now[3]], np.float32)
            action = generator.normal(size=(1, 1)).astype(np.float32)
            reward = np.float32(generator.normal())
            ends = len(episode["at"]) + 1 == episode["length"]
            for name, value in zip(
                ("obs", "action", "reward", "at"), (after, action, reward, step), strict=True
            ):
                episode[name].append(value)
            for name, value in zip(row, (now, after, action, reward, ends), strict=True):
                row[name].append(value)
            if ends:
                episode["end"] = bool(now[0] % 2)
                current[column] = begin(column)
        arrays = {name: np.array(values) for name, values in row.items()}
        numbers = arrays["obs"][:, 0] % 2 == 1
        pair = [arrays["obs"], arrays["next"]]
        if parts:
            pair = [{n: o[:, list(e)] for n, e in PARTS.items()} for o in pair]  # type: ignore
        buffer.add(
            pair[0], arrays["action"], arrays["reward"], pair[1],
            arrays["ends"] & numbers, arrays["ends"] & ~numbers,
        )  # fmt: skip
    stored = []
    for episode in played:
        length = len(episode["at"])
        first = sum(at < steps - rows for at in episode["at"])
        flags = np.zeros(length, bool)
        found = None
        if length:
            found = Episode(
                np.array(episode["obs"]), np.array(episode["action"])[:, 0], episode["reward"],
                flags, flags,
            )  # fmt: skip
        stored.append((found, first, length))
    return buffer, stored


def flat(obs: Any) -> npt.NDArray[Any]:
    """Observations of a batch as one array, after a look at their parts."""
    if isinstance(obs, torch.Tensor):
        return obs.numpy()
    for name, entries in PARTS.items():
        assert torch.equal(obs[name], obs["all"][..., list(entries)])
    return np.asarray(obs["all"].numpy())


def clipped(episode: Episode, steps: Any, first: int) -> npt.NDArray[np.float32]:
    return episode.observations[np.maximum(np.array(steps), first)]


def assert_histories(
    batch: Batch, stored: Any, history: int, window: int, n_step: int
) -> set[tuple[int, ...]]:
    obs, reached = flat(batch.obs), flat(batch.next_obs)
    assert obs.shape == reached.shape == (len(batch), history, 4)
    drawn = set()
    for row in range(len(batch)):
        number, step = obs[row, -1, :2].astype(int)
        episode, first, stop = stored[number]
        assert first <= step < stop  # what is drawn is stored
        drawn.add((int(number), int(step)))
        back = [step - k * window for k in range(history)][::-1]
        assert np.array_equal(obs[row], clipped(episode, back, first))
        decisions = [d for d in range(step, stop, window)][:n_step]
        end = min(decisions[-1] + window, stop)
        before = [decisions[-1] - k * window for k in range(history - 1)][::-1]
        wanted = [*clipped(episode, before, first)] if before else []
        assert np.array_equal(reached[row], [*wanted, episode.observations[end]])
    return drawn


def assert_sequences(batch: Batch, stored: Any, length: int, window: int, starts: Any) -> None:
    found = batch.sequence
    assert found is not None and found.valid.shape == (len(batch), length)
    seen = flat(found.obs)
    for row, (number, step) in enumerate(starts):
        episode, first, stop = stored[number]
        assert int(found.step[row]) == (step - first) // window
        there = [d for d in range(step, stop, window)][:length]
        assert found.valid[row].tolist() == [k < len(there) for k in range(length)]
        for k in range(length):
            begin = there[min(k, len(there) - 1)]
            end = min(begin + window, stop)
            assert np.array_equal(seen[row, k], episode.observations[begin])
            actions = episode.actions[np.minimum(np.arange(begin, begin + window), end - 1)]
            assert np.array_equal(found.action[row, k], actions)
            total = episode.rewards[begin:end].sum(dtype=np.float64)
            assert abs(float(found.reward[row, k]) - total) < 1e-5
            if found.mc_return is not None:
                every = [
                    GAMMA**i * episode.rewards[d : d + window].sum()
                    for i, d in enumerate(range(begin, len(episode), window))
                ]
                assert abs(float(found.mc_return[row, k]) - sum(every)) < 1e-5


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("history", [2, 3, 20])
@pytest.mark.parametrize(("window", "n_step"), [(1, 1), (3, 1), (1, 3), (4, 2)])
def test_a_datasets_histories(history: int, window: int, n_step: int, parts: bool) -> None:
    batch_spec = BatchSpec(history=history, n_step=n_step)
    buffer, stored = made(batch_spec, window, parts)
    drawn = assert_histories(buffer.sample(300), stored, history, window, n_step)
    assert drawn == {(e, s) for e, (_, _, stop) in enumerate(stored) for s in range(stop)}


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("history", [2, 4])
@pytest.mark.parametrize("rows", [3, 8, 20, 40])
def test_a_rings_histories(history: int, rows: int, parts: bool) -> None:
    for steps, n_step in itertools.product((1, 8, 57), (1, 2)):
        buffer, stored = gathered(BatchSpec(history=history, n_step=n_step), rows, parts, steps)
        drawn = assert_histories(buffer.sample(100), stored, history, 1, n_step)
        if steps >= rows:
            assert len(drawn) > 0.8 * rows  # of both columns
        again = ReplayBuffer.from_state(buffer.state_dict())
        assert_histories(again.sample(50), stored, history, 1, n_step)


@pytest.mark.parametrize("length", [1, 2, 5, 30])
@pytest.mark.parametrize("window", [1, 3])
def test_a_datasets_sequences(length: int, window: int) -> None:
    buffer, stored = made(BatchSpec(sequence=length), window)
    batch = buffer.sample(120)
    starts = flat(batch.obs)[:, :2].astype(int).tolist()
    assert_sequences(batch, stored, length, window, starts)
    # Cloning has the last step whose next observation was not recorded, too.
    buffer, stored = made(BatchSpec(sequence=length), window, successors=False)
    stored = [(episode, 0, len(episode)) for episode, _, _ in stored]
    batch = buffer.sample(120)
    places = {obs.tobytes(): (e, s) for e, (episode, _, _) in enumerate(stored)
              for s, obs in enumerate(episode.observations[: len(episode)])}  # fmt: skip
    starts = [places[obs.tobytes()] for obs in flat(batch.obs)]
    assert_sequences(batch, stored, length, window, starts)


@pytest.mark.parametrize("rows", [3, 8, 40])
@pytest.mark.parametrize("length", [1, 4])
def test_a_rings_sequences(length: int, rows: int) -> None:
    for steps in (1, 8, 57):
        buffer, stored = gathered(BatchSpec(sequence=length), rows, steps=steps)
        for source in (buffer, ReplayBuffer.from_state(buffer.state_dict())):
            batch = source.sample(60)
            starts = flat(batch.obs)[:, :2].astype(int).tolist()
            assert_sequences(batch, stored, length, 1, starts)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize(("history", "sequence"), [(3, 0), (1, 4)])
def test_all_wants_at_once(history: int, sequence: int, ring: bool, parts: bool) -> None:
    batch_spec = BatchSpec(next_action=True, mc_return=True, history=history, sequence=sequence)
    window = 1 if ring else 2
    buffer, stored = gathered(batch_spec, 30, parts) if ring else made(batch_spec, window, parts)
    batch = buffer.sample(300)
    seen = flat(batch.obs)
    starts = (seen[:, -1, :2] if history > 1 else seen[:, :2]).astype(int).tolist()
    if history > 1:
        assert_histories(batch, stored, history, window, 1)
    assert batch.next_action is not None and batch.mc_return is not None
    if sequence:
        assert_sequences(batch, stored, sequence, window, starts)
        assert batch.sequence is not None and batch.sequence.mc_return is not None
        assert torch.equal(batch.sequence.mc_return[:, 0], batch.mc_return)
    for row, (number, step) in enumerate(starts):
        episode, _, stop = stored[number]
        after = min(step + window, stop)
        if after < len(episode):  # what was done last counts, though nothing was observed after it
            actions = episode.actions[
                np.minimum(np.arange(after, after + window), len(episode) - 1)
            ]
            assert np.array_equal(batch.next_action[row], actions)
        else:
            assert batch.discount[row] == 0


def test_sequences_of_windows_that_are_no_decisions_are_refused(make_dataset: Any) -> None:
    with pytest.raises(TrimtabError, match="sequences of windows of 3 want chunked=True"):
        ReplayBuffer.from_dataset(make_dataset(), window=3, batch_spec=BatchSpec(sequence=2))


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_goals_are_what_was_reached_later(
    share: float, ring: bool, parts: bool, history: int
) -> None:
    batch_spec = BatchSpec(goal=share, history=history)
    buffer, stored = gathered(batch_spec, 12, parts) if ring else made(batch_spec, 1, parts)
    twin, _ = gathered(batch_spec, 12, parts) if ring else made(batch_spec, 1, parts)
    plain = twin.sample(1500)
    batch = Relabelled(buffer, GOALS, share, seed=3).sample(1500)
    assert batch.goal is not None and batch.goal.shape == (1500, 1)
    for name in ("action", "discount", "valid"):
        assert torch.equal(getattr(batch, name), getattr(plain, name))
    before, after = as_rows(batch.obs, parts, history), as_rows(plain.obs, parts, history)
    reached, then = as_rows(batch.next_obs, parts, history), as_rows(plain.next_obs, parts, history)
    changed, offsets = 0, []
    for row in range(1500):
        number, step = after[row, -1, :2].astype(int)
        episode, _, stop = stored[number]
        goal = float(batch.goal[row])
        assert np.array_equal(before[row, :, :3], after[row, :, :3])
        assert np.array_equal(reached[row, :, :3], then[row, :, :3])
        assert (before[row, :, 3] == goal).all() and (reached[row, :, 3] == goal).all()
        if goal == number:
            assert float(batch.reward[row]) == float(plain.reward[row])
            continue
        changed += 1
        assert -float(batch.reward[row]) == pytest.approx(abs(reached[row, -1, 2] - goal), abs=1e-6)
        (later,) = np.flatnonzero(episode.observations[step + 1 : stop + 1, 2] == np.float32(goal))
        offsets.append((int(later), stop - step))
    assert changed == pytest.approx(1500 * share, abs=100)  # five standard deviations
    for left in {left for _, left in offsets}:
        chosen = [later for later, of in offsets if of == left]
        counts = np.bincount(chosen, minlength=left)
        spread = 5 * np.sqrt(len(chosen) / left) + 1
        assert np.abs(counts - len(chosen) / left).max() <= spread


def as_rows(obs: Any, parts: bool, history: int) -> npt.NDArray[Any]:
    """Observations ``[B, K, 4]``; where there are parts, the goals are those of their parts."""
    if parts:
        rows = np.concatenate(
            [obs["all"][..., :2], obs["achieved_goal"], obs["desired_goal"]], axis=-1
        )
    else:
        rows = obs.numpy()
    return rows if history > 1 else rows[:, None]


def test_goals_go_on_from_their_state_and_refuse_what_they_cannot_do() -> None:
    first, second = (Relabelled(made(BatchSpec(goal=0.5))[0], GOALS, 0.5, seed) for seed in (1, 2))
    first.sample(5)
    second.load_state_dict(first.state_dict())
    second.source.sample(5)  # type: ignore[attr-defined]
    one, two = first.sample(50), second.sample(50)
    assert torch.equal(one.reward, two.reward) and one.mc_return is None
    with pytest.raises(TrimtabError, match="saved state is damaged"):
        first.load_state_dict({})
    refused: list[tuple[Any, Goals, str]] = [
        (made(BatchSpec(goal=1.0), 3)[0], GOALS, "for single steps; here a row is 3 actions"),
        (made(BatchSpec())[0], GOALS, "made without them"),
        (made(BatchSpec(goal=0.0, sequence=2))[0], GOALS, "sequences are not relabelled"),
        (made(BatchSpec(goal=1.0))[0], Goals((9,), (1,), GOALS.reward), "of an observation of 4"),
        (
            ReplayBuffer.from_dataset(
                dataset_of(), parts={"all": (0, 1)}, batch_spec=BatchSpec(goal=1.0)
            ),
            GOALS,
            "no part 'achieved_goal'",
        ),
    ]
    for source, goals, message in refused:
        with pytest.raises(TrimtabError, match=message):
            Relabelled(source, goals, 1.0).sample(4)
    with pytest.raises(TrimtabError, match="from 0 to 1"):
        Relabelled(refused[0][0], GOALS, 1.5)
    with pytest.raises(TrimtabError, match="2 entries are achieved, 1 desired"):
        Goals((0, 1), (2,), GOALS.reward)


def dataset_of() -> Dataset:
    episode = made(BatchSpec())[1][0][0]
    return Dataset(
        id="trimtab/one-v0", env="x/y", env_options={}, episodes=(episode,),
        action_low=(-9.0,), action_high=(9.0,),
    )  # fmt: skip
