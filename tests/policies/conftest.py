"""Bundles of every kind of policy, exported once and shared by the tests of this folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.bundle.files import CONFIG, Array, sealed

_module = load_module(Path(__file__).with_name("cases.py"))
CASES: list[str] = _module.CASES
POLICY_OF: Callable[[str], Policy] = _module.policy_of
CONTRACT = {
    "env": "robotics/PointMaze-TwoRoutes-v0",
    "env_options": {"horizon": 250},
    "env_horizon": 250,
    "fingerprint": "0123456789ab",
    "control_rate": 10.0,
    "act_steps": 3,
    "action_names": ["force_x", "force_y"],
    "training": {"algorithm": "bc", "dataset": "two_routes", "seed": 7, "steps": 100},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES)


@pytest.fixture(scope="session")
def schedulers() -> dict[str, Any]:
    """Diffusers' schedulers; they take a second to import, and few processes ask for them."""
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    return {"ddim": DDIMScheduler, "ddpm": DDPMScheduler}


@pytest.fixture
def contract() -> dict[str, Any]:
    return dict(CONTRACT)


@pytest.fixture(scope="session")
def policy_of() -> Callable[[str], Policy]:
    """Build the policy of a case, the same weights every time."""
    return POLICY_OF


@pytest.fixture(scope="session")
def bundle_of(
    policy_of: Callable[[str], Policy], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Export the bundle of a case once; it must not be changed."""
    root = tmp_path_factory.mktemp("bundles")

    def export(case: str) -> Path:
        folder = root / case
        return (
            folder if folder.exists() else save_bundle(policy_of(case), folder, contract=CONTRACT)
        )

    return export


@pytest.fixture
def copy_of(bundle_of: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Copy the bundle of a case to a folder that may be damaged."""

    def copy(case: str) -> Path:
        return Path(shutil.copytree(bundle_of(case), tmp_path / case, dirs_exist_ok=True))

    return copy


@pytest.fixture(scope="session")
def reseal() -> Callable[..., None]:
    """Change a bundle and make its hashes right again, as a careless or hostile writer would."""

    def write(folder: Path, *, config: dict[str, Any] | None = None, **changed: bytes) -> None:
        body = json.loads((folder / CONFIG).read_text())
        files = {name: (folder / name).read_bytes() for name in body["files"]}
        for name in files:
            files[name] = changed.get(name.partition(".")[0], files[name])
            (folder / name).write_bytes(files[name])
        (folder / CONFIG).write_text(json.dumps(sealed({**body, **(config or {})}, files)))

    return write


@pytest.fixture
def rows() -> Callable[..., tuple[Array, Array]]:
    """Draw observations and noise for a policy."""

    def draw(policy: Policy, count: int, seed: int = 5) -> tuple[Array, Array]:
        generator = np.random.default_rng(seed)
        obs = generator.normal(size=(count, policy.spec.obs_dim)).astype(np.float32)
        noise = generator.normal(size=(count, *policy.noise_shape)).astype(np.float32)
        return obs, noise

    return draw
