"""Policies are loaded and written whatever the program around has set, and draw nothing of its."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trimtab.observations import FLAT
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import adjusted
from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.bundle.files import ONNX, Contract
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.opening import load_policy

BundleOf = Callable[[str], Path]
OBS = np.zeros((1, 6), np.float32)


@contextmanager
def default_type() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        left = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
    assert left == torch.float64


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
        assert torch.empty(0).device.type == "meta"
    finally:
        torch.set_default_device(None)


PROGRAMS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "type": default_type,
    "device": default_device,
    "device in a block": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def test_a_policy_is_opened_and_acts_in_any_program(
    case: str, policy_of: Callable[[str], Policy], contract: dict[str, Any], tmp_path: Path
) -> None:
    folder = save_bundle(policy_of(case), tmp_path / "bundle", contract=contract, onnx=False)
    bundle = load_bundle(folder)
    usual = bundle.policy
    spec, noise = usual.spec, np.ones((2, *usual.noise_shape), np.float32)
    shapes = Contract.parse(bundle.config, case).input_shapes
    parts = {n: np.ones((2, *shapes[n]), part.dtype) for n, part in spec.layout.items()}
    obs = parts if spec.parts else parts[FLAT]
    for program, within in PROGRAMS.items():
        with within():
            policy = load_bundle(folder).policy
            action = policy(obs, noise)
        for name, value in policy.state_dict().items():
            assert torch.equal(value, usual.state_dict()[name]) and not value.is_inference(), name
        assert program == "autocast" or np.array_equal(action, usual(obs, noise)), program


def test_a_policy_is_written_and_adjusted_in_any_program(
    bundle_of: BundleOf, tmp_path: Path
) -> None:
    policy = load_bundle(bundle_of("flow")).policy
    contract = {"env": "made-up", "control_rate": None, "act_steps": 1}
    with default_type(), torch.device("meta"):
        folder = save_bundle(policy, tmp_path / "bundle", contract=contract)
        runner = load_policy(folder, sampling_steps=1)
    assert (folder / ONNX).read_bytes() and runner.predict(
        OBS, runner.sample_noise(1)
    ).dtype == "f4"


def test_what_is_loaded_leaves_torchs_generator_alone(
    bundle_of: BundleOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To put its state back is as wrong as to move it, where another thread draws meanwhile. torch's
    # exporter of graphs does that.
    def put_back(*_: object) -> None:
        raise AssertionError("the state of the global generator was set")

    for owner in (torch, torch.random):
        monkeypatch.setattr(owner, "set_rng_state", put_back)
    before = torch.get_rng_state()
    policy = load_bundle(bundle_of("flow")).policy
    contract = {"env": "made-up", "control_rate": None, "act_steps": 1}
    folder = save_bundle(policy, tmp_path / "bundle", contract=contract, onnx=False)
    monkeypatch.undo()
    load_policy(folder)  # which makes a graph
    adjusted(policy, {"scheduler": "unipc", "sampling_steps": 2})
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_of_ones_own() -> None:
    def draw() -> list[Tensor]:
        layers = [nn.Linear(2, 2), nn.Embedding(2, 2), nn.LSTM(2, 2), nn.MultiheadAttention(2, 1)]
        made = [nn.init.orthogonal_(torch.empty(3, 3)), nn.init.trunc_normal_(torch.empty(3))]
        made += [torch.randn(2), torch.rand(2), torch.randint(9, (2,)), torch.randperm(5)]
        made += [torch.rand_like(torch.empty(2)), torch.empty(2).exponential_()]
        return [*made, *(one.detach() for layer in layers for one in layer.parameters())]

    before = torch.get_rng_state()
    with OwnDraws(3):
        own = draw()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert all(map(torch.equal, own, draw()))


def test_the_last_thread_that_leaves_puts_the_type_back() -> None:
    inside, left = threading.Event(), threading.Event()

    def load() -> None:
        with torch_defaults():
            inside.set()
            left.wait(10)
            seen.append(torch.empty(0).dtype)

    seen: list[torch.dtype] = []
    with default_type():
        thread = threading.Thread(target=load)
        with torch_defaults():
            thread.start()
            assert inside.wait(10)
        left.set()
        thread.join()
        assert seen == [torch.float32]
