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

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Needs, Setup, Stateful
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.rollouts import estimate_advantages
from trimtab.algorithms.on_policy.ppo import Samples
from trimtab.algorithms.on_policy.trpo import TRPO
from trimtab.algorithms.phases import Budget, Phase, usual_phases
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
        learning_rate: Adam's, for the critic.
        trpo: further settings of TRPO; ``batch_size`` is that of an offline update.
    """

    needs = Needs({"dataset"}, transitions_only=True)
    without = TRPO.without | {"normalize_observations", "normalize_rewards", "epochs", "value_clip"}
    faithful = False

    def __init__(
        self,
        setup: Setup,
        *,
        data_weight: NonNegative = 1.0,
        memory: Annotated[int, Bounds(least_of="batch_size")] = 50_000,
        value_samples: Size = 10,
        critic_updates: Size = 30,
        learning_rate: NonNegative = 3e-4,
        hidden: Sequence[int] = (64, 64),
        **trpo: Any,
    ) -> None:
        # Data and rollouts share a critic: rewards and observations keep one scale.
        super().__init__(
            setup, hidden=hidden, learning_rate=learning_rate, normalize_observations=False,
            normalize_rewards=False, **trpo,
        )  # fmt: skip
        assert setup.statistics is not None
        self.actor.normalizer.standardize(setup.statistics)
        self.data_weight, self.critic_updates = data_weight, critic_updates
        spec = setup.spec
        shape = (spec.horizon, spec.action_dim)
        self.critic: nn.Module = SampledValue(
            spec.obs_dim, spec.horizon * spec.action_dim, hidden, self.drawn, value_samples
        ).to(setup.device)
        self.optimizer = Adam(self.learned(), learning_rate)
        self.memory = Memory(memory, spec.obs_dim, shape).to(setup.device)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Keep data, then interact."""
        return usual_phases(budget, self.keep, self.update)

    @torch.no_grad()
    def drawn(self, obs: Tensor) -> Tensor:
        """Return sampled actions ``[B, H, A]`` at normalised observations ``[B, O]``."""
        mean = self.actor.head(obs)
        return torch.addcmul(mean, self.actor.log_std.exp(), torch.randn_like(mean))

    def keep(self, data: Batch) -> Metrics:
        """Keep a batch of the data."""
        normalizer = self.actor.normalizer
        action = normalizer.normalize_action(self.continued_action(data))
        self.memory.keep(
            normalizer.obs(data.obs), action, data.reward, normalizer.obs(data.next_obs),
            data.discount,
        )  # fmt: skip
        return {"kept": float(self.memory.size), "reward": data.reward.mean()}

    def update(self, data: Rollout) -> Metrics:
        """Fit the critic to a rollout and to data, and step the policy over both."""
        rate = self.schedule_rate()
        hybrid = self.memory.size > 0 and self.data_weight > 0
        met = self.memory.draw(len(data)) if hybrid else None
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

    def state(self) -> Mapping[str, Stateful]:
        """Return actor, critic, optimiser and the data that is kept."""
        return {**super().state(), "memory": self.memory}


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


class Snapshot:
    """B transitions of the data, in normalised units."""

    def __init__(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor
    ) -> None:
        self.obs, self.action, self.reward = obs, action, reward
        self.next_obs, self.discount = next_obs, discount


class Memory(nn.Module):
    """A ring of transitions, part of a method's state.

    Args:
        rows: most transitions.
        obs_dim: length of a normalised observation.
        shape: of a chunk, H and A.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor

    def __init__(self, rows: int, obs_dim: int, shape: tuple[int, int]) -> None:
        super().__init__()
        self.rows, self.written = rows, 0
        self.register_buffer("obs", torch.zeros(rows, obs_dim))
        self.register_buffer("action", torch.zeros(rows, *shape))
        self.register_buffer("reward", torch.zeros(rows))
        self.register_buffer("next_obs", torch.zeros(rows, obs_dim))
        self.register_buffer("discount", torch.zeros(rows))

    @property
    def size(self) -> int:
        """How many transitions there are."""
        return min(self.written, self.rows)

    @torch.no_grad()
    def keep(self, *parts: Tensor) -> None:
        """Write rows, the oldest ones' places first: ``Snapshot``'s parts in their order."""
        count = len(parts[0])
        places = torch.arange(self.written, self.written + count, device=self.obs.device)
        for ring, part in zip(self.buffers(), parts, strict=True):
            ring[places % self.rows] = part
        self.written += count

    def draw(self, count: int) -> Snapshot:
        """Return rows by chance, each time anew."""
        rows = torch.randint(self.size, (count,), device=self.obs.device)
        return Snapshot(*(ring[rows] for ring in self.buffers()))

    def get_extra_state(self) -> int:
        """Return the number of written rows, for checkpoints."""
        return self.written

    def set_extra_state(self, state: int) -> None:
        """Go on with a number of written rows."""
        self.written = int(state)


def concatenate(one: Samples, other: Samples) -> Samples:
    """Return the rows of both."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Samples(*(torch.cat(pair) for pair in pairs))
