"""MEow: one normalising flow is the policy and the soft value (maximum entropy, energy-based flow).

Chao et al., "Maximum Entropy Reinforcement Learning via Energy-Based Normalizing Flow" (arXiv
2405.13629), and the authors' code (github.com/ChienFeng-hub/meow, meow_continuous_action.py). There
is no actor. A flow pi(a|s) = exp(energy(a, s)) / Z(s) with a known Z gives both values of maximum
entropy learning, so the soft value needs no sample:

- values:  Q_i(s, a) = alpha [energy(a, s) + c_i(s)],  V_i(s) = alpha [log Z(s) + c_i(s)],
           so that exp (V_i / alpha) is the integral of exp (Q_i / alpha), and
           Q_i - V_i = alpha log pi exactly: pi is the best policy of its own Q
- loss:    y = r + gamma (1 - d) min_i V'_i(s')
           L = mean over i and the batch of (Q_i(s, a) - y)^2
- target:  V' has weights that follow: w' <- (1 - tau) w' + tau w

The two reward shifts c_i are networks of their own, the flow is shared; the minimum over them is
clipped double learning. The flow (``policies/kinds/normalizing_flow.py``) has a prior with mean 0
and two layers of two additive couplings. In the loss the couplings drop a tenth of their hidden
numbers, others for each i. A judged action is the image of the prior's mean.

Its authors tune it for each task. Their code's defaults are Hopper's but for alpha = 0.2, and are
those of this file. Their commands for version 4 of the tasks have

    task          alpha   tau      log_std_max   warmup_steps   steps
    Hopper        0.25    0.005    -0.3           5,000         1.5M
    HalfCheetah   0.25    0.003     2.0          10,000         1.5M
    Walker2d      0.1     0.005    -0.3          10,000         4M
    Ant           0.05    0.0001   -0.3           5,000         4M
    Humanoid      0.125   0.0005   -0.3           5,000         5M

so a comparison with a method of one setting for all tasks has to say which of them it took.

Additive couplings keep volumes, so before the squashing the density has one maximum only, and that
is the judged action. Of two equally good actions a policy can hold one, or both with what lies
between them; then its judged action is one that lies between, and it may be worse than its samples.

Deviations from the code: the last policy is judged (there: the best of all evaluations is kept); a
loss that is not a number is not replaced by 0; ``gamma (1 - d)`` is the batch's ``discount``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.normalizing_flow import NormalizingFlowPolicy
from trimtab.policies.networks.swish import SwishNetwork
from trimtab.settings import Bounds, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class SoftValues(nn.Module):
    """The values Q_i and V_i of a flow, with a reward shift for each i.

    Args:
        flow: pi.
        alpha: temperature, in units of the return for each nat.
        shifts: number of reward shifts.
        hidden: widths of their hidden layers.
    """

    def __init__(
        self, flow: NormalizingFlowPolicy, alpha: float, shifts: int, hidden: Sequence[int]
    ) -> None:
        super().__init__()
        self.flow, self.alpha = flow, alpha
        self.shifts = nn.ModuleList(
            SwishNetwork(flow.spec.obs_dim, hidden, 1, initialize=nn.init.zeros_)
            for _ in range(shifts)
        )

    def shift(self, obs: Tensor) -> Tensor:
        """Return c_i ``[E, B]`` of normalised observations ``[B, O]``."""
        return torch.stack([shift(obs).squeeze(-1) for shift in self.shifts])

    def of_actions(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """Return Q_i ``[E, B]`` of scaled chunks ``[B, H, A]``.

        Args:
            obs: normalised observations ``[B, O]``.
            action: chunks scaled to [-1, 1].
            dropout: share of the couplings' hidden numbers that are left out, others for each i.
        """
        halves = len(self.shifts) if dropout else 1  # without dropout they are equal
        rows = obs.expand(halves, *obs.shape), action.expand(halves, *action.shape)
        return self.alpha * (self.flow.energy(*rows, dropout) + self.shift(obs))

    def of_states(self, obs: Tensor) -> Tensor:
        """Return V_i ``[E, B]`` of normalised observations ``[B, O]``."""
        return self.alpha * (self.flow.log_normalizer(obs) + self.shift(obs))


class MEow(Algorithm):
    """Maximum entropy learning with one flow in place of actor and critics.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        alpha: fixed temperature, in units of the return for each nat of entropy.
        hidden: widths of the hidden layers of the flow's prior and couplings.
        layers: layers of the flow, each of two couplings.
        log_std_min: lower bound of the prior's log standard deviation.
        log_std_max: upper bound of it.
        shifts: number of reward shifts, of which y takes the least V.
        shift_hidden: widths of their hidden layers.
        dropout: share of the couplings' hidden numbers that the loss leaves out.
        learning_rate: Adam's.
        max_gradient_norm: bound on the norm of the gradient.
        batch_size: transitions in one update.
        tau: Polyak rate of the target.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    unsaved = frozenset({"policy"})  # a part of the values, which are saved
    capturable = True
    policy: NormalizingFlowPolicy

    def __init__(
        self,
        setup: Setup,
        *,
        alpha: Positive = 0.2,
        hidden: Sequence[Size] = (64, 64),
        layers: Size = 2,
        log_std_min: Annotated[float, Bounds(least=-20)] = -5.0,
        log_std_max: Annotated[float, Bounds(least_of="log_std_min", most=20)] = -0.3,
        shifts: Size = 2,
        shift_hidden: Sequence[Size] = (256, 256),
        dropout: Annotated[float, Bounds(least=0, below=1)] = 0.1,
        learning_rate: NonNegative = 1e-3,
        max_gradient_norm: Positive = 30.0,
        batch_size: Size = 256,
        tau: Share = 0.005,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau, self.dropout = tau, dropout
        flow = NormalizingFlowPolicy(
            setup.spec, hidden=hidden, layers=layers, log_std_min=log_std_min,
            log_std_max=log_std_max,
        )  # fmt: skip
        self.values = SoftValues(flow, alpha, shifts, shift_hidden).to(setup.device)
        self.target = copy.deepcopy(self.values).requires_grad_(False)
        self.optimizer = Adam(
            self.values.parameters(), learning_rate, max_gradient_norm=max_gradient_norm
        )
        self.policy = self.values.flow

    def update(self, data: Batch) -> Metrics:
        """Take one step of the flow and its shifts, and move the target."""
        normalizer = self.policy.normalizer
        action = normalizer.normalize_action(self.continue_chunks(data))
        with torch.no_grad():
            next_value = self.target.of_states(normalizer.obs(data.next_obs)).amin(0)
            backup = data.reward + data.discount * next_value
        value = self.values.of_actions(normalizer.obs(data.obs), action, self.dropout)
        loss = (value - backup).square().mean()
        self.optimizer.step(loss)
        polyak(self.target, self.values, self.tau)
        self.updates += 1
        return {
            "loss": loss.detach(),
            "q_mean": value.detach().mean(),
            "next_value": next_value.mean(),
        }

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, sampled ones after it."""
        if not warmup:
            return self.policy.act(obs), {}
        noise = torch.rand(count(obs), *self.policy.noise_shape, device=first_leaf(obs).device)
        return self.policy.normalizer.raw_action(2 * noise - 1), {}
