"""RAPTOR, a quadrotor's recurrent policy of others: its own golden rows, and a flight.

Eschmann et al., 2025, "RAPTOR: A Foundation Policy for Quadrotor Control". Weights and golden rows
are in the package ``foundation-policy``; they are read from the installed file, and no code of it
is imported. The quadrotor is a Crazyflie with the numbers of l2f's simulator, written anew below;
``benchmarks/results/robots/raptor.py`` flies the policy in l2f itself, which takes long to compile.
"""

from __future__ import annotations

import importlib.util
import re
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.policies.opening import load_policy
from trimtab.policies.runtime import PolicyRunner

BLOCK = re.compile(r"^```yaml file=raptor.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def raptor(root: Path) -> ModuleType:
    """The example of the page."""
    file = root / "docs" / "examples" / "raptor" / "raptor.py"
    spec = importlib.util.spec_from_file_location("raptor", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def told(raptor: ModuleType) -> dict[str, Any]:
    """What the package's file holds, by name."""
    found: dict[str, Any] = raptor.checkpoint()
    return found


@pytest.fixture(scope="module")
def network(
    raptor: ModuleType, told: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The weights as ONNX."""
    file = tmp_path_factory.mktemp("raptor") / "raptor.onnx"
    onnx.save(raptor.network(told), file)
    return file


@pytest.fixture(scope="module")
def contract(root: Path) -> dict[str, Any]:
    """The contract of the page."""
    page = (root / "docs" / "foreign-policies.md").read_text(encoding="utf-8")
    (text,) = BLOCK.findall(page)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def opened(network: Path, contract: dict[str, Any], folder: Path) -> PolicyRunner:
    """Return the runner of a bundle."""
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract, sort_keys=False))
    export_policy(str(network), str(folder / "b"), contract=str(folder / "contract.yaml"))
    return load_policy(folder / "b")


def given_last(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the contract with a last action that the robot gives, and no clip."""
    terms = {**contract["observation"]["terms"], "last": {"size": 4}}
    observation = {**contract["observation"], "terms": terms}
    return {**contract, "observation": observation, "action": {"low": -20, "high": 20}}


def test_the_golden_rows_of_the_package_replay(
    told: dict[str, Any], network: Path, contract: dict[str, Any], tmp_path: Path
) -> None:
    """Check 17: two sequences of 500 decisions, to 1e-5; not reset, they differ (check 18)."""
    runner = opened(network, given_last(contract), tmp_path)
    rows, expected = told["example/input"], told["example/output"]
    for sequence in range(2):
        runner.reset()
        played = np.array([runner.step(row) for row in rows[:, sequence]])
        np.testing.assert_allclose(played, expected[:, sequence], rtol=0, atol=1e-5)
    assert np.abs(runner.step(rows[0, 0]) - expected[0, 0]).max() > 1e-3


def test_it_flies_and_with_an_old_last_action_it_flies_off(
    network: Path, contract: dict[str, Any], tmp_path: Path
) -> None:
    """Golden rows say nothing about what a policy is fed with; the closed loop does.

    The package's example takes a wrong slice of l2f's observation, the action of 16 ticks before.
    """
    (tmp_path / "given").mkdir()
    remembers = opened(network, contract, tmp_path)
    given = opened(network, given_last(contract), tmp_path / "given")
    start, where = [0.3, -0.2, 0.1], {}
    remembers.reset()
    right = _flown(remembers.step, start)
    for lag in (1, 16, 32):
        sent = deque([np.zeros(4)] * lag, maxlen=lag)

        def fed(obs: Any, sent: deque[Any] = sent) -> Any:
            sent.append(np.clip(given.step(np.concatenate([obs, sent[0]])), -1, 1))
            return sent[-1]

        given.reset()
        where[lag] = _flown(fed, start)
    np.testing.assert_allclose(where[1], right, atol=1e-4)  # what is remembered is what was sent
    far = {lag: float(np.linalg.norm(place)) for lag, place in where.items()}
    assert far[1] < 0.1 and far[16] > 2 * far[1] and far[32] > 2


def _flown(policy: Any, start: Any, ticks: int = 300) -> Any:
    """Return the position after some ticks of 10 ms."""
    mass, inertia = 0.0322, np.array([9.4166e-6, 9.6441e-6, 1.74595e-5])
    rotors = 0.028 * np.array([[1, -1], [-1, -1], [-1, 1], [1, 1]])
    turns = 4.665e-3 * np.array([-1, 1, -1, 1])
    position, turned, velocity, spin = np.array(start, float), np.eye(3), np.zeros(3), np.zeros(3)
    motors, dt = np.full(4, 0.5), 2e-3
    for _ in range(ticks):
        action = policy(np.concatenate([position, turned.ravel(), velocity, spin]))
        goal = (np.clip(action, -1, 1) + 1) / 2
        for _ in range(5):
            motors = motors + dt * (goal - motors) / np.where(goal > motors, 0.05545, 0.24939)
            thrust = 0.00352526 + 0.01437313 * motors + 0.09223048 * motors**2
            torque = np.array([thrust @ rotors[:, 1], -thrust @ rotors[:, 0], thrust @ turns])
            spin = spin + dt * (torque - np.cross(spin, inertia * spin)) / inertia
            velocity = velocity + dt * (turned[:, 2] * thrust.sum() / mass - [0, 0, 9.81])
            position = position + dt * velocity
            x, y, z = dt * spin
            step = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
            turned = turned @ (np.eye(3) + step + step @ step / 2)
        left, _, right = np.linalg.svd(turned)
        turned = left @ right
    return position
