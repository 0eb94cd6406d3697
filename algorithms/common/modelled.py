"""What RL-100 and Uni-O4 learn of a dataset before they improve on it: values, and models."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch

from trimtab.algorithms.base import Setup, Stateful
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.chain_ppo import ChainPPO
from trimtab.algorithms.common.expectiles import expectile_loss
from trimtab.algorithms.common.gate import Gate
from trimtab.algorithms.common.targets import polyak
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.normalizer import Normalizer
from trimtab.types import Batch, Metrics

__all__ = ["ModelledPPO"]


class ModelledPPO(ChainPPO):
    """PPO whose V, and a Q beside it, are first IQL's of a dataset, with models for a gate.

    Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (arXiv 2110.06169).

    Attributes:
        expectile: of V.
        tau: Polyak rate of the target critics.
    """

    expectile: float
    tau: float

    def make_values(
        self,
        setup: Setup,
        normalizer: Normalizer,
        *,
        hidden: Sequence[int],
        decisions: int,
        candidates: int | None = None,
    ) -> None:
        """Make critics, their targets, models and a gate, and what moves them.

        Args:
            setup: says the device.
            normalizer: what they read observations and actions by.
            hidden: widths of the critics' hidden layers.
            decisions: of the gate, in the models.
            candidates: how many are scored side by side; None: one.
        """
        self.reading = normalizer
        spec = normalizer.spec
        size = self.act_steps * spec.action_dim
        self.values = EnsembleCritic(spec.obs_dim, size, hidden=hidden).to(setup.device)
        self.target = copy.deepcopy(self.values).requires_grad_(False)
        self.gate = Gate(spec.obs_dim, size, decisions=decisions, candidates=candidates)
        self.gate.to(setup.device)
        rate = self.critic_optimizer.learning_rate
        self.values_optimizer = Adam(self.values.parameters(), rate)
        self.dynamics_optimizer = Adam(self.gate.dynamics.parameters(), rate)

    def learn_values(self, data: Batch) -> Metrics:
        """Take one step of V, Q and the models on the dataset."""
        obs, next_obs = self.reading.obs(data.obs), self.reading.obs(data.next_obs)
        action = self.reading.normalize_action(self.continued_action(data))
        # V: the expectile of the data's actions stands for the best of them.
        with torch.no_grad():
            backup = self.target(obs, action).amin(0)
        value = self.critic(obs).squeeze(-1)
        value_loss = expectile_loss(value[None], backup, self.expectile)
        self.critic_optimizer.step(value_loss)
        # Q: one decision, then V.
        with torch.no_grad():
            backup = data.reward + data.discount * self.critic(next_obs).squeeze(-1)
        q = self.values(obs, action)
        q_loss = (q - backup).square().mean(1).sum()
        self.values_optimizer.step(q_loss)
        polyak(self.target, self.values, self.tau)
        model_loss = self.gate.dynamics.loss(obs, action, next_obs, data.discount == 0)
        self.dynamics_optimizer.step(model_loss)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": q_loss.detach(),
            "q_mean": q.detach().mean(),
            "dynamics_loss": model_loss.detach(),
        }

    def state(self) -> Mapping[str, Stateful]:
        """Return networks, models and optimisers."""
        return {
            **super().state(),
            "values": self.values,
            "target": self.target,
            "gate": self.gate,
            "values_optimizer": self.values_optimizer,
            "dynamics_optimizer": self.dynamics_optimizer,
        }
