"""No action leaves the limits of its task, which may be no float32 numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from loading import load_module

from trimtab.limits import inward
from trimtab.policies.base import Policy
from trimtab.policies.bundle.files import ONNX
from trimtab.policies.opening import load_policy
from trimtab.types import PolicySpec

cases = load_module(Path(__file__).with_name("cases.py"))
FAR = (1e-3, 1.0, 30.0, 1e4)
"""Scales of observations and noise: networks then ask for all that their limits let through."""
LIMITS = {
    "a tenth": (-0.1, 0.1),
    "uneven": (-0.3, 0.7),
    "a third": (-1 / 3, 1 / 3),
    "one side": (0.8, 1.1),
    "large": (1e6 + 0.1, 1e6 + 3.3),
    "below 0": (-2e7 - 1, -123456.789),
    "tiny": (-1e-30, 1e-7 / 3),
    "wide": (-1e20 / 3, 7e19),
}


@pytest.mark.parametrize("name", LIMITS)
def test_float32_limits_are_the_widest_inside(name: str) -> None:
    low, high = LIMITS[name]
    least, most = inward([low], [high])
    assert least.dtype == most.dtype == np.float32
    assert low <= float(least[0]) < float(most[0]) <= high
    assert float(np.nextafter(least, np.float32(-np.inf))[0]) < low
    assert float(np.nextafter(most, np.float32(np.inf))[0]) > high
    again = inward(least, most)
    assert (again[0], again[1]) == (least, most)


def test_infinite_and_exact_limits_stay() -> None:
    given = np.array([-np.inf, -0.5, 0.0, 1e6]), np.array([np.inf, 2.0, 0.25, 2e6])
    for found, limit in zip(inward(*given), given, strict=True):
        np.testing.assert_array_equal(found, limit)


def far(policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Return observations and noise ``[4 x 16, ...]``, the last ones far from all data."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(16, policy.spec.obs_dim, generator=generator)
    noise = torch.randn(16, *policy.noise_shape, generator=generator)
    return torch.cat([obs * far for far in FAR]), torch.cat([noise * far for far in FAR])


def test_every_kind_of_policy_acts_inside(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = torch.tensor([*LIMITS.values()], dtype=torch.float64).T
    spec = PolicySpec(6, 4, len(LIMITS), tuple(low.tolist()), tuple(high.tolist()))
    monkeypatch.setattr(cases, "SPEC", spec)
    cases._graph.cache_clear()
    policy = cases.policy_of(case).eval()
    cases._graph.cache_clear()
    with torch.no_grad():
        action = policy(*far(policy)).double()
    assert action.isfinite().all() and (action >= low).all() and (action <= high).all()


def test_every_bundle_and_its_graph_act_inside(
    case: str, bundle_of: Callable[[str], Path], policy_of: Callable[[str], Policy]
) -> None:
    low, high = map(np.float64, cases.LIMITS)
    obs, noise = (part.numpy() for part in far(policy_of(case)))
    folder = bundle_of(case)
    graph = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    (bare,) = graph.run(["action"], {"obs": obs, "noise": noise})
    for action in (bare, load_policy(folder).predict(obs, noise)):
        assert (action >= low).all() and (action <= high).all()
