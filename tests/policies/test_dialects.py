"""What locomotion stacks read beside a network is written for them; programs of torch too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from foreign_networks import contract, linear

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.cli.main import run
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.opening import load_policy

NAMES = ["hip", "knee"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose pose, scale and gains have more digits than the files have."""
    folder = tmp_path_factory.mktemp("dialects")
    weight = np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32)
    place = contract(
        folder / "contract.yaml",
        joints={"robot": NAMES},
        observation={
            "order": "listed",
            "terms": {"q": {"joints": True}, "command": {"size": 2, "scale": 2.0}},
        },
        action={"default": [-0.12345, 0.98765], "scale": [0.25047, 0.33333], "low": -9, "high": 9},
        gains={"stiffness": [40.179238, 99.09843], "damping": 2.557889},
    )
    network = linear(folder / "n.onnx", weight)
    export_policy(str(network), str(folder / "bundle"), contract=str(place))
    return folder / "bundle"


@pytest.mark.parametrize("dialect", ["mjlab", "holosoma", "unitree"])
def test_a_stack_sends_what_the_bundle_sends(bundle: Path, tmp_path: Path, dialect: str) -> None:
    """Check 20, and more: default + scale * output, by the file's own numbers, is the action."""
    out = tmp_path / dialect
    assert run(["export", f"run={bundle}", f"out={out}", f"as={dialect}"]) == 0
    texts = {one.key: one.value for one in onnx.load(out / "policy.onnx").metadata_props}
    if dialect == "mjlab":
        assert texts["joint_names"] == "hip,knee" and texts["joint_stiffness"] == "40.179,99.098"
        assert texts["observation_names"] == "q,command"
        pose, scale = (
            [float(number) for number in texts[name].split(",")]
            for name in ("default_joint_pos", "action_scale")
        )
        assert (pose, scale) == ([-0.123, 0.988], [0.25, 0.333])
    elif dialect == "holosoma":
        told = {name: json.loads(text) for name, text in texts.items()}
        assert told["dof_names"] == NAMES and told["kp"] == [40.179238, 99.09843]
        assert told["observation_names"] == ["command", "q"]
        pose, scale = told["default_dof_angles"], told["action_scale"]
    else:
        assert texts == {}
        deploy = yaml.safe_load((out / "deploy.yaml").read_text())
        assert deploy["step_dt"] == 0.02 and deploy["stiffness"] == [40.2, 99.1]
        assert deploy["observations"]["command"]["scale"] == [1.0, 1.0]
        action = deploy["actions"]["JointPositionAction"]
        pose, scale = action["offset"], action["scale"]
        assert (pose, scale) == ([-0.123, 0.988], [0.25, 0.333]) and pose == deploy[
            "default_joint_pos"
        ]
    session = onnxruntime.InferenceSession(str(out / "policy.onnx"))
    (given,), (gives,) = session.get_inputs(), session.get_outputs()
    assert (given.name, gives.name) == (
        ("actor_obs", "action") if dialect == "holosoma" else ("obs", "actions")
    )
    policy = load_policy(bundle)
    for row in np.random.default_rng(4).normal(size=(5, 4)).astype(np.float32):
        # holosoma puts the terms together sorted by name: command, q.
        theirs = np.concatenate([row[2:], row[:2]]) if dialect == "holosoma" else row
        (output,) = session.run(None, {given.name: theirs[None]})
        sent = np.array(pose) + np.array(scale) * output[0]
        np.testing.assert_allclose(sent, policy.step(row), atol=1e-5)


def test_a_bundle_without_gains_or_with_a_memory_is_no_file_of_a_stack(tmp_path: Path) -> None:
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    entries: dict[str, Any] = {"joints": {"robot": NAMES}, "action": {"low": -1, "high": 1}}
    entries["observation"] = {"terms": {"last": {"joints": True}}}
    for number, (change, text) in enumerate(
        [({}, "has no stiffness, damping"), ({"gains": {"stiffness": 1, "damping": 1}}, "")]
    ):
        place = contract(tmp_path / "c.yaml", **entries, **change)
        out = tmp_path / str(number)
        export_policy(str(network), str(out), contract=str(place))
        words = ["export", f"run={out}", f"out={out}-mjlab", "as=mjlab"]
        if text:
            with pytest.raises(TrimtabError, match=text):
                run(words)
        else:
            assert run(words) == 0
            with pytest.raises(TrimtabError, match="is there already"):
                run(words)


def test_a_program_of_torch_gives_the_actions_of_the_policy(
    bundle: Path, bundle_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """A ``.pt2`` file, for any number of rows; a black box has no weights for it."""
    source, out = bundle_of("deterministic"), tmp_path / "policy.pt2"
    assert export_policy(str(source), str(out)) == {"torch.export": pytest.approx(0, abs=1e-6)}
    policy = load_bundle(source).policy
    obs, noise = torch.randn(5, policy.spec.obs_dim), torch.zeros(5, *policy.noise_shape)
    played = torch.export.load(out).module()(obs, noise)
    torch.testing.assert_close(played, policy(obs, noise))
    with pytest.raises(TrimtabError, match=re.escape("a black box has no weights")):
        export_policy(str(bundle), str(tmp_path / "other.pt2"))
