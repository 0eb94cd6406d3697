"""Environments in a process of their own: the same bits, their errors in one line, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from trimtab.envs.engines.process_vector import ProcessVectorEnv
from trimtab.envs.vector import make_vec, make_vec_elsewhere
from trimtab.errors import TrimtabError

OWN = """
import os
import sys
import time

import gymnasium
import numpy as np
import torch


class Drawn(gymnasium.Env):
    metadata = {"render_fps": 10}
    observation_space = gymnasium.spaces.Box(-99, 99, (3,))
    action_space = gymnasium.spaces.Box(-9, 9, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3), {}

    def step(self, action):
        if action[0] > 5:
            raise KeyError("a fault\\nof mine")
        if action[0] > 4:
            sys.exit(5)
        if action[0] > 3:
            open(os.environ["MARK"], "w").close()
            time.sleep(1)
        drawn = np.random.random() if action[0] < 0 else 0.0
        also = torch.rand(()).item() if action[0] < 0 else 0.0
        return np.array([drawn, also, 0.0]), 0.0, False, False, {}

    def close(self):
        if "CLOSED" in os.environ:
            open(os.environ["CLOSED"], "w").close()


gymnasium.register("own_drawn/Drawn-v0", entry_point=Drawn, max_episode_steps=9)
"""
DRAWN = "gymnasium:own_drawn:own_drawn/Drawn-v0"
STEPS = """
import sys
import numpy as np
from trimtab.envs.vector import make_vec_elsewhere

if __name__ == "__main__":
    envs = make_vec_elsewhere(sys.argv[1], 1, seed=0, global_seed=0, torch_threads=1)
    envs.reset()
    print(envs._child.process.pid, flush=True)
    envs.step(np.full((1, 1, 1), 3.5))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a user's module with a task, which can be imported."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_drawn.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
    sys.modules.pop("own_drawn", None)


def elsewhere(id: str, count: int = 1, **more: Any) -> ProcessVectorEnv:
    return make_vec_elsewhere(id, count, seed=4, global_seed=7, torch_threads=1, **more)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def in_time(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(process: int) -> bool:
    return not psutil.pid_exists(process) or psutil.Process(process).status() == "zombie"


@pytest.mark.parametrize(
    ("id", "observations"),
    [("gym/Hopper-v5", "flat"), ("robotics/PointMaze-TwoRoutes-v0", "dict")],
)
def test_gives_the_bits_of_the_same_environments_here(id: str, observations: str) -> None:
    """Over the ends of episodes, and from a state that was saved there or here."""
    chosen: dict[str, Any] = {"observations": observations, "act_steps": 2, "horizon": 9}
    here: Any = make_vec(id, 2, seed=4, **chosen)
    with closing(elsewhere(id, 2, **chosen)) as there:
        for name in ("single_observation_space", "single_action_space", "action_space"):
            assert getattr(there, name) == getattr(here, name)
        assert there.observation_space == here.observation_space
        assert (there.id, there.num_envs, there.act_steps) == (id, 2, 2)
        assert_equal(there.reset()[0], here.reset()[0])
        rng = np.random.default_rng(0)
        ended = 0
        for number in range(14):
            actions = rng.uniform(-1, 1, here.action_space.shape).astype(np.float32)
            there.begin_step(actions)
            *values, infos = here.step(actions)
            *found, told = there.finish_step()
            for one, other in zip(found, values, strict=True):
                assert_equal(one, other)
            assert_equal(told, infos)
            ended += int((values[2] | values[3]).sum())
            if number == 6:
                saved = there.state_dict()
                assert_equal({name: saved[name] for name in here.state_dict()}, here.state_dict())
                marked = values
        assert ended >= 4
        there.load_state_dict(saved)
        here.load_state_dict({name: saved[name] for name in here.state_dict()})
        assert_equal(there.step(actions)[0], here.step(actions)[0])
        with pytest.raises(TrimtabError, match="the saved state lacks numpy_random and torch_rand"):
            there.load_state_dict(here.state_dict())
    assert there._child.process.returncode == 0 and marked
    with pytest.raises(TrimtabError, match="it is closed; make another one"):
        there.reset()


def test_global_generators_have_their_own_seed_and_are_saved(own: Path) -> None:
    actions = np.full((1, 1, 1), -1.0)

    def drawn(envs: ProcessVectorEnv) -> bytes:
        found = [envs.step(actions)[0] for _ in range(3)]
        assert len({value.tobytes() for value in found}) == 3
        return np.concatenate(found).tobytes()

    before = np.random.get_state(legacy=True)[1].tobytes()
    with closing(elsewhere(DRAWN)) as one, closing(elsewhere(DRAWN)) as other:
        for envs in (one, other):
            envs.reset()
        state = one.state_dict()
        first = drawn(one)
        assert drawn(other) == first  # the same seed
        assert drawn(one) != first
        one.load_state_dict(state)
        assert drawn(one) == first
    assert np.random.get_state(legacy=True)[1].tobytes() == before


def test_errors_are_one_line(own: Path) -> None:
    with closing(elsewhere(DRAWN)) as envs:
        envs.reset()
        for action, told in (
            (np.nan, "the action for environment 0 is not finite"),
            (6.0, "in the process of the environments: KeyError: 'a fault"),
            (4.5, r"the process of the environments ended \(exit code 5\)"),
        ):
            with pytest.raises(TrimtabError, match=told) as error:
                envs.step(np.full((1, 1, 1), action))
            assert "\n" not in str(error.value) and str(error.value).startswith(DRAWN)
            if action == 6.0:  # where it was is in the note of what caused it
                assert "own_drawn.py" in str(error.value.__cause__.__notes__)  # type: ignore[union-attr]


def test_a_wrong_option_is_told_as_here_and_leaves_no_process() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(TrimtabError, match="horizon"):
        elsewhere("gym/Hopper-v5", horizon=-1)
    with pytest.raises(TrimtabError, match="num_envs must be a whole number >= 1, got 0"):
        elsewhere("gym/Hopper-v5", 0)
    assert set(psutil.Process().children()) == before


def test_a_killed_process_is_told_and_a_signal_to_all_does_not_end_it(own: Path) -> None:
    with closing(elsewhere(DRAWN)) as envs:
        envs.reset()
        envs._child.process.terminate()  # as a cluster does to every process of a job
        time.sleep(0.2)
        envs.step(np.zeros((1, 1, 1)))
        envs._child.process.kill()
        with pytest.raises(TrimtabError, match=r"ended \(killed by signal 9\)"):
            envs.step(np.zeros((1, 1, 1)))


def test_closing_closes_the_environments(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSED", str(tmp_path / "closed"))
    envs = elsewhere(DRAWN)
    envs.reset()
    (tmp_path / "closed").unlink(missing_ok=True)  # what is known of a task closes one, too
    envs.close()
    assert (tmp_path / "closed").exists()


@pytest.mark.slow
def test_the_process_ends_when_its_caller_is_killed(own: Path, tmp_path: Path) -> None:
    """In the middle of a step, which it finishes first."""
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    path = os.pathsep.join([str(own), *sys.path])
    caller = subprocess.Popen(
        [sys.executable, str(script), DRAWN],
        env={**os.environ, "PYTHONPATH": path, "MARK": str(tmp_path / "mark")},
        stdout=subprocess.PIPE,
    )
    assert caller.stdout is not None
    process = int(caller.stdout.readline())
    in_time((tmp_path / "mark").exists)
    assert not gone(process)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    in_time(lambda: gone(process))
