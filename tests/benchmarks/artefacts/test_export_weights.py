"""``trimtab export`` of a weight file, with a contract that says what the file does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.benchmarks.cli.main import main
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.opening import load_policy

TESTS = Path(__file__).resolve().parents[2]
files = load_module(TESTS / "policies" / "weight_files.py")
CONTRACT = """
activation: elu
control_rate: 50
observation: {names: [gravity_x, gravity_y, speed, command], units: m}
action: {names: [hip, knee], units: rad, low: -3, high: [3, 3]}
"""


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "robot" / "contract.yaml"
    path.parent.mkdir()
    path.write_text(CONTRACT)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path: Path = files.CASES["rsl_rl 5"].write(tmp_path / "model.pt")
    return path


def code_of(command: str, *words: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([command, *words])
    return ended.value.code


def test_becomes_a_bundle_without_a_task(
    model: Path, contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    assert code_of("export", f"run={model}", f"contract={contract}", f"out={out}") == 0
    assert "golden rows replay" in capsys.readouterr().out
    config = load_bundle(out).config
    assert (config["env"]["id"], config["control_rate"]) == ("data:model.pt", 50.0)
    assert config["outputs"]["action"]["order"] == ["hip", "knee"]
    assert config["outputs"]["action"]["low"] == [-3.0, -3.0]
    assert config["inputs"]["obs"]["order"][-1] == "command"
    assert config["training"]["algorithm"] == "rsl_rl"
    assert config["policy"]["kind"] == "diagonal_gaussian"
    obs = np.float32([0.1, -0.4, 1.0, 2.0])
    np.testing.assert_allclose(load_policy(out).step(obs), files.rsl_rl(obs), atol=1e-4)
    assert code_of("evaluate", f"policy={out}", "episodes=1") == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", ["contract={contract}"], "activation: elu"),
        ("activation: eluu", ["contract={contract}"], "did you mean elu?"),
        ("activation: [elu]", ["contract={contract}"], "activation must be a word"),
        ("activation: elu", ["contract={contract}"], "action.low, action.high, control_rate"),
        (CONTRACT.replace("-3", "-a"), ["contract={contract}"], "finite numbers"),
        (CONTRACT + "joint: 1", ["contract={contract}"], "no entry 'joint'"),
        (CONTRACT.replace("50", "0"), ["contract={contract}"], "control_rate"),
        (CONTRACT, ["contract={contract}x"], "No such file"),
        (CONTRACT, [], "add env=<a task>, or contract="),
        (CONTRACT, ["contract={contract}", "policy.sampling_steps=2"], "no such setting"),
        (CONTRACT, ["contract={contract}", "env=gym/Hopper-v5"], "action.low"),
        ("activation: elu", ["contract={contract}", "env=gym/Hopper-v5"], "(4, 2) against (11, 3)"),
        ("control_rate: 4", ["contract={contract}", "env=gym/Hopper-v5"], "activation: elu"),
        (
            "activation: elu\ncontrol_rate: 4",
            ["contract={contract}", "env=gym/Hopper-v5"],
            "env has 125",
        ),
    ],
)
def test_wrong_contracts_end_in_one_line(
    text: str, words: list[str], said: str, model: Path, contract: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    contract.write_text(text or "{}")
    filled = [word.format(contract=contract) for word in words]
    assert code_of("export", f"run={model}", f"out={tmp_path / 'bundle'}", *filled) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error
    assert not (tmp_path / "bundle").exists()


def test_statistics_are_found_beside_the_contract(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = files.CASES["CleanRL PPO"].write(tmp_path / "model.pt")
    contract.write_text(CONTRACT.replace("elu", "tanh") + "statistics: statistics.npz")
    words = [f"run={model}", f"contract={contract}", f"out={tmp_path / 'bundle'}"]
    assert code_of("export", *words) == 2
    error = capsys.readouterr().err
    assert "No such file" in error and str(contract.with_name("statistics.npz")) in error
