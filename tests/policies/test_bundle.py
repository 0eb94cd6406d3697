from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from loading import load_module

from trimtab.policies import runtime
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import bundle_hash, check_bundle, load_bundle, save_bundle
from trimtab.policies.bundle.files import read_safetensors
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.runtime import NO_LIMITS
from trimtab.types import PolicySpec, TrimtabError

pytestmark = pytest.mark.slow

PolicyOf = Callable[[str], Policy]
load_policy = functools.partial(runtime.load_policy, limits=NO_LIMITS)
BundleOf = Callable[[str], Path]
FILES: tuple[str, ...] = load_module(Path(__file__).with_name("cases.py")).FILES


def test_read_back_is_the_same_policy(
    case: str, policy_of: PolicyOf, bundle_of: BundleOf, rows: Any
) -> None:
    policy = policy_of(case).eval()
    bundle = load_bundle(bundle_of(case))
    assert bundle.policy.config() == policy.config()
    assert not bundle.policy.training
    for name, value in policy.state_dict().items():
        assert torch.equal(bundle.policy.state_dict()[name], value), name
    obs, noise = map(torch.from_numpy, rows(policy, 5))
    with torch.no_grad():
        assert torch.equal(bundle.policy(obs, noise), policy(obs, noise))
    errors = check_bundle(bundle.folder)
    assert errors.keys() == {"torch", "onnx"} and max(errors.values()) <= 1e-5


def test_contract_says_what_a_robot_needs(bundle_of: BundleOf) -> None:
    folder = bundle_of("flow")
    config = load_bundle(folder).config
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    units = "raw units of robotics/PointMaze-TwoRoutes-v0"
    assert config["inputs"]["obs"] == {
        "dtype": "float32", "shape": ["batch", 6], "units": units, "order": "index",
    }  # fmt: skip
    assert config["inputs"]["noise"]["shape"] == ["batch", 4, 2]
    assert config["inputs"]["noise"]["distribution"] == "standard normal"
    assert config["outputs"]["action"] == {
        "dtype": "float32", "shape": ["batch", 4, 2], "units": units,
        "order": ["force_x", "force_y"],
        "low": [-1.0, -0.3333333134651184], "high": [1.0999999046325684, 2.0],
    }  # fmt: skip
    assert config["chunking"] == {"horizon": 4, "act_steps": 3}
    assert config["control_rate"] == 10.0
    assert config["evaluate_deterministic"] is False
    assert config["env"]["fingerprint"] == "0123456789ab"
    assert config["training"]["algorithm"] == "bc"
    assert config["training"]["packages"]["torch"] == importlib.metadata.version("torch")


def test_onnx_is_one_file_with_the_contract_and_no_trace_of_the_machine(
    case: str, bundle_of: BundleOf
) -> None:
    data = (bundle_of(case) / "policy.onnx").read_bytes()
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [port.name for port in model.graph.input] == ["obs", "noise"]
    assert [port.name for port in model.graph.output] == ["action"]
    (entry,) = model.metadata_props
    config = json.loads((bundle_of(case) / "config.json").read_text())
    assert json.loads(entry.value) == {
        key: value for key, value in config.items() if key not in ("files", "sha256")
    }
    assert b".py" not in data
    assert str(Path.cwd()).encode() not in data


@pytest.mark.bits
def test_golden_rows_are_realistic(bundle_of: BundleOf) -> None:
    # The steered policy's own normaliser is never fitted: the rows must come from its base's.
    golden = read_safetensors((bundle_of("latent") / "golden.safetensors").read_bytes(), "golden")
    obs, noise = golden["obs"], golden["noise"]
    assert len(obs) >= 16
    low, high = -np.arange(1.0, 7.0), np.arange(2.0, 8.0)
    assert (obs >= low - 1e-5).all() and (obs <= high + 1e-5).all()
    assert (obs.max(0) - obs.min(0) > 0.7 * (high - low)).all()
    assert (noise[:4] == 0).all() and 0.7 < noise[8:].std() < 1.3


def test_saving_leaves_policy_and_randomness_alone(
    tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]
) -> None:
    policy = policy_of("latent").train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    modes = [module.training for module in policy.modules()]
    gradients = [parameter.requires_grad for parameter in policy.parameters()]
    torch_state, numpy_state = torch.get_rng_state(), str(np.random.get_state())
    save_bundle(policy, tmp_path / "b", contract=contract)
    load_bundle(tmp_path / "b")
    load_policy(tmp_path / "b")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert str(np.random.get_state()) == numpy_state
    assert [module.training for module in policy.modules()] == modes
    assert [parameter.requires_grad for parameter in policy.parameters()] == gradients
    assert all(torch.equal(before[name], v) for name, v in policy.state_dict().items())


@pytest.mark.bits
def test_exporting_is_silent_and_gives_the_same_bytes(
    tmp_path: Path,
    policy_of: PolicyOf,
    bundle_of: BundleOf,
    contract: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    level = logging.getLogger("torch.onnx").level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_bundle(policy_of("gaussian"), tmp_path / "again", contract=contract)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torch.onnx").level == level
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (
            bundle_of("gaussian") / name
        ).read_bytes(), name


def test_without_onnx(tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]) -> None:
    folder = save_bundle(policy_of("flow"), tmp_path / "b", contract=contract, onnx=False)
    assert not (folder / "policy.onnx").exists()
    assert check_bundle(folder) == {"torch": 0.0}
    with pytest.raises(TrimtabError, match=r"has no policy\.onnx.*trimtab export"):
        load_policy(folder)


@pytest.mark.parametrize("calm", [False, True])
def test_how_a_policy_is_judged_travels_with_it(
    calm: bool, tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]
) -> None:
    policy = policy_of("flow")
    before = policy.evaluate_deterministic
    try:
        policy.evaluate_deterministic = calm
        save_bundle(policy, tmp_path / "b", contract=contract, onnx=False)
    finally:
        policy.evaluate_deterministic = before
    assert load_bundle(tmp_path / "b").policy.evaluate_deterministic is calm


def test_identity_is_weights_and_settings(
    tmp_path: Path, policy_of: PolicyOf, bundle_of: BundleOf, contract: dict[str, Any]
) -> None:
    identity = bundle_hash(bundle_of("gaussian"))
    assert re.fullmatch("[0-9a-f]{64}", identity)
    policy = policy_of("gaussian")
    other = {**contract, "training": {"seed": 8}, "act_steps": 1}
    folder = save_bundle(policy, tmp_path / "b", contract=other, results={"s": 1}, onnx=False)
    assert bundle_hash(folder) == identity
    (folder / "README.md").write_text("another card")
    assert bundle_hash(folder) == identity
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0].add_(1e-3)
    save_bundle(policy, folder, contract=other, onnx=False)
    assert bundle_hash(folder) != identity
    wider = GaussianPolicy(policy.spec, hidden=(24, 24), std=0.2)
    wider.load_state_dict(policy_of("gaussian").state_dict())
    assert bundle_hash(save_bundle(wider, folder, contract=other, onnx=False)) != identity


def test_model_card(tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]) -> None:
    results = {"success": "0.91 [0.88, 0.94]", "a|b": 2}
    folder = save_bundle(
        policy_of("gaussian"), tmp_path / "b", contract=contract, results=results, onnx=False
    )
    text = (folder / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    parsed = yaml.safe_load(front)
    assert parsed["library_name"] == "trimtab"
    assert parsed["pipeline_tag"] == "robotics"
    assert {"trimtab", "gaussian", "bc", contract["env"]} <= set(parsed["tags"])
    for expected in ("load_policy(", "load_bundle(", "10 Hz", "force_x, force_y", "0.91 [0.88"):
        assert expected in body
    stated = "[-1.0, -0.3333333] to [1.0999999, 2.0]"  # which float32 reads as the same limits
    assert f"| action limits | {stated} |" in body
    action = json.loads((folder / "config.json").read_text())["outputs"]["action"]
    for shown, limits in zip(stated.split(" to "), (action["low"], action["high"]), strict=True):
        assert np.array_equal(np.float32(json.loads(shown)), np.float32(limits))
    for line in body.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 3, line


def test_a_place_behind_links_in_a_circle(
    tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(TrimtabError, match="loop/b: .*circle|cannot write"):
        save_bundle(policy_of("gaussian"), tmp_path / "loop" / "b", contract=contract, onnx=False)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"act_step": 1}, "did you mean act_steps?"),
        ({"act_steps": 5}, "act_steps must be from 1 to the horizon 4"),
        ({"act_steps": None}, "act_steps=None: must be a whole number"),
        ({"control_rate": "50"}, "control_rate=50: must be a number or null"),
        ({"obs_names": ["x"]}, "obs_names must be 6 texts"),
        ({"training": {"loss": float("nan")}}, "cannot be written as JSON"),
        ({"training": {"when": object()}}, "cannot be written as JSON"),
        ({"control_rate": -1.0}, "control_rate"),
    ],
)
def test_wrong_contract_writes_nothing(
    change: dict[str, Any],
    word: str,
    tmp_path: Path,
    policy_of: PolicyOf,
    contract: dict[str, Any],
) -> None:
    with pytest.raises(TrimtabError, match=re.escape(word)):
        save_bundle(policy_of("gaussian"), tmp_path / "b", contract={**contract, **change})
    assert list(tmp_path.iterdir()) == []


def test_missing_contract_entry(tmp_path: Path, policy_of: PolicyOf) -> None:
    with pytest.raises(TrimtabError, match="entry 'control_rate' is missing"):
        save_bundle(policy_of("gaussian"), tmp_path / "b", contract={"env": "x", "act_steps": 1})


def test_a_broken_policy_leaves_the_old_bundle(
    tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]
) -> None:
    policy = policy_of("gaussian")
    folder = save_bundle(policy, tmp_path / "b", contract=contract, onnx=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(TrimtabError, match=r"b/golden\.safetensors: action .*not finite"):
        save_bundle(policy, folder, contract=contract, onnx=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_policy_that_its_settings_do_not_describe_is_not_saved(
    tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]
) -> None:
    policy = policy_of("gaussian")
    assert isinstance(policy, GaussianPolicy)
    policy.std = 0.5  # behind the back of config()
    with pytest.raises(TrimtabError, match="do not replay with torch"):
        save_bundle(policy, tmp_path / "b", contract=contract, onnx=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_things_is_never_replaced(
    tmp_path: Path, policy_of: PolicyOf, contract: dict[str, Any]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TrimtabError, match=r"thesis\.tex"):
        save_bundle(policy_of("gaussian"), tmp_path, contract=contract, onnx=False)
    with pytest.raises(TrimtabError, match="is a file"):
        save_bundle(policy_of("gaussian"), tmp_path / "thesis.tex", contract=contract, onnx=False)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_forward_that_cannot_be_exported() -> None:
    class Branching(Policy):
        def forward(self, obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            return noise if bool(obs.sum() > 0) else -noise

    with pytest.raises(TrimtabError, match="cannot become ONNX"):
        export_onnx(Branching(PolicySpec(2, 1, 1, (-1.0,), (1.0,)), (1, 1)), {})
