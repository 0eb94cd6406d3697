"""What every kind of policy keeps to, as the registry finds them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loading import load_module
from torch import Tensor

from trimtab.benchmarks.contracts import policies
from trimtab.benchmarks.contracts.policies import clonable
from trimtab.policies.base import Policy
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.latent import LatentPolicy
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.registry import build_policy
from trimtab.types import Batch, TrimtabError

drawn = load_module(Path(__file__).with_name("drawn.py"))
draws, batch_for, statistics = drawn.draws, drawn.batch_for, drawn.statistics

PolicyOf = Callable[[str], Policy]


def limits(policy: Policy) -> tuple[Tensor, Tensor]:
    return torch.tensor(policy.spec.action_low), torch.tensor(policy.spec.action_high)


def seeded_loss(policy: Policy, batch: Batch) -> Tensor:
    torch.manual_seed(4)
    return policy.bc_loss(batch)


# Contracts: one test a promise, over every kind that the registry finds.


@pytest.mark.parametrize("check", [name for name in policies.CHECKS if name != "export"])
def test_it_keeps_the_contract(case: str, check: str, policy_of: PolicyOf) -> None:
    """That it becomes a whole bundle is tested with bundles."""
    if (case, check) == ("black_box", "device"):  # onnxruntime carries it out, on the processor
        return
    assert policies.CHECKS[check](policies.Subject(lambda: policy_of(case)))


def takes_no_noise(policy: Policy) -> bool:
    return policy.noise_shape == (0,)


def test_acts_on_sampled_noise_or_on_none(case: str, policy_of: PolicyOf) -> None:
    policy = policy_of(case)
    obs, noise = draws(policy)
    acted = policy.act(obs, deterministic=True)
    assert not acted.requires_grad
    assert torch.equal(acted, policy(obs, torch.zeros_like(noise)))
    torch.manual_seed(8)
    sampled = policy.act(obs)
    torch.manual_seed(8)
    assert torch.equal(sampled, policy(obs, policy.sample_noise(len(obs))))
    assert torch.equal(sampled, acted) == takes_no_noise(policy)


def test_noise_is_standard_normal(case: str, policy_of: PolicyOf) -> None:
    torch.manual_seed(6)
    noise = policy_of(case).sample_noise(4000)
    if takes_no_noise(policy_of(case)):
        assert noise.shape == (4000, 0)
        return
    assert abs(float(noise.mean())) < 0.05 and abs(float(noise.std()) - 1.0) < 0.05


def test_is_rebuilt_from_its_config(case: str, policy_of: PolicyOf) -> None:
    policy = policy_of(case)
    config = policy.config()
    rebuilt = build_policy(json.loads(json.dumps(config)))
    assert type(rebuilt) is type(policy) and rebuilt.config() == config
    assert rebuilt.spec == policy.spec and rebuilt.noise_shape == policy.noise_shape
    rebuilt.load_state_dict(policy.state_dict())
    obs, noise = draws(policy)
    with torch.no_grad():
        assert torch.equal(rebuilt(obs, noise), policy(obs, noise))


def test_a_misspelt_setting_is_said_in_one_line(case: str, policy_of: PolicyOf) -> None:
    config = policy_of(case).config()
    with pytest.raises(TrimtabError, match=f"settings of kind {config['kind']}.*hiden"):
        build_policy({**config, "hiden": 3})


def test_normalises_inside(case: str, policy_of: PolicyOf) -> None:
    policy = policy_of(case)
    spec = policy.spec
    obs, noise = draws(policy)
    noise *= 0.1
    low, high = limits(policy)
    wide = statistics(-torch.ones(spec.obs_dim), torch.ones(spec.obs_dim), low, high)
    inner = policy.actor if isinstance(policy, LatentPolicy) else None
    if isinstance(policy, BlackBoxPolicy):  # what it normalises by is in its graph
        before = policy(obs, noise)
        policy.fit_normalizer(statistics(*2 * (torch.ones(spec.obs_dim),), low / 2, high / 2))
        assert torch.equal(policy(obs, noise), before)
        return
    with torch.no_grad():
        policy.fit_normalizer(wide)
        before = policy.normalizer.normalize_action(policy(obs, noise))
        # Half the range of actions about another middle: the same chunk in normalised units.
        middle, half = low + 0.4 * (high - low), 0.25 * (high - low)
        policy.fit_normalizer(statistics(wide.obs_min, wide.obs_max, middle - half, middle + half))
        after = policy(obs, noise)
        inside = (before.abs() < 0.99) & (after > low) & (after < high)
        assert inside.any()
        expected = middle + half * before
        torch.testing.assert_close(after[inside], expected[inside], atol=1e-5, rtol=1e-5)
        # Observations in other units, and statistics in those units: the same actions.
        policy.fit_normalizer(
            statistics(7 + 3 * wide.obs_min, 7 + 3 * wide.obs_max, middle - half, middle + half)
        )
        if inner is not None:
            inner.normalizer.obs_shift.fill_(7.0)
            inner.normalizer.obs_scale.fill_(3.0)
        torch.testing.assert_close(policy(7 + 3 * obs, noise), after, atol=1e-4, rtol=1e-4)


def test_one_that_cannot_be_cloned_says_so(case: str, policy_of: PolicyOf) -> None:
    policy = policy_of(case)
    if not clonable(policy):
        with pytest.raises(TrimtabError, match="no behaviour-cloning loss"):
            policy.bc_loss(batch_for(policy.spec, count=64))


def test_cloning_loss_leaves_out_actions_that_were_not_taken(
    case: str, policy_of: PolicyOf
) -> None:
    policy = policy_of(case)
    batch = batch_for(policy.spec)
    if not clonable(policy):
        with pytest.raises(TrimtabError, match="no behaviour-cloning loss"):
            policy.bc_loss(replace(batch, valid=torch.zeros_like(batch.valid)))
        return
    cut = policy.spec.horizon // 2
    # A noisy chunk is a network's input too; take away that it reads the end of the chunk.
    for module in policy.modules():
        if isinstance(module, DenoisingNetwork):
            with torch.no_grad():
                columns = slice(cut * policy.spec.action_dim, math.prod(module.action_shape))
                module.action_layer.weight[:, columns] = 0
    valid = batch.valid.clone()
    valid[:4, cut:] = False
    valid[4] = False
    action = torch.where(valid[:, :, None], batch.action, batch.action * -0.5 + 0.1)
    whole, moved = replace(batch, valid=valid), replace(batch, valid=valid, action=action)
    assert torch.equal(seeded_loss(policy, whole), seeded_loss(policy, moved))
    everything = replace(batch, action=action)
    assert not torch.equal(seeded_loss(policy, batch), seeded_loss(policy, everything))
    nothing = replace(batch, valid=torch.zeros_like(valid))
    assert seeded_loss(policy, nothing).item() == 0.0
