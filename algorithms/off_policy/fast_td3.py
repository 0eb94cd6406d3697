"""FastTD3: TD3 with categorical critics for thousands of environments side by side.

Seo et al., "FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control" (arXiv
2505.22642), by the published code (younggyoseo/FastTD3, ``fast_td3/{fast_td3,train}.py``). Q is a
distribution p over M fixed atoms z (C51, arXiv 1707.06887), Q(s, a) its mean:

- critic:       y_i = projection on z of  r + gamma (1 - d) z,  each atom with its probability under
                p'_i(s', clip(mu(s') + e, -1, 1)),  e = clip(N(0, s), -c, c);
                y = y_k, k = argmin_i mean of y_i
                L_p = -sum_i mean sum_z y log p_i(z|s, a)
- actor:        every k-th update,  L_mu = -mean min_i Q_i(s, mu(s))
- target:       with every update,  p' <- (1 - tau) p' + tau p;  mu has no target
- exploration:  mu(s) + N(0, w_n), where environment n draws w_n ~ U(w_min, w_max) anew at the
                beginning of each of its episodes

It belongs where data are plenty: 128 to 8,192 environments, which share two updates of 32,768
transitions after each of their steps. With few environments take SAC, or a method that makes an
update for each decision. The defaults are those for HumanoidBench with 128 environments;
``value_bound`` is in units of the return and differs from task to task (10 in MuJoCo Playground,
500 for its CheetahRun with ``n_step=3``). With ``normalize_rewards`` it fits every task.

Deviations from the published code: observations are counted once, when they are acted on (there,
again in each batch), divided by their deviation (there, by it and 0.01) and clipped at 10; actions
are clipped to the limits before they are stored; batches are drawn of all rows, not equally many of
each environment; scaled returns are counted as ``BoundedReturnScale`` says; float32, not bfloat16.
Left out are options that are off there by default: learning rates that fall, a bound on gradients,
simplicial layers; and what a critic alone observes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import Atoms, cross_entropy, expectation, project
from trimtab.algorithms.common.returns import BoundedReturnScale
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.networks.critic import EnsembleLinear
from trimtab.policies.networks.mlp import check_widths
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics, Obs


class FastTD3(Algorithm):
    """TD3 with categorical critics and noise of many widths.

    Args:
        setup: shapes, limits, number of environments, discount and device; nothing else is needed.
        hidden: widths of the hidden layers of the critics.
        actor_hidden: the same of the actor; None: half of the critics' each.
        critics: number of Q functions.
        pessimistic: whether all critics learn the distribution of the least mean and the actor
            ascends the least Q; else each learns its own and the actor ascends their mean.
        atoms: M, values of which Q is a mean.
        value_bound: they lie evenly from ``-value_bound`` to it.
        normalize_rewards: whether rewards are scaled so that returns stay within that bound.
        n_step: decisions whose rewards are summed before the bootstrap.
        learning_rate: AdamW's, for actor and critics.
        weight_decay: AdamW's, of all weights.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        target_noise: standard deviation s of what is added to the target's action.
        target_noise_clip: its bound c.
        least_noise: w_min, of actions in [-1, 1].
        most_noise: w_max.
        actor_every: critic updates k for one of the actor.
        warmup_steps: environment steps before learning, in which it acts as after them; the code
            has ten of each environment.
        updates_per_step: updates after each decision of all environments together.
    """

    needs = Needs(own_statistics=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (1024, 512, 256),
        actor_hidden: Sequence[Size] | None = None,
        critics: Size = 2,
        pessimistic: bool = True,
        atoms: Atoms = 101,
        value_bound: Positive = 250.0,
        normalize_rewards: bool = False,
        n_step: Count = 1,
        learning_rate: NonNegative = 3e-4,
        weight_decay: NonNegative = 0.1,
        batch_size: Size = 32_768,
        tau: Share = 0.1,
        target_noise: NonNegative = 0.001,
        target_noise_clip: NonNegative = 0.5,
        least_noise: NonNegative = 0.001,
        most_noise: Annotated[float, Bounds(least_of="least_noise")] = 0.4,
        actor_every: Count = 2,
        warmup_steps: Natural = 1_280,
        updates_per_step: NonNegative = 2.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_step / setup.num_envs)
        self.batch_spec = BatchSpec(n_step=n_step)
        self.pessimistic, self.tau, self.actor_every = pessimistic, tau, actor_every
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        if actor_hidden is None:
            actor_hidden = [max(1, width // 2) for width in hidden]
        self.policy: DeterministicPolicy = DeterministicPolicy(
            spec, hidden=actor_hidden, normalize_observations=True
        )
        start_near_zero_(self.policy.network)
        self.policy.to(setup.device)
        self.critic = CategoricalCritic(spec.obs_dim + size, hidden, critics, atoms, value_bound)
        self.critic.to(setup.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy_optimizer, self.critic_optimizer = (
            Adam(network.parameters(), learning_rate, weight_decay=weight_decay)
            for network in (self.policy, self.critic)
        )
        self.noise = EpisodeNoise(setup.num_envs, least_noise, most_noise).to(setup.device)
        scale = BoundedReturnScale(setup.num_envs, setup.discount, value_bound).to(setup.device)
        self.reward_scale = scale if normalize_rewards else None
        self.last_metrics = {"actor_loss": 0.0}

    @property
    def normalizer(self) -> RunningNormalizer:
        """The policy's normaliser, which counts observations."""
        assert isinstance(self.policy.normalizer, RunningNormalizer)
        return self.policy.normalizer

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critics and, every few times, of the actor; move the targets."""
        normalizer, support = self.normalizer, self.critic.support
        action = normalizer.normalize_action(self.continue_chunks(data))
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        reward = data.reward if self.reward_scale is None else self.reward_scale(data.reward)

        # Critics: the moved atoms of each target critic, projected back; then the least mean.
        with torch.no_grad():
            mass = self.target(next_obs, self.smoothed_action(data.next_obs)).softmax(-1)
            atoms = reward[:, None] + data.discount[:, None] * support
            backup = project(atoms.expand_as(mass), mass, support)
            if self.pessimistic:
                least = (backup * support).sum(-1).argmin(0)
                backup = backup.take_along_dim(least[None, :, None], 0)
        logits = self.critic(obs, action)
        critic_loss = cross_entropy(logits, backup).mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            # Actor: ascend the critics, whose weights get no gradients.
            value = expectation(self.critic(obs, self.policy.squashed(data.obs)), support)
            actor_loss = -(value.amin(0) if self.pessimistic else value.mean(0)).mean()
            self.policy_optimizer.step(actor_loss)
            self.last_metrics = {"actor_loss": actor_loss.detach()}
        polyak(self.target, self.critic, self.tau)
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": expectation(logits.detach(), support).mean(),
            **self.last_metrics,
        }

    def smoothed_action(self, obs: Obs) -> Tensor:
        """Return the actor's actions with bounded noise, scaled to [-1, 1], ``[B, H, A]``."""
        squashed = self.policy.squashed(obs)
        limit = self.target_noise_clip
        noise = (torch.randn_like(squashed) * self.target_noise).clamp(-limit, limit)
        return (squashed + noise).clamp(-1, 1)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Count observations; return the actor's actions with each environment's noise.

        Asked about other rows than the run's environments, it draws widths for them.
        """
        self.normalizer.see(obs)
        held = count(obs) == len(self.noise.width)
        return self.try_action(obs, self.noise.width if held else self.noise.draw(count(obs))), {}

    def try_action(self, obs: Obs, width: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]`` with noise of given widths ``[B]``."""
        squashed = self.policy.squashed(obs)
        noise = torch.randn_like(squashed) * width[:, None, None]
        return self.normalizer.raw_action((squashed + noise).clamp(-1, 1))

    @torch.no_grad()
    def continue_chunks(self, data: Batch) -> Tensor:
        """Return whole chunks as the base class does, without counting these observations."""
        if data.action.shape[1] == 1 or data.whole:
            return data.action
        planned = self.try_action(data.obs, self.noise.draw(len(data)))
        return torch.where(data.valid[..., None], data.action, planned)

    def on_episode_end(self, rows: Sequence[int]) -> None:
        """Give environments whose episode has ended noise of another width."""
        self.noise.redraw(rows)

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Count returns, if rewards are scaled by them."""
        if self.reward_scale is not None:
            self.reward_scale.see(reward, ended)


class CategoricalCritic(nn.Module):
    """Q functions as distributions over fixed atoms: E perceptrons with ReLU in one pass.

    Args:
        inputs: length of observation and flattened action together.
        hidden: widths of the hidden layers.
        members: number E of Q functions.
        atoms: number M of values.
        bound: they lie evenly from ``-bound`` to ``bound``.

    Attributes:
        support: the atoms, ``[M]``.
    """

    support: Tensor

    def __init__(
        self, inputs: int, hidden: Sequence[int], members: int, atoms: int, bound: float
    ) -> None:
        super().__init__()
        check_widths(hidden)
        self.register_buffer("support", torch.linspace(-bound, bound, atoms))
        self.members = members
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), nn.ReLU(inplace=True)]
            inputs = width
        self.network = nn.Sequential(*layers, EnsembleLinear(members, inputs, atoms))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return logits ``[E, B, M]`` of ``obs`` ``[B, O]`` and chunks ``[B, H, A]``."""
        rows = torch.cat([obs, action.flatten(1)], dim=1)
        logits: Tensor = self.network(rows.expand(self.members, -1, -1))
        return logits


class EpisodeNoise(nn.Module):
    """A width of noise for each environment, uniform within a range, kept for an episode.

    Args:
        num_envs: number N of environments.
        least: smallest width.
        most: largest width.

    Attributes:
        width: standard deviation of each environment's noise, ``[N]``.
    """

    width: Tensor

    def __init__(self, num_envs: int, least: float, most: float) -> None:
        super().__init__()
        self.least, self.most = least, most
        self.register_buffer("width", torch.empty(num_envs).uniform_(least, most))

    def draw(self, rows: int) -> Tensor:
        """Return widths ``[rows]``."""
        return torch.empty(rows, device=self.width.device).uniform_(self.least, self.most)

    def redraw(self, rows: Sequence[int]) -> None:
        """Draw the widths of some environments anew."""
        self.width[list(rows)] = self.draw(len(rows))


@torch.no_grad()
def start_near_zero_(network: nn.Sequential, deviation: float = 0.01) -> None:
    """Give a perceptron's last layer normal weights of a small deviation, and bias 0."""
    last = network[-1]
    assert isinstance(last, nn.Linear)
    last.weight.normal_(0.0, deviation)
    last.bias.zero_()
