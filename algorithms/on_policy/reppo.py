"""Relative entropy path-wise policy optimisation: an on-policy actor that climbs Q.

Voelcker et al., "Relative Entropy Pathwise Policy Optimization" (arXiv 2507.11019), with their code
(cvoelcker/reppo: ``src/jaxrl/reppo.py``, ``src/reppo_mj_playground.py``). Each rollout is learned
from in several epochs of minibatches, with pi_old the policy that gathered it:

- soft reward:  u_t = r_t - gamma (1 - d_t) alpha log pi_old(a_{t+1}|s_{t+1})
- target:       G_t = u_t + gamma (1 - d_t) [(1 - lambda) Q(s_{t+1}, a_{t+1}) + lambda G_{t+1}],
                with lambda = 0 in the last row of an episode or of the rollout
- critic:       L_Q = mean H(HL-Gauss(G), p(s, a)) + c mean (1 - d) |h(f(s, a)) - (f(s', a'), r)|^2,
                Q the mean of p over bins; f the embedding that p and h read. The second term is the
                auxiliary one: a mean over the entries, f(s', a') that before the update
- actor:        L_pi = mean [alpha log pi(a|s) - Q(s, a)] where KL(pi_old || pi) < bound,
                       mean [beta KL(pi_old || pi)] elsewhere;  a ~ pi(.|s) reparameterised
- temperature:  L_alpha = alpha mean (H(pi) - H_target)
- weight:       L_beta = -beta mean (KL - bound)

The divergence is estimated in each state, by ``kl_samples`` actions of the old policy. One Adam,
whose gradients are bounded together, moves actor, alpha and beta; the critic has its own.

**Next actions.** Inside an episode a_{t+1} is the action that was taken next, so that lambda = 1 is
the Monte Carlo return. The last observation of an episode that ran out of time, and the one after
the rollout's last row, have none: there the policy draws one in the update. (Their first code draws
all of them anew; their second does as here and averages 64 more for Q.)

**Range of values.** Targets are clamped to the bins' range, from ``value_low`` to ``value_high``,
which is in units of ``reward_scale`` times the return. In the paper it is [0, 150] for DM Control,
whose rewards of at most 1 give returns of at most 100 with gamma 0.99; the entropy takes the rest.
For other rewards change ``reward_scale`` (their code: 0.1 for Brax) or the range; the metric
``clamped`` is the share of targets outside of it.

**Sizes.** The defaults are the paper's for MJX: 1024 environments (``num_envs=1024``), of each 128
decisions (``rollout_steps=128``), 64 minibatches (``batch_size=2048``), networks 512 wide. Its
variant for fewer data has ``rollout_steps=32``. The YAML file has sizes for a processor.

Deviations: their simulations begin with random counts of steps, so that time limits come apart;
here all episodes begin together, and a limit that all share ends them together. There a row at a
time limit is left out of the critic's loss, as its true next observation is lost, and in their
first code the row before it takes Q of its own next state; here both learn from what follows. There
the entropy of the next action counts after a true end, too; here nothing does, while their first
code takes Q of the next state in the last row of a rollout after a true end, too, and has one draw
of noise for all minibatches of an epoch. The log standard deviation is held in [-5, 2] (their first
code: the deviation is at least 0.1, the second: there is no bound). Likelihoods are those of
actions before squashing, so that none is clipped to 0.999 (there: what Q learns from is, and to
0.9999 what the divergence is estimated by). Statistics of observations change between rollouts
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import cross_entropy, expectation, hl_gauss
from trimtab.algorithms.common.returns import generalized_advantage
from trimtab.algorithms.common.rollouts import mean_metrics, minibatch_rows
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.observations import count, tree_map
from trimtab.policies.kinds.running_tanh_gaussian import RunningTanhGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.networks.mlp import mlp
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share, Size
from trimtab.types import Metrics, Obs, Rollout

_DEVIATION = 0.75
"""Standard deviation of HL-Gauss, in widths of a bin."""

_START = 40.0
"""Weight of the bins around 0 in the logits at the start, so that values begin there."""


@dataclass(frozen=True)
class Samples:
    """M decisions of a rollout without their order, what acted there, and what Q learns there."""

    obs: Tensor  # [M, O] normalised
    action: Tensor  # [M, H, A] in [-1, 1]
    mean: Tensor  # [M, H, A] of the old policy, before squashing
    log_std: Tensor  # [M, H, A] of the old policy, before squashing
    reward: Tensor  # [M] scaled, without entropy
    target: Tensor  # [M] G
    next_embedding: Tensor  # [M, E] of the next observation and action, before the update
    going_on: Tensor  # [M] 1; 0 after a true end

    def __getitem__(self, rows: Tensor) -> Samples:
        """Return some of the rows."""
        return Samples(*(part[rows] for part in vars(self).values()))


class REPPO(Algorithm):
    """Relative entropy path-wise policy optimisation.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        hidden: widths of the actor's hidden layers.
        embedding: width of the critic's embedding f, and of its hidden layers.
        normalize_observations: whether the policy keeps running statistics of observations.
        reward_scale: rewards are multiplied by it.
        value_low: least value of Q, the middle of the first bin.
        value_high: largest value of Q, the middle of the last bin.
        bins: number of bins.
        learning_rate: Adam's, for all weights.
        rollout_steps: decisions of each environment between updates.
        batch_size: decisions in a minibatch.
        epochs: passes over each rollout.
        trace_decay: lambda of the targets.
        auxiliary_weight: c; 0: the critic predicts values alone.
        kl_bound: divergence from the old policy at which a state no longer climbs Q.
        kl_samples: actions of the old policy by which the divergence of a state is estimated.
        initial_kl_weight: beta at the start.
        initial_temperature: alpha at the start.
        entropy_per_dimension: H_target of each action dimension, that of the squashed action.
        max_gradient_norm: bound on the norm of the gradients of each Adam.
        log_std_min: lower bound of the actor's log standard deviation before squashing.
    """

    minibatch_updates = ("learn",)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (512, 512),
        embedding: Size = 512,
        normalize_observations: bool = True,
        reward_scale: Positive = 1.0,
        value_low: float = 0.0,
        value_high: Annotated[float, Bounds(above_of="value_low")] = 150.0,
        bins: Annotated[int, Bounds(least=2, most=10_000)] = 151,
        learning_rate: NonNegative = 3e-4,
        rollout_steps: Count = 128,
        batch_size: Size = 2048,
        epochs: Size = 8,
        trace_decay: Share = 0.95,
        auxiliary_weight: NonNegative = 1.0,
        kl_bound: Positive = 0.1,
        kl_samples: Size = 16,
        initial_kl_weight: Positive = 0.01,
        initial_temperature: Positive = 0.01,
        entropy_per_dimension: float = -0.5,
        max_gradient_norm: Positive = 0.5,
        log_std_min: Annotated[float, Bounds(most=2)] = -5.0,
    ) -> None:
        self.pace, self.epochs = Pace(batch_size, rollout_steps=rollout_steps), epochs
        self.reward_scale, self.trace_decay = reward_scale, trace_decay
        self.auxiliary_weight, self.kl_bound = auxiliary_weight, kl_bound
        self.kl_samples = kl_samples
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        self.target_entropy = entropy_per_dimension * size

        self.policy: RunningTanhGaussianPolicy = RunningTanhGaussianPolicy(
            spec,
            hidden=hidden,
            normalize_observations=normalize_observations,
            log_std_min=log_std_min,
        ).to(setup.device)
        self.critic = EmbeddingCritic(
            spec.obs_dim + size, embedding, torch.linspace(value_low, value_high, bins)
        ).to(setup.device)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.kl_weight = Temperature(initial_kl_weight).to(setup.device)
        steered = (self.policy, self.temperature, self.kl_weight)
        self.actor_optimizer = Adam(
            [weight for part in steered for weight in part.parameters()],
            learning_rate,
            max_gradient_norm=max_gradient_norm,
        )
        self.critic_optimizer = Adam(
            self.critic.parameters(), learning_rate, max_gradient_norm=max_gradient_norm
        )

    def update(self, data: Rollout) -> Metrics:
        """Improve critic and policy on one rollout, then let the normaliser see it."""
        samples = self.samples(data)
        rows = minibatch_rows(len(data), self.pace.batch_size, self.epochs, samples.obs.device)
        steps = [self.learn(samples[chosen]) for chosen in rows]
        if isinstance(self.policy.normalizer, RunningNormalizer):
            self.policy.normalizer.see(data.obs)
        self.updates += 1
        return mean_metrics(steps)

    @torch.no_grad()
    def samples(self, data: Rollout) -> Samples:
        """Return the rollout's decisions with their targets."""
        steps, envs = data.reward.shape
        normalize = self.policy.normalizer.obs
        obs = normalize(data.obs).flatten(0, 1)
        mean, log_std = self.policy.head(obs)
        noise = (data.aux["unsquashed"].flatten(0, 1) - mean) * (-log_std).exp()
        action, log_prob = squashed_sample(mean, log_std, noise)
        embedding = self.critic.embed(obs, action)
        value = self.critic.value(embedding)

        # After the last row, and at the true last observations of episodes, the policy draws.
        last = tree_map(lambda part: part[-1], data.next_obs)
        at_cuts = tree_map(lambda part: part.flatten(0, 1)[data.cuts], data.next_obs)
        end_obs = torch.cat([normalize(last), normalize(at_cuts)])
        end_noise = self.policy.sample_noise(len(end_obs))
        end_action, end_log_prob = squashed_sample(*self.policy.head(end_obs), end_noise)
        end_embedding = self.critic.embed(end_obs, end_action)

        def follow(now: Tensor, ends: Tensor) -> Tensor:
            """Return what follows each row ``[T * N, ...]``."""
            following = torch.cat([now[envs:], ends[:envs]])
            return following.index_copy_(0, data.cuts, ends[envs:])

        next_log_prob = follow(log_prob, end_log_prob).view(steps, envs)
        next_value = follow(value, self.critic.value(end_embedding)).view(steps, envs)
        reward = self.reward_scale * data.reward
        soft_reward = reward - data.discount * self.temperature() * next_log_prob
        # G - Q is the sum of discounted one-step errors, as a generalised advantage is.
        value = value.view(steps, envs)
        error = generalized_advantage(
            soft_reward, value, next_value, data.discount, data.cut, self.trace_decay
        )
        return Samples(
            obs=obs,
            action=action,
            mean=mean,
            log_std=log_std,
            reward=reward.flatten(),
            target=(value + error).flatten(),
            next_embedding=follow(embedding, end_embedding),
            going_on=(data.discount > 0).to(reward.dtype).flatten(),
        )

    def learn(self, part: Samples) -> dict[str, Tensor]:
        """Take one step of the critic, then one of actor, temperature and weight."""
        support = self.critic.support
        embedding = self.critic.embed(part.obs, part.action)
        wanted = hl_gauss(part.target, support, _DEVIATION)
        value_loss = cross_entropy(self.critic.logits(embedding), wanted).mean()
        # Auxiliary: the embedding knows what comes next.
        comes = torch.cat([part.next_embedding, part.reward[:, None]], 1)
        misses = (self.critic.prediction(embedding) - comes).square().mean(1)
        auxiliary_loss = (part.going_on * misses).mean()
        self.critic_optimizer.step(value_loss + self.auxiliary_weight * auxiliary_loss)

        # Actor: climb Q where the old policy is near, go back to it elsewhere.
        mean, log_std = self.policy.head(part.obs)
        action, log_prob = squashed_sample(mean, log_std, torch.randn_like(mean))
        value = self.critic.value(self.critic.embed(part.obs, action))
        noise = torch.randn(self.kl_samples, *mean.shape, device=mean.device)
        kl = estimate_divergence(part.mean, part.log_std, mean, log_std, noise)
        alpha, beta = self.temperature(), self.kl_weight()
        near = kl < self.kl_bound
        climbing = alpha.detach() * log_prob - value
        actor_loss = torch.where(near, climbing, beta.detach() * kl).mean()
        entropy, divergence = -log_prob.detach().mean(), kl.detach().mean()
        temperature_loss = alpha * (entropy - self.target_entropy)
        weight_loss = -beta * (divergence - self.kl_bound)
        self.actor_optimizer.step(actor_loss + temperature_loss + weight_loss)
        outside = (part.target < support[0]) | (part.target > support[-1])
        return {
            "critic_loss": value_loss.detach(),
            "auxiliary_loss": auxiliary_loss.detach(),
            "q_mean": part.target.mean(),
            "clamped": outside.float().mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": entropy,
            "temperature": alpha.detach(),
            "kl": divergence,
            "kl_weight": beta.detach(),
            "near": near.float().mean(),
        }

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The action before squashing is stored: the likelihood is computed from that one."""
        return {"unsquashed": self.policy.noise_shape}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions; there is no warm-up."""
        mean, log_std = self.policy.distribution(obs)
        unsquashed = mean + log_std.exp() * self.policy.sample_noise(count(obs))
        action = self.policy.normalizer.raw_action(torch.tanh(unsquashed))
        return action, {"unsquashed": unsquashed}


class EmbeddingCritic(nn.Module):
    """Q as a distribution over bins, which reads an embedding; another head predicts what is next.

    Layers are normalised by the root of their mean square and activated by SiLU, but for the
    embedding itself, whose activation belongs to the heads.

    Args:
        inputs: length of an observation and a flattened action together.
        width: E, of the embedding and of the hidden layers.
        support: middles of the bins, evenly spaced, ``[M]``.
    """

    support: Tensor

    def __init__(self, inputs: int, width: int, support: Tensor) -> None:
        super().__init__()
        self.register_buffer("support", support)

        def head(outputs: int) -> nn.Sequential:
            body = mlp(width, [width], outputs, rms_norm=True, activation="silu")
            return nn.Sequential(nn.SiLU(), *body)

        self.encoder = mlp(inputs, [width], width, rms_norm=True, activation="silu")
        self.value_head = head(len(support))
        self.prediction_head = head(width + 1)
        self.start = nn.Parameter(hl_gauss(support.new_zeros(()), support, _DEVIATION))

    def embed(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the embedding ``[B, E]`` of normalised ``obs [B, O]`` and ``action [B, H, A]``."""
        embedding: Tensor = self.encoder(torch.cat([obs, action.flatten(1)], 1))
        return embedding

    def logits(self, embedding: Tensor) -> Tensor:
        """Return logits of the bins ``[B, M]``."""
        logits: Tensor = self.value_head(embedding) + _START * self.start
        return logits

    def value(self, embedding: Tensor) -> Tensor:
        """Return Q ``[B]``."""
        return expectation(self.logits(embedding), self.support)

    def prediction(self, embedding: Tensor) -> Tensor:
        """Return the next embedding and then the reward, as predicted, ``[B, E + 1]``."""
        prediction: Tensor = self.prediction_head(embedding)
        return prediction


def estimate_divergence(
    mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor, noise: Tensor
) -> Tensor:
    """Return estimates ``[B]`` of KL(N(mean, std) || N(other_mean, other_std)).

    Squashing both does not change it.

    Args:
        mean: ``[B, H, A]``.
        log_std: ``[B, H, A]``.
        other_mean: ``[B, H, A]``.
        other_log_std: ``[B, H, A]``.
        noise: standard normal, ``[K, B, H, A]``: K samples of the first Gaussian in each row.
    """
    scaled = (mean + log_std.exp() * noise - other_mean) * (-other_log_std).exp()
    log_ratio = 0.5 * (scaled.square() - noise.square()) + other_log_std - log_std
    return log_ratio.sum((-2, -1)).mean(0)
