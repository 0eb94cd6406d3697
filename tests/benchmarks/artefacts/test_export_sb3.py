"""``trimtab export`` of a model that Stable-Baselines3 saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3

from trimtab.benchmarks.cli.main import main
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.opening import load_policy


class Hopper(gymnasium.Env[Any, Any]):
    """The spaces of a task, without its simulator."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.zip"
    stable_baselines3.PPO("MlpPolicy", Hopper(), seed=0, device="cpu").save(path)
    return path


def code_of(*words: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["export", *words])
    return ended.value.code


def test_becomes_a_bundle(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bundle"
    assert code_of(f"run={model}", "env=gym/Hopper-v5", f"out={out}") == 0
    assert "golden rows replay" in capsys.readouterr().out
    config = load_bundle(out).config
    assert (config["env"]["id"], config["control_rate"]) == ("gym/Hopper-v5", 125.0)
    assert config["env"]["horizon"] == 1000 and len(config["env"]["fingerprint"]) > 0
    obs = np.random.default_rng(0).normal(size=11).astype(np.float32)
    theirs, _ = stable_baselines3.PPO.load(model, device="cpu").predict(obs, deterministic=True)
    np.testing.assert_allclose(load_policy(out).step(obs), theirs, atol=1e-5)
    again = tmp_path / "again"
    assert code_of(f"run={out}", f"out={again}") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run={model}"], "add env="),
        (["run={model}", "env=gym/Ant-v5"], "against"),
        (["run={model}", "env=gym/Nothing-v5"], "unknown environment"),
        (["run={model}.zip", "env=gym/Hopper-v5"], "No such file"),
        (["run={model.parent}", "env=gym/Hopper-v5"], "leave env= out"),
    ],
)
def test_wrong_words_end_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    filled = [word.format(model=model) for word in words]
    assert code_of(*filled, f"out={tmp_path / 'bundle'}") == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "bundle").exists()
