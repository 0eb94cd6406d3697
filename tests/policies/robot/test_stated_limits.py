"""Limits that a bundle states: who needs them, what they hold, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import trimtab
from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.cli.main import run as command
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import add_warning
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.model_card import model_card
from trimtab.policies.bundle.onnx_policy import open_policy
from trimtab.policies.robot.warning import Detector
from trimtab.policies.runtime import NO_LIMITS, Limits, load_policy

BundleOf = Callable[[str], Path]
STATED = {"velocity": [1.0, 2.0], "high": 0.6}


@pytest.fixture
def limited(copy_of: BundleOf, reseal: Any) -> Path:
    folder = copy_of("gaussian")
    reseal(folder, config={"limits": STATED})
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def test_a_robot_needs_limits_and_an_answer_does_not(bundle_of: BundleOf) -> None:
    folder = bundle_of("gaussian")
    with pytest.raises(TrimtabError, match=r"states no limits .* limits=NO_LIMITS"):
        load_policy(folder)
    for none in (Limits(), Limits(velocity=np.inf), Limits(low=(-np.inf, -np.inf))):
        with pytest.raises(TrimtabError, match=r"limits={.*} states none either; .* limits=NO_LIM"):
            load_policy(folder, limits=none)
    some = load_policy(folder, limits=Limits(velocity=(np.inf, 1.0)))  # of one entry alone
    some.reset(action=[0.0, 0.0])
    assert np.abs(some.step([9.0] * 6)[1]) <= 0.1 + 1e-6  # of 10 Hz
    assert load_policy(folder, limits=NO_LIMITS).limits == NO_LIMITS
    assert load_policy(folder, limits=Limits(velocity=3.0)).limits.velocity == 3.0
    assert trimtab.load_policy(folder).limits == NO_LIMITS
    assert open_policy(folder).contract.limits is None
    card = model_card(config_of(folder))
    assert "limits=Limits(" in card and "policy.reset(action=" in card


def test_what_a_bundle_states_holds_for_every_command(limited: Path) -> None:
    generator = np.random.default_rng(0)
    for runner in (load_policy(limited), trimtab.load_policy(limited)):
        runner.reset(action=[0.0, 0.0])
        played = [runner.step(generator.normal(0, 3, 6)) for _ in range(60)]
        speed = np.abs(np.diff(played, axis=0, prepend=np.zeros((1, 2)))) * 10.0  # of 10 Hz
        assert np.all(speed <= np.float64([1.0, 2.0]) + 1e-5) and np.max(played) <= 0.6
        assert speed.max(0) == pytest.approx([1.0, 2.0], abs=1e-5)
    card = model_card(config_of(limited))
    assert json.dumps(STATED) in card and "limits=Limits(" not in card


def test_a_call_tightens_what_a_bundle_states_and_never_loosens_it(limited: Path) -> None:
    both = load_policy(limited, limits=Limits(velocity=1.5, low=-0.5)).limits
    assert both == Limits(velocity=(1.0, 1.5), low=-0.5, high=0.6)
    assert load_policy(limited, limits=NO_LIMITS).limits == Limits(velocity=(1.0, 2.0), high=0.6)
    for wrong, told in (
        (Limits(velocity=1.0, of_velocities=True), r"positions; write .*, of_velocities=False\)"),
        (Limits(velocity=(1.0, 1.0, 1.0)), "the bundle states"),
        (Limits(low=0.7), "leave no command"),
    ):
        with pytest.raises(TrimtabError, match=told):
            load_policy(limited, limits=wrong)


def test_limits_of_positions_beside_a_bundle_of_velocities_say_what_to_write(
    copy_of: BundleOf, reseal: Any
) -> None:
    folder = copy_of("gaussian")
    reseal(folder, config={"limits": {"acceleration": 5.0, "of_velocities": True}})
    with pytest.raises(TrimtabError, match=r"write Limits\(…, of_velocities=True\), or leave"):
        load_policy(folder, limits=Limits(velocity=1.0))
    card = model_card(config_of(folder))  # positions would be no velocities in force
    assert "at rest" in card and "action=positions" not in card
    both = load_policy(folder, limits=Limits(velocity=1.0, of_velocities=True)).limits
    assert both == Limits(velocity=1.0, acceleration=5.0, of_velocities=True)


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({}, "states none; give one of low"),
        ({"of_velocities": True}, "states none"),
        ({"velocity": 1.0, "speed": 2.0}, "no entry 'speed'"),
        ({"velocity": True}, "give a finite number"),
        ({"velocity": "1"}, "give a finite number"),
        ({"velocity": float("inf")}, "give a finite number"),
        ({"velocity": 1.0, "of_velocities": 1}, "give true or false"),
        ({"velocity": [1.0, 2.0, 3.0]}, "give one number, or 2"),
        ({"velocity": -1.0}, "give positive numbers"),
        ({"velocity": 1.0, "jerk": 1.0}, "jerk needs a limit of acceleration"),
        ({"high": -5.0}, "leave no command"),
        ([1.0], "must be a mapping"),
    ],
)
def test_limits_that_are_none_are_refused(stated: Any, told: str, bundle_of: BundleOf) -> None:
    config = {**config_of(bundle_of("gaussian")), "limits": stated}
    with pytest.raises(TrimtabError, match=told) as raised:
        Contract.parse(config, "here")
    assert "\n" not in str(raised.value) and str(raised.value).startswith("here")


def test_an_export_writes_limits_and_keeps_them(
    bundle_of: BundleOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "limits.yaml").write_text("velocity: [1, 2]\nhigh: 0.6\n")
    words = ["export", f"run={bundle_of('gaussian')}", f"out={tmp_path / 'b'}"]
    assert command([*words, f"limits={tmp_path / 'limits.yaml'}"]) == 0
    assert load_policy(tmp_path / "b").limits == Limits(velocity=(1.0, 2.0), high=0.6)
    detector = Detector.fit([np.random.default_rng(0).normal(size=(9, 6))] * 2, "abcdef")
    tensors = safetensors.numpy.save(detector.tensors())
    add_warning(tmp_path / "b", tmp_path / "b", {**detector.to_json(), "threshold": 1.0}, tensors)
    assert load_policy(tmp_path / "b").score is None
    export_bundle(tmp_path / "b", tmp_path / "again")
    contract = config_of(tmp_path / "again")
    assert "warning" not in contract and "calibrate the new bundle" in caplog.text
    assert contract["limits"] == STATED
    assert contract["outputs"]["action"]["order"] == ["force_x", "force_y"]
    for wrong, told in (
        ("{speed: 1}", "limits={speed: 1}: limits: there is no entry 'speed'"),
        ("nowhere.yaml", "limits=nowhere.yaml: cannot be read"),
        ("{a", "not YAML"),
    ):
        with pytest.raises(TrimtabError, match=told):
            command([*words, f"limits={wrong}"])
