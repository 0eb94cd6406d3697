"""The planner of Push-T: it knows how the block moves, and brings it to its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.datasets.recipes.push_t import PushPlanner, _crosses, _read, _rotation, _within
from trimtab.envs.registry import make
from trimtab.types import TrimtabError

ID = "pusht/PushT-v0"


def planner(**settings: Any) -> PushPlanner:
    return PushPlanner("PushT-v0", np.random.default_rng(0), **settings)


def pushed(raw: Any, point: int, length: float, plan: PushPlanner) -> Any:
    """Return the observation after one push in the simulator, with the disc put to its start."""
    place, angle = np.array([240.0, 260.0]), 0.6
    turned, start = _rotation(angle), plan.points[point] + 16.0 * plan.normals[point]
    inner: Any = raw._env
    raw.reset(seed=0)
    inner.block.angle = angle
    inner.block.position = tuple(place)
    inner.agent.position = tuple(place + turned @ start)
    inner.space.reindex_shapes_for_body(inner.block)
    inner.space.reindex_shapes_for_body(inner.agent)
    goal = place + turned @ (start - (length + 1.0) * plan.normals[point])
    for _ in range(40):
        at = np.array(inner.agent.position)
        way = goal - at
        target = at + way * min(1.0, 25.0 / max(float(np.linalg.norm(way)), 1e-9))
        obs = raw.step(target.astype(np.float32))[0]
    return obs


def test_it_knows_how_a_push_moves_the_block() -> None:
    """Where each push ends in the simulator is where the planner says, to a pixel or two."""
    plan, raw = planner(), make(ID).raw
    place, angle = np.array([240.0, 260.0]), 0.6
    expected = plan._follow(place, angle)
    goal = np.array([256.0, 256.0]), np.pi / 4
    corners = np.array(
        [(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)]
    )
    wrong, moves = [], []
    for point in range(0, len(plan.points), 3):
        obs = pushed(raw, point, 20.0, plan)
        ours = obs[2:4] + corners @ _rotation(obs[4]).T
        places = goal[0] + corners @ _rotation(goal[1]).T
        left = np.linalg.norm(ours - places, axis=-1).mean()
        wrong.append(abs(left - expected[point, 19]))
        moves.append(
            abs(
                left - np.linalg.norm(place + corners @ _rotation(angle).T - places, axis=-1).mean()
            )
        )
    assert np.median(wrong) < 1.0 and max(wrong) < 3.0
    assert np.median(moves) > 5.0


@pytest.mark.parametrize("start", ["anywhere", "near"])
def test_it_brings_the_block_to_its_place(start: str) -> None:
    env = make(ID, start=start)
    steps = []
    for seed in range(6):
        obs, plan, terminated, count = env.raw.reset(seed=seed)[0], planner(noise=5.0), False, 0
        while not terminated and count < 300:
            action = np.clip(plan.act(obs), 0, 512).astype(np.float32)
            obs, _, terminated, _, _ = env.raw.step(action)
            count += 1
        assert terminated
        steps.append(count)
    assert np.mean(steps) < (160 if start == "anywhere" else 75)


def test_it_keeps_the_disc_from_the_walls() -> None:
    """Beside a wall no push and no way to it leads where the disc has no room."""
    plan, place = planner(), np.array([40.0, 256.0])
    left = plan._follow(place, 0.0)
    starts = place + plan.points + 15.0 * plan.normals
    for start, normal, row in zip(starts, plan.normals, left, strict=True):
        disc = start - np.arange(1, 61)[:, None] * normal
        room = np.logical_and.accumulate(((disc > 20) & (disc < 491)).all(1))
        np.testing.assert_array_equal(np.isfinite(row), room)
    assert np.isinf(left).any() and np.isfinite(left).any()
    generator, ways = np.random.default_rng(0), 0
    for _ in range(60):
        disc = generator.uniform(30, 480, 2)
        place = np.array([generator.uniform(30, 60), generator.uniform(60, 450)])
        plan._plan(disc, place, generator.uniform(0, 2 * np.pi))
        for point in plan.way[1:]:  # the first may lead off the block
            assert (point > 20).all() and (point < 491).all()
        ways += len(plan.way) > 2
    assert ways > 8


def test_both_observations_give_the_same_push() -> None:
    """The angle and the corners say the same."""
    state, corners = make(ID).raw, make(ID, obs_type="environment_state_agent_pos").raw
    first, second = planner(), planner()
    one, other = state.reset(seed=3)[0], corners.reset(seed=3)[0]
    for _ in range(30):
        np.testing.assert_allclose(_read(one)[1], _read(other)[1], atol=1e-6)
        action = first.act(one)
        np.testing.assert_allclose(action, second.act(other), atol=1e-5)
        one, other = state.step(action)[0], corners.step(action)[0]


def test_geometry() -> None:
    square = np.array([(0, 0), (4, 0), (4, 4), (0, 4)], float)
    assert _within(np.array([1.0, 2.0]), square) and not _within(np.array([5.0, 2.0]), square)
    far, near, inside = np.array([-1.0, 5.0]), np.array([5.0, 5.0]), np.array([2.0, 2.0])
    assert _crosses(far, inside, square) and _crosses(np.array([-1.0, 1.0]), near, square)
    assert _crosses(inside, np.array([3.0, 3.0]), square) and not _crosses(far, near, square)


def test_wrong_settings_are_refused() -> None:
    for name in ("ahead", "press", "longest"):
        for pixels in (0, 513):
            with pytest.raises(TrimtabError, match=f"{name}={pixels}: must be from 1 to 512"):
                planner(**{name: pixels})
    with pytest.raises(TrimtabError, match="of 5 or 18 numbers, not of 11"):
        planner().act(np.zeros(11))
