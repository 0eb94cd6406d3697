"""A policy that torch runs out of a bundle refuses what the robot refuses, in the same words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.opening import load_policy

BundleOf = Callable[[str], Path]
ROWS = np.full((2, 6), 0.1, np.float32)


def spoiled(value: float) -> Any:
    rows = ROWS.copy()
    rows[1, 2] = value
    return rows


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        (ROWS[0], r"observation: has shape \(6,\); the policy reads \(rows, 6\)"),
        (ROWS[:, :5], r"observation: has shape \(2, 5\)"),
        (ROWS[:0], r"observation: has shape \(0, 6\)"),
        (spoiled(np.nan), r"value at index \(1, 2\) is NaN or infinite"),
        (spoiled(np.inf), r"value at index \(1, 2\) is NaN or infinite"),
        (ROWS.astype(np.float64) * 1e300, "is NaN or infinite"),
        ([["a"] * 6], "give numbers in raw units"),
        ([[1.0, 2.0], [3.0]], "is no array"),
        (np.ma.masked_equal(ROWS, np.float32(0.1)), "is masked"),
        ({"position": ROWS}, "observation"),
        (None, "observation"),
    ],
)
def test_wrong_observations(obs: Any, said: str, bundle_of: BundleOf) -> None:
    policy, runner = load_bundle(bundle_of("flow")).policy, load_policy(bundle_of("flow"))
    noise = runner.sample_noise(2)
    given = [obs, torch.from_numpy(obs)] if type(obs) is np.ndarray else [obs]
    for one in given:
        for act in (lambda x: policy.act(x), lambda x: policy(x, torch.from_numpy(noise))):
            with pytest.raises(TrimtabError, match=said) as told:
                act(one)
    with pytest.raises(TrimtabError) as robot:
        runner.predict(obs, noise)
    assert str(robot.value) == str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "noise", [np.zeros((1, 4, 2)), np.zeros((2, 8)), np.full((2, 4, 2), np.nan)]
)
def test_wrong_noise(noise: Any, bundle_of: BundleOf) -> None:
    policy = load_bundle(bundle_of("flow")).policy
    with pytest.raises(TrimtabError, match="^noise: ") as told:
        policy(torch.from_numpy(ROWS), noise)
    with pytest.raises(TrimtabError) as robot:
        load_policy(bundle_of("flow")).predict(ROWS, noise)
    assert str(robot.value) == str(told.value)


def test_an_array_is_answered_by_an_array(case: str, bundle_of: BundleOf) -> None:
    policy, runner = load_bundle(bundle_of(case)).policy, load_policy(bundle_of(case))
    if policy.spec.parts:
        return
    noise = runner.sample_noise(2)
    told = policy(ROWS.astype(np.float64), noise)
    tensor = policy(torch.from_numpy(ROWS), torch.from_numpy(noise))
    assert isinstance(told, np.ndarray) and isinstance(tensor, torch.Tensor)
    assert np.array_equal(told, tensor.detach().numpy())
    np.testing.assert_allclose(told, runner.predict(ROWS, noise), atol=1e-4)
    calm = policy.act(ROWS.tolist(), deterministic=True)
    assert isinstance(calm, np.ndarray) and calm.shape == told.shape


def test_a_tensor_keeps_its_graph_also_in_a_copy(bundle_of: BundleOf) -> None:
    policy = copy.deepcopy(load_bundle(bundle_of("flow")).policy)
    obs = torch.from_numpy(ROWS).requires_grad_()
    policy(obs, policy.sample_noise(2)).sum().backward()
    assert obs.grad is not None and obs.grad.abs().sum() > 0
    with pytest.raises(TrimtabError, match="is NaN or infinite"):
        policy.act(torch.full((1, 6), torch.nan))


@pytest.mark.parametrize(
    "kind", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]
)
def test_any_type_of_numbers_is_taken(kind: torch.dtype, bundle_of: BundleOf) -> None:
    policy = load_bundle(bundle_of("flow")).policy
    obs = (torch.from_numpy(ROWS) * 20).to(kind)
    noise = policy.sample_noise(2)
    assert torch.equal(policy(obs, noise.to(torch.bfloat16)), policy(obs, noise.bfloat16().float()))
    assert torch.equal(policy(obs, noise), policy(obs.float(), noise))


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        (torch.zeros(2, 6, dtype=torch.bool), "has type bool; give numbers in raw units"),
        (torch.zeros(2, 6, dtype=torch.complex64), "has type complex64; give numbers in raw units"),
        (torch.zeros(2, 6).to_sparse(), "give a dense tensor"),
        (torch.zeros(2, 6, device="meta"), "give a dense tensor"),
        (torch.full((2, 6), torch.inf, dtype=torch.bfloat16), r"index \(0, 0\) is NaN or infinite"),
        (torch.full((2, 6), 1e300, dtype=torch.float64), r"index \(0, 0\) is NaN or infinite"),
        (torch.zeros(2, 5, dtype=torch.bfloat16), r"has shape \(2, 5\); the policy reads"),
    ],
)
def test_wrong_tensors(obs: torch.Tensor, said: str, bundle_of: BundleOf) -> None:
    policy = load_bundle(bundle_of("flow")).policy
    with pytest.raises(TrimtabError, match=said):
        policy.act(obs)


def test_functions_of_torchs_are_mapped_over_a_policy(bundle_of: BundleOf) -> None:
    policy = load_bundle(bundle_of("flow")).policy
    obs, noise = torch.from_numpy(ROWS), policy.sample_noise(2)
    rows = torch.func.vmap(lambda x, z: policy(x[None], z[None])[0])(obs, noise)
    assert torch.allclose(rows, policy(obs, noise), atol=1e-5)
    slopes = torch.func.jacrev(lambda x: policy(x[None], noise[:1]))(obs[0])
    assert slopes.shape == (1, 4, 2, 6) and slopes.abs().sum() > 0
    with pytest.raises(TrimtabError, match=r"has shape \(1, 5\)"):
        torch.func.vmap(lambda x, z: policy(x[None, :5], z[None]))(obs, noise)
    with pytest.raises(TrimtabError, match="is NaN or infinite"):
        torch.func.grad(lambda x: policy(x, noise).sum())(torch.full((2, 6), torch.nan))
