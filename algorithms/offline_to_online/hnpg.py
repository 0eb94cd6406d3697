"""HNPG: trust region policy optimisation whose critic, and whose states, are also those of data.

Zhou et al., "Offline Data Enhanced On-Policy Policy Gradient with Provable Guarantees" (arXiv
2311.08384), hybrid natural policy gradient. Each rollout is met by as many transitions of the data:

- critic:      full-batch steps on  mean_on (Q(s, a) - G)^2 + w mean_data (Q(s, a) - y)^2
               with G what was collected from (s, a) on, and y = r + gamma (1 - d) Q(s', a'),
               a' ~ pi(.|s'), with Q as it was before the first step
- value:       V(s) = mean of ``value_samples`` Q(s, a), a ~ pi(.|s)
- advantages:  of the rollout by generalised estimation from V; at the data's observations
               Q(s, b) - V(s), with b ~ pi(.|s), not with the data's actions
- policy:      one step of TRPO (arXiv 1502.05477) over both together

w is ``data_weight``; 0 leaves TRPO with a Q. Where the data does not help, the on-policy part alone
has a guarantee, which is what the paper proves.

An adaptation (``faithful`` is False), because the paper has one policy and one Q for each step of a
finite horizon, learned from its end backwards, without discount. Here one of each serves all steps:
y bootstraps with the Q of the rollout before, and G with V where a rollout or a time limit cut an
episode. Q sees actions within their limits; Adam keeps its moments (there: afresh for each
rollout); advantages are normalised over both parts together, which leaves out their scale, as does
the trust region; the line search is TRPO's here. The data that is met is what the run's offline
updates have drawn, ``batch_size`` transitions each, at most ``memory``; a last chunk that an
episode's end has cut is continued by the policy as it was when the chunk was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.ring import Ring
from trimtab.algorithms.common.rollouts import estimate_advantages
from trimtab.algorithms.on_policy.ppo import Samples
from trimtab.algorithms.on_policy.trpo import TRPO
from trimtab.algorithms.phases import Budget, Phase, default_phases
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, NonNegative, Size
from trimtab.types import Batch, Metrics, Rollout


class HNPG(TRPO):
    """Hybrid natural policy gradient.

    Args:
        setup: needs ``dataset``.
        data_weight: w; 0 leaves the data out of the critic, and of the policy's states.
        memory: most transitions of the data that are kept; at least ``batch_size``.
        value_samples: actions whose Q are V.
        critic_updates: steps of the critic for each rollout.
        trpo: further settings of TRPO; ``batch_size`` is that of an offline update, and
            ``learning_rate`` the critic's.
    """

    needs = Needs({"dataset"}, transitions_only=True)
    unused_settings = TRPO.unused_settings | {
        "normalize_observations",
        "normalize_rewards",
        "epochs",
        "value_clip",
    }
    faithful = False

    def __init__(
        self,
        setup: Setup,
        *,
        data_weight: NonNegative = 1.0,
        memory: Annotated[int, Bounds(least_of="batch_size")] = 50_000,
        value_samples: Size = 10,
        critic_updates: Size = 30,
        **trpo: Any,
    ) -> None:
        # Data and rollouts share a critic: rewards and observations keep one scale.
        super().__init__(
            setup, normalize_observations=False,
            normalize_rewards=False, **trpo,
        )  # fmt: skip
        assert setup.statistics is not None
        self.actor.normalizer.standardize(setup.statistics)
        self.data_weight, self.critic_updates = data_weight, critic_updates
        spec = setup.spec
        shape = (spec.horizon, spec.action_dim)
        self.critic: nn.Module = SampledValue(
            spec.obs_dim, spec.horizon * spec.action_dim, self.hidden, self.drawn, value_samples
        ).to(setup.device)
        self.optimizer = Adam(self.critic.parameters(), self.learning_rate)
        reads = (spec.obs_dim,)
        self.memory = Ring(
            memory, obs=reads, action=shape, reward=(), next_obs=reads, discount=()
        ).to(setup.device)

    def update(self, data: Rollout) -> Metrics:
        """Fit the critic to a rollout and to data, and step the policy over both."""
        rate = self.schedule_rate()
        hybrid = self.memory.size > 0 and self.data_weight > 0
        met = Snapshot(*self.memory.draw(len(data))) if hybrid else None
        losses = self.fit(data, met)
        samples = self.samples(data)
        if met is not None:
            samples = concatenate(samples, self.model_rollout(met.obs))
        metrics = self.improve_policy(samples)
        self.updates += 1
        return {**metrics, **losses, "learning_rate": rate}

    def fit(self, data: Rollout, met: Snapshot | None) -> Metrics:
        """Take the critic's steps on a rollout and, where there is some, on data."""
        critic = self.critic
        assert isinstance(critic, SampledValue)
        collected = estimate_advantages(data, self.actor.normalizer.obs, critic, None, 1.0)
        goal = (collected.advantage + collected.value).flatten()
        obs, action = collected.obs.flatten(0, 1), data.aux["unclipped"].flatten(0, 1)
        if met is not None:
            with torch.no_grad():
                following = critic.worth(met.next_obs, self.drawn(met.next_obs))
                backup = met.reward + met.discount * following
        on_loss = data_loss = torch.zeros_like(goal[0])
        for _ in range(self.critic_updates):
            on_loss = (critic.worth(obs, action) - goal).square().mean()
            if met is not None:
                data_loss = (critic.worth(met.obs, met.action) - backup).square().mean()
            self.optimizer.step(on_loss + self.data_weight * data_loss)
        return {"value_loss": on_loss.detach(), "data_loss": data_loss.detach()}

    @torch.no_grad()
    def model_rollout(self, obs: Tensor) -> Samples:
        """Return what the policy would do at the data's observations ``[B, O]``, and its worth."""
        critic = self.critic
        assert isinstance(critic, SampledValue)
        mean = self.actor.head(obs)
        action = torch.addcmul(mean, self.actor.log_std.exp(), torch.randn_like(mean))
        value, worth = critic(obs).squeeze(-1), critic.worth(obs, action)
        log_prob = self.actor.log_prob(mean, action)
        return Samples(obs, action, mean, log_prob, value, worth - value, worth)

    @torch.no_grad()
    def drawn(self, obs: Tensor) -> Tensor:
        """Return sampled actions ``[B, H, A]`` at normalised observations ``[B, O]``."""
        mean = self.actor.head(obs)
        return torch.addcmul(mean, self.actor.log_std.exp(), torch.randn_like(mean))

    def keep(self, data: Batch) -> Metrics:
        """Keep a batch of the data."""
        normalizer = self.actor.normalizer
        action = normalizer.normalize_action(self.continue_chunks(data))
        self.memory.keep(
            normalizer.obs(data.obs), action, data.reward, normalizer.obs(data.next_obs),
            data.discount,
        )  # fmt: skip
        return {"kept": float(self.memory.size), "reward": data.reward.mean()}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Keep data, then interact."""
        return default_phases(budget, self.keep, self.update)


class SampledValue(nn.Module):
    """V as the mean of Q over sampled actions.

    Args:
        obs_dim: length of a normalised observation.
        size: of a flattened chunk.
        hidden: widths of Q's hidden layers.
        draw: samples actions ``[B, H, A]`` at observations ``[B, O]``.
        samples: actions of each observation.
    """

    def __init__(
        self,
        obs_dim: int,
        size: int,
        hidden: Sequence[int],
        draw: Callable[[Tensor], Tensor],
        samples: int,
    ) -> None:
        super().__init__()
        self.draw, self.samples = draw, samples
        self.network = mlp(obs_dim + size, hidden, 1, activation="tanh")

    def worth(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return Q of chunks ``[B, H, A]`` within their limits, ``[B]``."""
        executed = action.clamp(-1.0, 1.0).flatten(1)
        found: Tensor = self.network(torch.cat([obs, executed], 1)).squeeze(-1)
        return found

    def forward(self, obs: Tensor) -> Tensor:
        """Return V ``[..., 1]`` of observations ``[..., O]``."""
        rows = obs.reshape(-1, obs.shape[-1])
        many = rows.repeat(self.samples, 1)
        found = self.worth(many, self.draw(many)).reshape(self.samples, -1).mean(0)
        return found.reshape(*obs.shape[:-1], 1)


class Snapshot(NamedTuple):
    """B transitions of the data, in normalised units."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor


def concatenate(one: Samples, other: Samples) -> Samples:
    """Return the rows of both."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Samples(*(torch.cat(pair) for pair in pairs))
