"""CFGRL: classifier-free guidance as an operator of policy improvement.

Frans et al., "Diffusion Guidance Is a Controllable Policy Improvement Operator" (arXiv 2505.23458).
A flow policy learns, for each action of the data, whether it is good, and is guided towards the
good ones when it acts. Critics are those of implicit Q-learning (arXiv 2110.06169):

- value:   L_V = mean |tau - 1(u < 0)| u^2,  u = min_i Q'_i(s, a) - V(s)
- critic:  L_Q = sum_i mean (Q_i(s, a) - r - gamma (1 - d) V(s'))^2
- label:   o = positive where min_i Q_i(s, a) - V(s) >= threshold, else negative; with a chance of
           ``unlabelled`` it is replaced by none
- policy:  L = mean (v(x_t, t, s, o) - (a - eps))^2,  x_t = (1 - t) eps + t a
- acting:  v = v(none) + w (v(positive) - v(none)), integrated by Euler steps and clipped at the end

w is ``guidance``: at 0 it acts as all of the data, at 1 as the good part of it, and with more it
leaves the data. It is an input of the policy, so that one trained network is judged, and driven, at
any w; ``guidance`` is only its default. The setting is that of the paper's offline experiments on
OGBench, with three labels. All losses are of the networks before the update, as in the code.

Deviations from the authors' code: perceptrons with ReLU, normalised before it, and sinusoidal
features of time (there: GELU, normalised after it, and time as it is); networks start as torch has
them (there: from a uniform distribution by the average fan); observations and actions are scaled to
[-1, 1] by their ranges in the data (there: as they are). An action chunk is one action of the
critics, and one that its episode cut goes on with a sample of the policy there; in the policy's
loss it is left out. The paper's variants for goals and for ExORL, which have other labels, are not
here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.expectiles import expectile_loss
from trimtab.algorithms.common.plans import continued
from trimtab.algorithms.common.targets import polyak
from trimtab.policies.kinds.guided_flow import GUIDANCE, NEGATIVE, NONE, POSITIVE, GuidedFlowPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, NonNegative, Share, Size
from trimtab.types import Batch, Metrics


class CFGRL(Algorithm):
    """Label actions by their advantage, clone them with their labels, and guide.

    Args:
        setup: needs ``dataset``.
        guidance: w of the policy unless its user gives another.
        expectile: tau of V, between 0 and 1.
        threshold: least advantage of a positive action.
        unlabelled: chance that an action's label is left out.
        hidden: widths of the hidden layers of policy, V and critics.
        layer_norm: normalise after each hidden layer of V and of the critics.
        critics: number of Q functions.
        sampling_steps: Euler steps at acting time.
        learning_rate: Adam's, for all networks.
        batch_size: decisions in one update.
        tau: Polyak rate of the target critics.
    """

    needs = Needs({"dataset"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        guidance: Annotated[float, Bounds(least=0, most=1000)] = 1.0,
        expectile: Annotated[float, Bounds(least=0.001, most=0.999)] = 0.9,
        threshold: Annotated[float, Bounds(least=-1e9, most=1e9)] = 0.0,
        unlabelled: Share = 0.1,
        hidden: Sequence[Size] = (512, 512, 512, 512),
        layer_norm: bool = True,
        critics: Size = 2,
        sampling_steps: Size = 16,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 1024,
        tau: Share = 0.005,
    ) -> None:
        assert setup.statistics is not None
        self.expectile, self.threshold, self.unlabelled = expectile, threshold, unlabelled
        self.pace = Pace(batch_size)
        self.tau = tau
        self.policy: GuidedFlowPolicy = GuidedFlowPolicy(
            setup.spec.with_input(GUIDANCE, guidance), hidden=hidden, sampling_steps=sampling_steps
        ).to(setup.device)
        self.policy.fit_normalizer(setup.statistics)
        width, size = self.policy.features_dim, setup.spec.horizon * setup.spec.action_dim
        self.critic = EnsembleCritic(
            width, size, hidden=hidden, members=critics, layer_norm=layer_norm
        ).to(setup.device)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = mlp(width, hidden, 1, layer_norm=layer_norm).to(setup.device)
        self.policy_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.value_optimizer = Adam(self.value.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of V, of the critics and of the policy."""
        policy = self.policy
        obs, _ = policy.read(data.obs)
        next_obs, _ = policy.read(data.next_obs)
        action = policy.normalizer.normalize_action(continued(data, policy))

        # V: an expectile of the target critics over the actions of the data.
        value = self.value(obs).squeeze(-1)
        with torch.no_grad():
            reached = self.critic_target(obs, action).amin(0)
        value_loss = 0.5 * expectile_loss(value[None], reached, self.expectile)

        # Critics: one step ahead by V; no action of the policy is asked about.
        with torch.no_grad():
            backup = data.reward + data.discount * self.value(next_obs).squeeze(-1)
        estimate = self.critic(obs, action)
        critic_loss = (estimate - backup).square().mean(1).sum()

        # Policy: imitation of every action, with what is said of it.
        advantage = (estimate.amin(0) - value).detach()
        label = self.labels(advantage)
        error = policy.label_errors(data, obs, label)
        policy_loss = policy.masked_mean(error, data.valid)

        self.value_optimizer.step(value_loss)
        self.critic_optimizer.step(critic_loss)
        self.policy_optimizer.step(policy_loss)
        polyak(self.critic_target, self.critic, self.tau)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "policy_loss": policy_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "positive": (advantage >= self.threshold).float().mean(),
        }

    def labels(self, advantage: Tensor) -> Tensor:
        """Return what the policy is told of actions ``[B]`` by their advantage, or nothing."""
        told = torch.where(advantage >= self.threshold, POSITIVE, NEGATIVE)
        return torch.where(torch.rand_like(advantage) < self.unlabelled, NONE, told)
