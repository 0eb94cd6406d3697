"""Bundles that are damaged, hostile or wrong in themselves are refused in one line."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from loading import load_module

from trimtab.policies import runtime
from trimtab.policies.bundle.bundle import check_bundle, load_bundle
from trimtab.policies.bundle.files import sealed
from trimtab.policies.runtime import NO_LIMITS
from trimtab.types import TrimtabError

load_policy = functools.partial(runtime.load_policy, limits=NO_LIMITS)
BundleOf = Callable[[str], Path]
FILES: tuple[str, ...] = load_module(Path(__file__).with_name("cases.py")).FILES


def refused(folder: Path, *words: str, runtime: bool = True) -> None:
    """Both loaders refuse ``folder`` in one line that says each of ``words``."""
    for load in (load_bundle, load_policy) if runtime else (load_bundle,):
        with pytest.raises(TrimtabError) as caught:
            load(folder)
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message, message


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_refused(name: str, copy_of: BundleOf) -> None:
    folder = copy_of("gaussian")
    whole = (folder / name).read_bytes()
    generator = np.random.default_rng(11)
    positions = [0, 8, len(whole) - 1, *generator.integers(len(whole), size=12)]
    equal = 0
    for position in positions:
        broken = bytearray(whole)
        broken[position] ^= int(generator.integers(1, 256))
        (folder / name).write_bytes(broken)
        try:
            load_bundle(folder)
            load_policy(folder)
            equal += 1
            # Whatever still opens has unchanged weights, graph and contract.
            assert name == "README.md" or json.loads(broken) == json.loads(whole)
        except TrimtabError as error:
            assert "\n" not in str(error)
            assert name != "README.md"
    assert name in ("README.md", "config.json") or equal == 0
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:cut])
        if name != "README.md" and not (name == "config.json" and cut == len(whole) - 1):
            refused(folder)


@pytest.mark.parametrize("name", [name for name in FILES if name != "README.md"])
def test_a_missing_file_is_named(name: str, copy_of: BundleOf) -> None:
    folder = copy_of("gaussian")
    (folder / name).unlink()
    refused(folder, f"has no {name}", str(folder))


def test_an_edited_contract_is_refused(copy_of: BundleOf) -> None:
    folder = copy_of("gaussian")
    text = (folder / "config.json").read_text()
    assert '"control_rate": 10.0' in text
    edited = text.replace('"control_rate": 10.0', '"control_rate": 50.0')
    (folder / "config.json").write_text(edited)
    refused(folder, "config.json", "changed after the export")
    # Another layout of the same JSON is the same contract.
    (folder / "config.json").write_text(json.dumps(json.loads(text)))
    load_bundle(folder)


def test_what_is_no_bundle(tmp_path: Path, copy_of: BundleOf, reseal: Any) -> None:
    refused(tmp_path / "nowhere", "nowhere", "config.json", "check the path")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    refused(tmp_path, "not the config of a Trimtab bundle")
    (tmp_path / "config.json").write_text("[" * 100_000)
    refused(tmp_path, "not readable JSON")
    folder = copy_of("gaussian")
    reseal(folder, config={"version": 2})
    refused(folder, "version 2", "reads version 1")


def test_an_input_of_billions_of_numbers_is_refused_before_they_are_named(
    copy_of: BundleOf, reseal: Any
) -> None:
    folder = copy_of("gaussian")
    inputs = json.loads((folder / "config.json").read_text())["inputs"]
    inputs["obs"] = {**inputs["obs"], "shape": ["batch", 10**10]}
    reseal(folder, config={"inputs": inputs})
    refused(folder, "obs has 10000000000 numbers")


def test_files_outside_the_folder_are_never_read(copy_of: BundleOf) -> None:
    folder = copy_of("gaussian")
    config = json.loads((folder / "config.json").read_text())
    files = {name: (folder / name).read_bytes() for name in config["files"]}
    files["../secret"] = b""
    (folder.parent / "secret").write_bytes(b"")
    (folder / "config.json").write_text(json.dumps(sealed(config, files)))
    refused(folder, "does not list a bundle's files")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("normalizer.obs_scale"), ("lacks", "normalizer.obs_scale")),
        (lambda state: state.update(extra=torch.ones(1)), ("unknown tensors", "extra")),
        (
            lambda state: state.update({"normalizer.obs_shift": torch.zeros(5)}),
            ("normalizer.obs_shift", "(5,)", "(6,)"),
        ),
        (
            lambda state: state.update({"normalizer.obs_shift": torch.zeros(6).double()}),
            ("normalizer.obs_shift", "float64"),
        ),
        (
            lambda state: state["normalizer.action_scale"].fill_(float("nan")),
            ("normalizer.action_scale", "infinite values"),
        ),
        (lambda state: state["normalizer.obs_shift"].add_(0.1), ("do not replay", "torch")),
        # Finite, yet a policy that divides by it gives NaN.
        (lambda state: state["normalizer.obs_scale"].zero_(), ("do not replay", "torch")),
    ],
)
def test_wrong_weights_are_named(
    change: Callable[[dict[str, torch.Tensor]], object],
    words: tuple[str, ...],
    copy_of: BundleOf,
    reseal: Any,
) -> None:
    folder = copy_of("gaussian")
    state = safetensors.torch.load((folder / "model.safetensors").read_bytes())
    change(state)
    reseal(folder, model=safetensors.torch.save(state))
    refused(folder, *words, runtime=False)


@pytest.mark.bits
@pytest.mark.parametrize(("shift", "opens"), [(5e-5, True), (2e-4, False), (float("nan"), False)])
def test_golden_rows_must_replay(shift: float, opens: bool, copy_of: BundleOf, reseal: Any) -> None:
    folder = copy_of("gaussian")
    golden = safetensors.torch.load((folder / "golden.safetensors").read_bytes())
    golden["action"][-1, -1, -1] += shift
    reseal(folder, golden=safetensors.torch.save(golden))
    if opens:
        assert check_bundle(folder)["torch"] == pytest.approx(shift, rel=0.01)
        load_policy(folder)
    else:
        refused(folder, "golden")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda golden: golden.pop("noise"), "obs, noise and action"),
        (lambda golden: golden.update(obs=golden["obs"][:, :5].contiguous()), "obs has shape"),
        (lambda golden: golden.update({k: v[:15] for k, v in golden.items()}), "at least 16"),
        (lambda golden: golden.update(obs=golden["obs"].double()), "float32"),
        (lambda golden: golden["obs"].fill_(float("inf")), "not finite"),
    ],
)
def test_malformed_golden_rows(
    change: Callable[[dict[str, torch.Tensor]], object], word: str, copy_of: BundleOf, reseal: Any
) -> None:
    folder = copy_of("gaussian")
    golden = safetensors.torch.load((folder / "golden.safetensors").read_bytes())
    change(golden)
    reseal(folder, golden=safetensors.torch.save(golden))
    refused(folder, word)


@pytest.mark.parametrize(
    ("change", "word", "runtime"),
    [
        ({"policy": {"kind": "gausian"}}, "did you mean gaussian?", False),
        ({"policy": None}, "its entry 'policy'", False),
        ({"policy": {"kind": "gaussian", "spec": 3}}, "settings", False),
        ({"chunking": {"horizon": 4, "act_steps": 5}}, "act_steps must be from 1 to", True),
        ({"control_rate": 0.0}, "control_rate=0.0: must be above 0", True),
        ({"control_rate": "50"}, "control_rate=50: must be a number or null", True),
        ({"tolerance": "1e-4"}, "tolerance=1e-4: must be a number", True),
        (
            {"evaluate_deterministic": "false"},
            "evaluate_deterministic=false: must be true or",
            True,
        ),
        ({"history_of_ticks": 0}, "history_of_ticks=0: must be true or false", True),
        ({"history": 0}, "history=0: must be a whole number, at least 1", True),
        ({"history": "2"}, "history='2': must be a whole number", True),
        ({"chunking": {"act_steps": 2.5}}, "act_steps=2.5: must be a whole number", True),
        ({"inputs": {}}, "no entry 'obs'", True),
        (
            {"outputs": {"action": {"shape": ["batch", 4], "low": [], "high": []}}},
            "malformed",
            True,
        ),
        ({"env": [1]}, "'env' must describe a task", True),
        ({"env": None}, "'env' must describe a task", True),
        ({"env": {"id": [1], "options": {}}}, "'env.id' must be the id of a task", True),
        ({"env": {"id": "x", "options": [1]}}, "'env.options' must be options by name", True),
        ({"env": {"id": "x", "options": {}, "horizon": "x"}}, "'env.horizon' must be", True),
        ({"env": {"id": "x", "options": {}, "fingerprint": 1}}, "'env.fingerprint' must", True),
        ({"training": "x"}, "'training' must be facts by name", True),
    ],
)
def test_wrong_config_is_refused(
    change: dict[str, Any], word: str, runtime: bool, copy_of: BundleOf, reseal: Any
) -> None:
    folder = copy_of("gaussian")
    reseal(folder, config=change)
    refused(folder, word, runtime=runtime)


@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize("wrong", [True, "1", None])
def test_a_limit_of_an_action_that_is_no_number_is_refused(
    wrong: Any, end: str, copy_of: BundleOf, reseal: Any
) -> None:
    folder = copy_of("gaussian")
    action = json.loads((folder / "config.json").read_text())["outputs"]["action"]
    action[end] = [wrong, *action[end][1:]]
    reseal(folder, config={"outputs": {"action": action}})
    refused(folder, f"action.{end}=[{wrong!r}", "must be numbers")


def test_a_width_that_is_text_is_refused(copy_of: BundleOf, reseal: Any) -> None:
    folder = copy_of("gaussian")
    policy = json.loads((folder / "config.json").read_text())["policy"]
    reseal(folder, config={"policy": {**policy, "std": "x"}})
    refused(folder, "policy.std=x: must be a number", runtime=False)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_pipe_in_a_files_place_is_not_waited_for(file: str, copy_of: BundleOf) -> None:
    folder = copy_of("gaussian")
    (folder / file).unlink()
    os.mkfifo(folder / file)
    refused(folder, f"{file}: is no regular file")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_file_of_gigabytes_is_refused_before_it_is_read(file: str, copy_of: BundleOf) -> None:
    folder = copy_of("gaussian")
    os.truncate(folder / file, 3 * 10**9)  # takes no room on the disk
    refused(folder, f"{file}: has 3,000 MB, and at most")


def test_limits_of_contract_and_policy_must_agree(copy_of: BundleOf, reseal: Any) -> None:
    folder = copy_of("gaussian")
    outputs = json.loads((folder / "config.json").read_text())["outputs"]
    outputs["action"]["high"] = [1.0, 3.0]
    reseal(folder, config={"outputs": outputs})
    refused(folder, "action_high", runtime=False)
