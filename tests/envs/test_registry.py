"""Ids, options and their errors; imports stay lazy."""

import dataclasses
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from trimtab.envs.register import gymnasium_id
from trimtab.envs.registry import get_spec, list_envs, make
from trimtab.errors import TrimtabError


def test_all_families_are_found() -> None:
    ids = list_envs()
    assert ids == tuple(sorted(set(ids)))
    counts = {
        "dmc": 51,
        "gym": 11,
        "metaworld": 50,
        "ogbench": 161,
        "playground": 25,
        "pusht": 1,
        "robosuite": 14,
        "robotics": 65,
    }
    for family, count in counts.items():
        assert sum(id.startswith(f"{family}/") for id in ids) == count
    mazes = {"PointMaze-TwoRoutes-v0", "PointMaze-TwoRoutes-Blocked-v0"}
    assert {f"robotics/{maze}" for maze in mazes} <= set(ids)


def test_listing_imports_no_simulator_and_no_torch() -> None:
    code = (
        "import sys, trimtab.envs.vector, trimtab.envs.registry as r; r.list_envs(); "
        "simulators = {'mujoco', 'metaworld', 'gymnasium_robotics', 'dm_control', 'ogbench'}; "
        "sys.exit(bool(({'torch', 'jax', 'robosuite'} | simulators) & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_and_making_says_nothing() -> None:
    code = (
        "from trimtab.envs.registry import make; "
        "[make(i).reset(seed=0) for i in "
        "('gym/Ant-v5', 'metaworld/reach-v3', 'robotics/PointMaze_UMaze-v3')]"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (result.stdout, result.stderr) == (b"", b"")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gym/hoper-v5", "gym/Hopper-v5"),
        ("Hopper-v5", "gym/Hopper-v5"),
        ("metaworld/pick-place", "metaworld/pick-place-v3"),
        ("mujoco/Ant-v5", "gym/Ant-v5"),
        ("hopper", "gym/Hopper-v5"),
    ],
)
def test_unknown_id_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(TrimtabError, match=f"unknown environment '{wrong}'.*'{right}'"):
        make(wrong)


@pytest.mark.parametrize("wrong", ["unknown", "gym/Unknown", "foo/bar", "x"])
def test_an_id_that_is_near_none_is_not_taken_for_one(wrong: str) -> None:
    with pytest.raises(TrimtabError, match=f"'{wrong}'; trimtab list env shows all"):
        make(wrong)


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("gym/Hopper-v5", {"horizn": 3}, "unknown environment option 'horizn'"),
        ("gym/Hopper-v5", {"horizon": 0}, "horizon must be"),
        ("gym/Hopper-v5", {"horizon": 2.5}, "horizon must be"),
        ("gym/Hopper-v5", {"horizon": True}, "horizon must be"),
        ("gym/Hopper-v5", {"reward": "sparse"}, "no notion of success"),
        ("gym/Hopper-v5", {"terminate_on_success": True}, "no notion of success"),
        ("metaworld/push-v3", {"reward": "dense"}, "reward must be one of native, sparse"),
        ("metaworld/push-v3", {"terminate_on_success": "yes"}, "terminate_on_success must be"),
    ],
)
def test_wrong_options(id: str, options: dict[str, object], message: str) -> None:
    for function in (make, get_spec):
        with pytest.raises(TrimtabError, match=message) as error:
            function(id, **options)
        assert "\n" not in str(error.value)


def test_missing_simulator_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(TrimtabError, match=r"pip install 'trimtab\[metaworld\]'"):
        make("metaworld/push-v3")


def test_spec_of_hopper() -> None:
    spec = get_spec("gym/Hopper-v5")
    assert (spec.obs_dim, spec.action_dim, spec.horizon) == (11, 3, 1000)
    assert spec.action_low == (-1.0,) * 3 and spec.action_high == (1.0,) * 3
    assert spec.control_rate == 125.0
    assert spec.success_key is None
    assert spec.score_references["d4rl-v2"] == (-20.272305, 3234.3)
    assert spec.physics["integrator"] == "RK4" and spec.physics["frame_skip"] == 4
    assert spec.options == {}
    assert get_spec("gym/Hopper-v5") is spec
    assert spec.to_json()["action_low"] == [-1.0] * 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.horizon = 3  # type: ignore[misc]


def test_native_values_are_not_options() -> None:
    spec = get_spec("gym/Hopper-v5", horizon=1000, reward="native", terminate_on_success=False)
    assert spec is get_spec("gym/Hopper-v5")
    changed = get_spec("gym/Hopper-v5", horizon=7)
    assert changed.options == {"horizon": 7} and changed.horizon == 7
    assert changed.fingerprint != spec.fingerprint


def test_gymnasium_makes_every_id() -> None:
    assert all(gymnasium_id(id) in gymnasium.registry for id in list_envs())
    env = gymnasium.make("trimtab.envs.register:trimtab/gym.Hopper-v5", horizon=3)
    ours = make("gym/Hopper-v5", horizon=3)
    obs, _ = env.reset(seed=4)
    np.testing.assert_array_equal(obs, ours.reset(seed=4)[0])
    action = np.zeros(3, np.float32)
    ends = [env.step(action)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize("id", ["gym/Hopper-v5", "pusht/PushT-v0"])
def test_gymnasium_draws_checks_and_vectorises(id: str) -> None:
    name = f"trimtab.envs.register:{gymnasium_id(id)}"
    drawn = gymnasium.make(name, render_mode="rgb_array")
    drawn.reset(seed=0)
    picture = drawn.render()
    assert isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.std() > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no limits of observations, actions in raw units
        check_env(drawn.unwrapped)
    drawn.close()
    envs = gymnasium.make_vec(name, num_envs=2, vectorization_mode="sync", horizon=3)
    obs, _ = envs.reset(seed=4)
    np.testing.assert_array_equal(obs[0], make(id, horizon=3).reset(seed=4)[0])
    envs.close()
    with pytest.raises(TrimtabError, match="render_mode=human: it is rgb_array or none"):
        gymnasium.make(name, render_mode="human")


def test_two_tasks_never_share_a_fingerprint() -> None:
    """A short trajectory alone does not reach the door that tells these two mazes apart."""
    ids = ("robotics/PointMaze-TwoRoutes-v0", "robotics/PointMaze-TwoRoutes-Blocked-v0")
    assert len({get_spec(id).fingerprint for id in ids}) == 2
