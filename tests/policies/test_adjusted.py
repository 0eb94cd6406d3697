"""A trained policy with other settings of acting, in Python, in a bundle and on a robot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import (
    adjustable,
    adjusted,
    adjusted_graph,
    adjusted_policy,
)
from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.guided_flow import GUIDANCE, GuidedFlowPolicy
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.stochastic_flow import StochasticFlowPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.kinds.tuned_diffusion import TunedDiffusionPolicy
from trimtab.policies.runtime import PolicyRunner
from trimtab.types import PolicySpec

SPEC = PolicySpec(4, 3, 2, (-1.0, -1.0), (1.0, 2.0))
SMALL: dict[str, Any] = {"hidden": (16, 16)}
CONTRACT = {"env": "robotics/PointMaze_UMaze-v3", "control_rate": 10.0, "act_steps": 2}


def steered() -> LatentPolicy:
    base = DiffusionPolicy(SPEC, **SMALL)
    return LatentPolicy(TanhGaussianPolicy(latent_spec(base, 1.5), **SMALL), base)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (lambda: DiffusionPolicy(SPEC, **SMALL), {"sampling_steps": 2}),
        (lambda: DiffusionPolicy(SPEC, **SMALL), {"scheduler": "unipc", "sampling_steps": 3}),
        (lambda: DiffusionPolicy(SPEC, **SMALL, scheduler="deis"), {"scheduler": None}),
        (lambda: FlowPolicy(SPEC, **SMALL), {"scheduler": "heun", "sampling_steps": 3}),
        (lambda: ConsistencyPolicy(SPEC, **SMALL), {"sampling_steps": 2}),
        (lambda: GuidedFlowPolicy(SPEC, **SMALL), {"guidance": 3.0}),
        (lambda: GuidedFlowPolicy(SPEC.with_input(GUIDANCE, 1.0), **SMALL), {"guidance": 3.0}),
        (lambda: GaussianPolicy(SPEC, **SMALL), {"std": 0.2}),
        (steered, {"sampling_steps": 3, "scheduler": "dpmsolver++"}),
    ],
)  # fmt: skip
def test_settings_change_how_it_acts_and_not_its_weights(
    policy: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    own: Policy = policy().eval()
    changed = adjusted(own, settings)
    assert {name: adjustable(changed)[name] for name in settings} == settings
    for one, other in zip(own.parameters(), changed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert adjustable(own) != adjustable(changed)
    save_bundle(own, tmp_path / "own", contract=CONTRACT, onnx=False)
    bundle = load_bundle(tmp_path / "own")
    again, told = adjusted_policy(bundle, settings)
    assert {name: one["to"] for name, one in told.items()}.items() <= settings.items()
    contract = {**CONTRACT, "changed": told}
    save_bundle(again, tmp_path / "changed", contract=contract, onnx=False)
    written = json.loads((tmp_path / "changed" / "config.json").read_text())
    assert written["changed"].keys() == told.keys()
    assert all(name in (tmp_path / "changed" / "README.md").read_text() for name in told)
    # Set back, nothing is left to tell of.
    before = {name: one["from"] for name, one in told.items()}
    assert adjusted_policy(load_bundle(tmp_path / "changed"), before)[1] == {}


@pytest.mark.parametrize(
    ("policy", "settings", "word"),
    [
        (lambda: FlowPolicy(SPEC, **SMALL), {"samplingsteps": 2}, "did you mean sampling_steps"),
        (lambda: FlowPolicy(SPEC, **SMALL), {"hidden": [3]}, "no such setting"),
        (lambda: FlowPolicy(SPEC, **SMALL), {"sampling_steps": 2.5}, "whole number"),
        (lambda: FlowPolicy(SPEC, **SMALL), {"sampling_steps": True}, "whole number"),
        (lambda: FlowPolicy(SPEC, **SMALL), {"sampling_steps": 0}, "from 1 to"),
        (lambda: DiffusionPolicy(SPEC, **SMALL), {"sampling_steps": 21}, "from 1 to 20"),
        (lambda: DiffusionPolicy(SPEC, **SMALL), {"train_steps": 10}, "no such setting"),
        (lambda: DiffusionPolicy(SPEC, **SMALL), {"scheduler_settings": {"a": 1}}, "scheduler"),
        (
            lambda: DiffusionPolicy(SPEC, **SMALL),
            {"scheduler": "ddim", "scheduler_settings": {"beta_schedule": "linear"}},
            "other noise levels",
        ),
        (steered, {"sampler": "ddpm"}, "noise|latent"),
        (
            lambda: TunedDiffusionPolicy(DiffusionPolicy(SPEC, **SMALL), tuned_steps=2),
            {"sampling_steps": 3},
            "there are none",
        ),
    ],
)
def test_what_cannot_be_changed_is_said_in_one_line(
    policy: Any, settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        adjusted(policy(), settings)
    assert "\n" not in str(caught.value)


def test_methods_that_need_each_step_refuse_a_table() -> None:
    diffusion = DiffusionPolicy(SPEC, **SMALL, scheduler="unipc")
    with pytest.raises(TrimtabError, match="policy.sampler=ddim or ddpm"):
        TunedDiffusionPolicy(diffusion, tuned_steps=2)
    with pytest.raises(TrimtabError, match="leave policy.scheduler out"):
        StochasticFlowPolicy(FlowPolicy(SPEC, **SMALL, scheduler="euler"))
    # A latent is all that steering needs.
    base = DiffusionPolicy(SPEC, **SMALL, scheduler="unipc")
    actor = TanhGaussianPolicy(latent_spec(base, 1.5), **SMALL)
    assert LatentPolicy(actor, base).act(torch.zeros(2, 4)).shape == (2, 3, 2)


def test_a_runner_acts_by_changed_settings(tmp_path: Path) -> None:
    save_bundle(FlowPolicy(SPEC, **SMALL), tmp_path / "own", contract=CONTRACT, onnx=False)
    bundle = load_bundle(tmp_path / "own")
    contract, graph, golden = adjusted_graph(bundle, {"sampling_steps": 2})
    runner = PolicyRunner(contract, graph, "here", seed=3)
    runner.check(golden)
    obs, noise = np.zeros((1, 4), np.float32), np.ones((1, 3, 2), np.float32)
    with torch.no_grad():
        two = adjusted(bundle.policy, {"sampling_steps": 2})(
            torch.from_numpy(obs), torch.from_numpy(noise)
        )
    assert np.abs(runner.predict(obs, noise) - two.numpy()).max() < 1e-5
    assert runner.step(obs[0]).shape == (2,)


def test_a_sampler_that_magnifies_last_bits_says_so_in_its_contract(tmp_path: Path) -> None:
    policy = DiffusionPolicy(SPEC, hidden=(16,), scheduler="dpmsolver++", sampling_steps=2)
    identity = torch.eye(6)
    with torch.no_grad():  # the noise is all that is seen, as at the noisiest level
        policy.network.obs_layer.weight.zero_()
        policy.network.obs_layer.bias.zero_()
        policy.network.action_layer.weight.zero_()
        policy.network.action_layer.weight[:6, :6] = identity
        policy.network.action_layer.weight[6:12, :6] = -identity
        last = policy.network.body[1][0]
        last.weight.zero_()
        last.bias.zero_()
        last.weight[:, :6], last.weight[:, 6:12] = identity, -identity
    save_bundle(policy, tmp_path / "own", contract=CONTRACT, onnx=False)
    told = json.loads((tmp_path / "own" / "config.json").read_text())
    assert 1e-4 < told["tolerance"] < 0.2
    save_bundle(FlowPolicy(SPEC, **SMALL), tmp_path / "flow", contract=CONTRACT, onnx=False)
    assert "tolerance" not in json.loads((tmp_path / "flow" / "config.json").read_text())
