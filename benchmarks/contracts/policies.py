"""What every kind of policy keeps to: Trimtab's own, by its tests, and a user's, by ``check``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.benchmarks.contracts.base import Broken, Checks, require
from trimtab.benchmarks.contracts.made_up import SPEC
from trimtab.benchmarks.contracts.methods import rebuilt, written
from trimtab.policies.base import Policy
from trimtab.policies.features import observations
from trimtab.policies.registry import build_policy, check_is_kind
from trimtab.types import Batch, PolicySpec

__all__ = ["CHECKS", "Subject", "check_kind", "clonable"]

_ROWS = 6


@dataclass(frozen=True)
class Subject:
    """A policy that is looked at.

    Attributes:
        make: makes it, with the same weights every time and a fitted normaliser; by default with
            the shapes of :data:`trimtab.benchmarks.contracts.made_up.SPEC`.
        spec: the task's shapes.
    """

    make: Callable[[], Policy]
    spec: PolicySpec = SPEC

    def drawn(self, policy: Policy, rows: int = _ROWS) -> tuple[Tensor, Tensor]:
        """Return observations as vectors ``[rows, O]``, and noise."""
        generator = torch.Generator().manual_seed(1)
        obs = torch.randn(rows, policy.spec.obs_dim, generator=generator)
        return obs, torch.randn(rows, *policy.noise_shape, generator=generator)


def _act(policy: Policy, obs: Tensor, noise: Tensor) -> Tensor:
    """Return the chunks of observations that are given as one vector a row."""
    action: Tensor = policy(observations(obs, policy.spec), noise)
    return action


def clonable(policy: Policy) -> bool:
    """Return whether a policy has a behaviour-cloning loss."""
    return type(policy).bc_loss is not Policy.bc_loss


def check_kind(subject: Subject) -> str:
    """Its class is found by the name that a bundle has for it."""
    policy = subject.make()
    check_is_kind(policy)
    return policy.kind


def check_shapes(subject: Subject) -> str:
    """It maps observations and noise to finite chunks of the task's shapes, float32."""
    policy = subject.make()
    obs, noise = subject.drawn(policy)
    action = _act(policy, obs, noise)
    shape = (_ROWS, policy.spec.horizon, policy.spec.action_dim)
    require(action.shape == shape, f"forward() gives shape {tuple(action.shape)} for {shape}")
    require(action.dtype == torch.float32, f"forward() gives {action.dtype}; give float32")
    require(bool(action.isfinite().all()), "forward() gives actions that are not finite")
    drawn = tuple(policy.sample_noise(5).shape)
    require(drawn == (5, *policy.noise_shape), f"sample_noise(5) has shape {drawn}")
    return f"[B, {policy.spec.obs_dim}] to [B, {shape[1]}, {shape[2]}], noise {policy.noise_shape}"


def check_function(subject: Subject) -> str:
    """It is a function of each row's observation and noise, and of both."""
    policy = subject.make()
    obs, noise = subject.drawn(policy)
    with torch.no_grad():
        action = _act(policy, obs, noise)
        again = _act(policy, obs, noise)
        require(
            torch.equal(action, again),
            "the same observation and noise give another action; all chance comes from the noise",
        )
        for row in range(_ROWS):
            alone = _act(policy, obs[row : row + 1], noise[row : row + 1])
            same = torch.allclose(alone, action[row : row + 1], atol=1e-5, rtol=1e-5)
            require(same, "a row's action depends on the other rows of its batch")
        none = policy.noise_shape == (0,)
        moved = torch.equal(action, _act(policy, obs, noise + 0.5))
        require(moved == none, "the noise has no effect; say noise_shape=(0,) where there is none")
        require(
            not torch.equal(action, _act(policy, obs + 0.5, noise)), "the observation has no effect"
        )
        calm = policy.act(observations(obs, policy.spec), deterministic=True)
        zero = torch.equal(calm, _act(policy, obs, torch.zeros_like(noise)))
        require(zero and not calm.requires_grad, "act(deterministic=True) is not that of noise 0")
    return "of each row's observation and noise alone"


def check_limits(subject: Subject) -> str:
    """Actions are within the task's limits, whatever is observed and drawn."""
    policy = subject.make()
    obs, noise = subject.drawn(policy, 200)
    low, high = torch.tensor(policy.spec.action_low), torch.tensor(policy.spec.action_high)
    with torch.no_grad():
        action = _act(policy, 100 * obs, 30 * noise)
    outside = (action < low) | (action > high)
    require(
        not bool(outside.any()),
        f"{int(outside.sum())} of {outside.numel()} actions are outside of the limits for large "
        "observations and noise; end with self.normalizer.raw_action(...), which clips",
    )
    return "kept, also for large observations and noise"


def check_cloning(subject: Subject) -> str:
    """The cloning loss has a finite gradient for every weight, and none of what was not done."""
    policy = subject.make()
    if not clonable(policy):
        return "none: it has no bc_loss(), so only methods that make it themselves can use it"
    batch = cloned(policy, 64)
    loss = _loss(policy, batch)
    require(
        loss.shape == () and math.isfinite(loss.item()) and loss.item() > 0,
        f"bc_loss() is {loss.detach()}; return a finite scalar above 0",
    )
    loss.backward()
    for name, weight in policy.named_parameters():
        gradient = weight.grad
        require(gradient is not None, f"bc_loss() gives {name} no gradient")
        assert gradient is not None
        require(
            bool(gradient.isfinite().all()), f"bc_loss() gives {name} a gradient that is not finite"
        )
        require(bool(gradient.abs().sum() > 0), f"bc_loss() gives {name} no gradient")
    nothing = replace(batch, valid=torch.zeros_like(batch.valid))
    require(
        _loss(policy, nothing).item() == 0.0,
        "bc_loss() is not 0 where no action was taken; average with self.masked_mean(error, valid)",
    )
    return "the loss has a finite gradient for every weight"


def check_state(subject: Subject) -> str:
    """All that changes as it acts and learns is in its settings, parameters and buffers."""
    policy = subject.make()
    if clonable(policy):
        optimizer = torch.optim.SGD(policy.parameters(), 1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            _loss(policy, cloned(policy, 64)).backward()
            optimizer.step()
    obs, noise = subject.drawn(policy)
    for _ in range(3):
        policy.act(observations(obs, policy.spec))
    again = build_policy(json.loads(json.dumps(policy.config())))
    again.load_state_dict(policy.state_dict())
    with torch.no_grad():
        equal = torch.equal(_act(policy.eval(), obs, noise), _act(again.eval(), obs, noise))
    require(
        equal,
        "it acts otherwise once it is loaded: make what it lacks a parameter or a buffer "
        "(register_buffer), or give it to super().__init__() as a keyword",
    )
    return "whole: its settings, parameters and buffers"


def check_device(subject: Subject) -> str:
    """It runs on torch's ``meta`` device: it keeps to its device and reads nothing back."""
    policy = subject.make()
    try:
        moved = policy.to("meta")
        obs, noise = (part.to("meta") for part in subject.drawn(policy))
        placed = {_act(moved, obs, noise).device.type, moved.sample_noise(4).device.type}
    except (NotImplementedError, RuntimeError) as error:
        raise Broken(
            f"on torch's meta device it fails ({' '.join(str(error).split())[:200]}): forward() "
            "reads a number back, or makes a tensor on another device than its weights"
        ) from error
    require(placed == {"meta"}, "it gives tensors of another device than its weights")
    return "it keeps to its device and reads nothing back"


def check_export(subject: Subject) -> str:
    """It is rebuilt from its settings and weights, also from a bundle with ONNX."""
    return written(rebuilt(subject.make(), subject.spec))


def cloned(policy: Policy, rows: int) -> Batch:
    """Return a batch of what an imitated policy might have done."""
    spec, generator = policy.spec, torch.Generator().manual_seed(3)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    uniform = torch.rand(rows, spec.horizon, spec.action_dim, generator=generator)
    obs = observations(torch.randn(rows, spec.obs_dim, generator=generator), spec)
    return Batch(
        obs=obs,
        action=low + (high - low) * uniform,
        reward=torch.zeros(rows),
        next_obs=obs,
        discount=torch.ones(rows),
        valid=torch.ones(rows, spec.horizon, dtype=torch.bool),
    )


def _loss(policy: Policy, batch: Batch) -> Tensor:
    torch.manual_seed(4)
    return policy.bc_loss(batch)


CHECKS: Checks = {
    "shapes": check_shapes,
    "function": check_function,
    "limits": check_limits,
    "cloning": check_cloning,
    "state": check_state,
    "device": check_device,
    "export": check_export,
}
"""What a policy is checked for, apart from a whole run."""
