"""The formulas of Gymnasium's MuJoCo tasks, version 5, over many simulations at once.

They repeat Gymnasium's operations in its order, so that every result is the same to the last bit,
and take all constants from one of its environments. Starts of episodes are not here: Gymnasium's
own ``reset`` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.envs.engines.episodes import Bools
from trimtab.envs.engines.mujoco_vector import Floats, MujocoTask, State

__all__ = ["TASKS"]

# What Python's float times a float32 number is: float64 before NumPy 2, float32 since. For arrays
# it is float32 always, so sums of float32 actions become this before they meet their weight.
_PRODUCT = (1.0 * np.float32(1.0)).dtype


def _effort(state: State) -> NDArray[Any]:
    """Return the sum of the squared actions, [N]."""
    effort: NDArray[Any] = np.add.reduce(np.square(state.actions), axis=1)
    return effort.astype(_PRODUCT, copy=False)


def _squares(values: Floats) -> Floats:
    """Return the sum [N] of the squares of all ``values`` [N, ...]."""
    total: Floats = np.square(values).reshape(len(values), -1).sum(axis=1)
    return total


def _norms(vectors: Floats) -> Floats:
    """Return the lengths [N], as ``numpy.linalg.norm`` has them of one vector.

    That is by BLAS, whose last bit depends on where in memory a vector begins; hence the copies.
    """
    return np.sqrt([vector.dot(vector) for vector in map(np.copy, vectors)])


def _within(values: Floats, limits: tuple[float, float]) -> Bools:
    low, high = limits
    return (low < values) & (values < high)


def _never(state: State) -> Bools:
    return np.zeros(len(state.simulations), np.bool_)


def _x(state: State) -> Floats:
    return state.qpos[:, 0].copy()


def _runner_reward(state: State) -> tuple[Floats, Bools]:
    """HalfCheetah and Swimmer: forward, with little effort."""
    env = state.env
    forward = env._forward_reward_weight * state.velocity
    return forward - env._ctrl_cost_weight * _effort(state), _never(state)


def _healthy_reward(state: State, healthy: Bools, costs: NDArray[Any]) -> tuple[Floats, Bools]:
    """Forward and in good health, against the costs."""
    env = state.env
    forward = env._forward_reward_weight * state.velocity
    rewards = forward + healthy * env._healthy_reward
    return rewards - costs, ~healthy & env._terminate_when_unhealthy


def _upright(state: State) -> Bools:
    """Height and angle of Hopper and Walker2d within their ranges."""
    z, angle = state.qpos[:, 1], state.qpos[:, 2]
    return _within(z, state.env._healthy_z_range) & _within(angle, state.env._healthy_angle_range)


def _hopper_reward(state: State) -> tuple[Floats, Bools]:
    healthy = _upright(state)
    healthy &= _within(state.motion[:, 2:], state.env._healthy_state_range).all(axis=1)
    return _healthy_reward(state, healthy, state.env._ctrl_cost_weight * _effort(state))


def _walker_reward(state: State) -> tuple[Floats, Bools]:
    return _healthy_reward(state, _upright(state), state.env._ctrl_cost_weight * _effort(state))


def _ant_forces(state: State) -> Floats:
    return state.cfrc_ext.clip(*state.env._contact_force_range)


def _ant_reward(state: State) -> tuple[Floats, Bools]:
    env = state.env
    low, high = env._healthy_z_range
    z = state.qpos[:, 2]
    healthy = np.isfinite(state.motion).all(axis=1) & (low <= z) & (z <= high)
    contact = env._contact_cost_weight * _squares(_ant_forces(state))
    costs = env._ctrl_cost_weight * _effort(state) + contact
    return _healthy_reward(state, healthy, costs)


def _ant_observation(state: State) -> tuple[Floats, ...]:
    forces = _ant_forces(state)[:, 1:]
    return state.motion[:, 2:], forces.reshape(len(forces), -1)


def _mass_center_x(state: State) -> Floats:
    from gymnasium.envs.mujoco import humanoid_v5

    center: Callable[[Any, Any], Floats] = humanoid_v5.mass_center
    return np.array([center(state.env.model, data)[0] for data in state.simulations])


def _humanoid_reward(state: State) -> tuple[Floats, Bools]:
    env = state.env
    healthy = _within(state.qpos[:, 2], env._healthy_z_range)
    contact = np.clip(env._contact_cost_weight * _squares(state.cfrc_ext), *env._contact_cost_range)
    costs = env._ctrl_cost_weight * _squares(state.ctrl) + contact
    return _healthy_reward(state, healthy, costs)


def _standup_reward(state: State) -> tuple[Floats, Bools]:
    env = state.env
    height = state.qpos[:, 2] / env.model.opt.timestep
    impact = np.clip(env._impact_cost_weight * _squares(state.cfrc_ext), *env._impact_cost_range)
    return height - env._ctrl_cost_weight * _squares(state.ctrl) - impact + 1, _never(state)


def _humanoid_observation(state: State) -> tuple[Floats, ...]:
    count = len(state.simulations)
    return (
        state.motion[:, 2:],
        state.cinert[:, 1:].reshape(count, -1),
        state.cvel[:, 1:].reshape(count, -1),
        state.qfrc_actuator[:, 6:],
        state.cfrc_ext[:, 1:].reshape(count, -1),
    )


def _pendulum_reward(state: State) -> tuple[Floats, Bools]:
    failed = ~np.isfinite(state.motion).all(axis=1)
    failed |= np.abs(state.qpos[:, 1]) > 0.2
    return (~failed).astype(np.float64), failed


def _double_pendulum_reward(state: State) -> tuple[Floats, Bools]:
    # Number for number: the power of a number and that of an array may differ in the last bit.
    alive = state.env._healthy_reward
    tips, velocities = state.site_xpos[:, 0], state.qvel[:, 1:3]
    failed = tips[:, 2] <= 1
    penalties = [
        (0.01 * x**2 + (y - 2) ** 2, 1e-3 * v1**2 + 5e-3 * v2**2)
        for (x, _, y), (v1, v2) in zip(tips, velocities, strict=True)
    ]
    distance, velocity = np.array(penalties).T
    return alive * ~failed - distance - velocity, failed


def _double_pendulum_observation(state: State) -> tuple[Floats, ...]:
    angles = np.ascontiguousarray(state.qpos[:, 1:])
    return (
        state.qpos[:, :1],
        np.sin(angles),
        np.cos(angles),
        state.qvel.clip(-10, 10),
        state.qfrc_constraint[:, :1].clip(-10, 10),
    )


def _reacher_reward(state: State) -> tuple[Floats, Bools]:
    env = state.env
    distance = -_norms(state.body("fingertip") - state.body("target")) * env._reward_dist_weight
    return distance + -_effort(state) * env._reward_control_weight, _never(state)


def _reacher_observation(state: State) -> tuple[Floats, ...]:
    angles = np.ascontiguousarray(state.qpos[:, :2])
    difference = state.body("fingertip") - state.body("target")
    cos, sin = np.cos(angles), np.sin(angles)
    return cos, sin, state.qpos[:, 2:], state.qvel[:, :2], difference[:, :2]


def _pusher_reward(state: State) -> tuple[Floats, Bools]:
    env, thing = state.env, state.body("object")
    near = -_norms(thing - state.body("tips_arm")) * env._reward_near_weight
    distance = -_norms(thing - state.body("goal")) * env._reward_dist_weight
    return distance + -_effort(state) * env._reward_control_weight + near, _never(state)


def _pusher_observation(state: State) -> tuple[Floats, ...]:
    bodies = (state.body(name) for name in ("tips_arm", "object", "goal"))
    return state.qpos[:, :7], state.qvel[:, :7], *bodies


def _without_x_clipped(state: State) -> tuple[Floats, ...]:
    return state.qpos[:, 1:], state.qvel.clip(-10, 10)


_HUMANOID = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ctrl")

TASKS: Mapping[str, MujocoTask] = MappingProxyType(
    {
        "Ant-v5": MujocoTask(
            ("xpos", "cfrc_ext"),
            _ant_observation,
            _ant_reward,
            lambda state: state.body(state.env._main_body)[:, 0].copy(),
        ),
        "HalfCheetah-v5": MujocoTask((), lambda state: (state.motion[:, 1:],), _runner_reward, _x),
        "Hopper-v5": MujocoTask((), _without_x_clipped, _hopper_reward, _x),
        "Humanoid-v5": MujocoTask(
            _HUMANOID, _humanoid_observation, _humanoid_reward, _mass_center_x
        ),
        "HumanoidStandup-v5": MujocoTask(_HUMANOID, _humanoid_observation, _standup_reward),
        "InvertedDoublePendulum-v5": MujocoTask(
            ("site_xpos", "qfrc_constraint"),
            _double_pendulum_observation,
            _double_pendulum_reward,
        ),
        "InvertedPendulum-v5": MujocoTask((), lambda state: (state.motion,), _pendulum_reward),
        "Pusher-v5": MujocoTask(("xpos",), _pusher_observation, _pusher_reward),
        "Reacher-v5": MujocoTask(("xpos",), _reacher_observation, _reacher_reward),
        "Swimmer-v5": MujocoTask((), lambda state: (state.motion[:, 2:],), _runner_reward, _x),
        "Walker2d-v5": MujocoTask((), _without_x_clipped, _walker_reward, _x),
    }
)
