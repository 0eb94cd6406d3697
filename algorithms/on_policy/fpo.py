"""Flow policy optimisation: a clipped surrogate whose ratios come from flow-matching losses.

McAllister et al., "Flow Matching Policy Gradients" (arXiv 2507.21053), in their code's settings for
MuJoCo Playground. A flow has no density at hand, but its loss bounds one. Time t goes from 0
(noise) to 1 (action); theirs runs backwards. With x the end of the flow before it is squashed:

- pairs:      N pairs (eps, t) for each action are drawn when it acts, and stored together with
              their losses l_old; all epochs use these. eps ~ N(0, I); t is one of the times
              0, 1/K, ..., (K - 1)/K at which the sampler asks for a velocity
- loss:       l = mean_d (eps - eps_hat)^2,  eps_hat = x_t - t v(x_t, t),  x_t = (1 - t) eps + t x,
              which is t^2 mean_d (v - (x - eps))^2
- policy:     rho = exp(mean_N l_old - mean_N l),
              L = -mean min(rho A, clip(rho, 1 - c, 1 + c) A), A normalised in each minibatch
- value:      L_V = 1/2 mean (V(s) - R)^2,  A by generalised advantage estimation, R = A + V(s)

There is no entropy term, and no noise but that which the flow starts from; it is judged with that.

FPO++ (Yi et al., "Flow Policy Gradients for Robot Control", arXiv 2602.02481) is other values of
these settings (``conf/algorithm/fpo_plus.yaml``). With their defaults they change nothing:

- ``loss=velocity``, ``loss_scale=root``: l = sum_d (v - (x - eps))^2 / sqrt(d)
- ``ratio=pair``: rho_i = exp(l_old_i - l_i) for each pair, and the mean of N surrogates
- ``trust_region=asymmetric``: for A <= 0 the surrogate is rho A - |A| / (2 c) (rho - 1)^2, that of
  SPO (arXiv 2401.16025). Its best ratio is 1 - c, and its gradient leads back there, where that of
  the clip vanishes: so the loss of a bad action does not grow without end
- ``loss_limit``: both losses are cut there; ``log_ratio_limit``: the logarithm of a ratio is cut
  there, and its gradient is as if it were not
- ``action_noise``: noise on x; the sum is executed and stored
- ``time_beta``: t = 0.005 + 0.99 u^(1/beta) with u uniform; above 1, t is nearer to the action
- ``normalize_advantages=rollout``: A is normalised once
- ``average_decay``: what is judged is a running average of the actor's weights over the updates
- ``weight_decay``: Adam's

Published settings. FPO: num_envs=2048 rollout_steps=480 batch_size=30720, 60M steps, gamma 0.995.
FPO++: num_envs=4096 rollout_steps=24 batch_size=24576, average_start=500, 1500 to 2000 updates; N
and epochs 16 for quadrupeds, 32 for humanoids. Longer runs collapse, say the authors; they then use
average_decay=0.99, 16 epochs and normalize_advantages=none.

Deviations, for both: rollouts that suit a processor, with as many minibatches as there, and in
FPO++ narrower networks (there: actor 256 x 3, V 768 x 3). Rewards are divided by the running scale
of returns (FPO: times 10; FPO++: as they are). Actor and V have an Adam each; the bound on the norm
of gradients is the actor's. Statistics of observations change after an update, so that its first
ratio is 1 (FPO: before it; FPO++: while it acts), and normalised observations are clipped at 10
(there: not). From FPO: A and R are computed once, from the
whole rollout (there: in each minibatch, over 30 decisions); a time limit is bootstrapped with V of
the last observation (there: left out); all observations count in their standard deviation (its code
counts those of the last rollout alone, over the number of all, so that it shrinks as the run goes
on); a ratio is at most exp(20) (there it may become infinite); the actor's advantage is A (there: r
+ gamma R(s') - V(s), whose first step lambda does not decay, as in Brax); the variance that
normalises A is a sum over M - 1 (there: over M); V's loss is half a mean (there: a quarter, after
which Adam takes the same step). From FPO++: actions are clipped at
the task's limits (there: at 2), a time limit is bootstrapped with V of the last observation (there:
of the one before), each epoch has an order of its own (there: one for all), weights begin as in
FPO, and advantages are not cut at 100.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.common.rollouts import (
    RolloutActorCritic,
    clipped_surrogate,
    estimate_advantages,
    mean_metrics,
    minibatch_rows,
    surrogate_metrics,
)
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count
from trimtab.policies.kinds.squashed_flow import SquashedFlowPolicy
from trimtab.policies.networks.initial import lecun_uniform_
from trimtab.policies.networks.mlp import Activation
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Size, Steps
from trimtab.types import Metrics, Obs, Rollout

_LARGEST = 20.0
"""Most that the logarithm of a ratio is taken for. The square of a larger one overflows float32,
and an infinite ratio makes the gradient no number, also where the clip leaves it out."""


@dataclass(frozen=True)
class Samples:
    """M decisions of a rollout without their order, and N pairs (eps, t) of each."""

    obs: Tensor  # [M, O] normalised
    latent: Tensor  # [M, H, A] end of the flow
    epsilon: Tensor  # [M, N, H, A]
    time: Tensor  # [M, N]
    loss: Tensor  # [M, N] of the pairs under the actor that acted
    advantage: Tensor  # [M]
    target: Tensor  # [M] of V

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, rows: Tensor) -> Samples:
        """Return some of the rows."""
        return Samples(*(part[rows] for part in vars(self).values()))


class FPO(RolloutActorCritic):
    """Flow policy optimisation, and with other settings FPO++.

    Args:
        setup: shapes, limits, number of environments and discount.
        pairs: N.
        actor_hidden: widths of the actor's hidden layers.
        activation: of the hidden layers of actor and V.
        sampling_steps: K, Euler steps of the flow.
        output_scale: what the output of the actor's network is multiplied by.
        squash: how the end of the flow becomes an action, ``tanh`` or ``clip`` to the limits.
        normalize_observations: whether the policy keeps running statistics of observations.
        normalize_advantages: in each ``minibatch``, over the whole ``rollout``, or ``none``.
        loss: ``noise`` or ``velocity``, what is regressed.
        loss_scale: what the sum over the d entries of an action is divided by: d (``mean``) or the
            ``root`` of d.
        ratio: one for each ``action``, or for each ``pair``.
        trust_region: ``clip`` for all, or ``asymmetric``.
        loss_limit: largest loss; None: there is no limit.
        log_ratio_limit: largest logarithm of a ratio; None: there is no limit.
        action_noise: standard deviation of the noise that is added to the end of the flow.
        time_beta: beta of the times; None: the times of the sampler.
        average_decay: share of the average that each update keeps; 0: the actor itself is judged.
        average_start: updates before the average begins.
        common: settings of ``RolloutActorCritic``; ``clip`` is c.
    """

    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        pairs: Size = 8,
        actor_hidden: Sequence[Size] = (32, 32, 32, 32),
        hidden: Sequence[Size] = (256, 256, 256, 256, 256),
        activation: Activation = "silu",
        sampling_steps: Steps = 10,
        output_scale: Positive = 0.25,
        squash: Literal["tanh", "clip"] = "tanh",
        normalize_observations: bool = True,
        learning_rate: NonNegative = 3e-4,
        critic_learning_rate: NonNegative = 3e-4,
        rollout_steps: Count = 128,
        batch_size: Annotated[int, Bounds(least=2)] = 64,
        epochs: Size = 16,
        clip: Positive = 0.05,
        normalize_advantages: Literal["minibatch", "rollout", "none"] = "minibatch",
        loss: Literal["noise", "velocity"] = "noise",
        loss_scale: Literal["mean", "root"] = "mean",
        ratio: Literal["action", "pair"] = "action",
        trust_region: Literal["clip", "asymmetric"] = "clip",
        loss_limit: Positive | None = None,
        log_ratio_limit: Positive | None = None,
        action_noise: NonNegative = 0.0,
        time_beta: Positive | None = None,
        average_decay: Annotated[float, Bounds(least=0, below=1)] = 0.0,
        average_start: Natural = 0,
        **common: Any,
    ) -> None:
        self.pairs, self.loss, self.loss_scale = pairs, loss, loss_scale
        self.ratio, self.trust_region = ratio, trust_region
        self.loss_limit, self.log_ratio_limit = loss_limit, log_ratio_limit
        self.action_noise, self.time_beta = action_noise, time_beta
        self.average_decay, self.average_start = average_decay, average_start
        self.normalize_advantages = normalize_advantages
        self.actor = SquashedFlowPolicy(
            setup.spec,
            hidden=actor_hidden,
            activation=activation,
            sampling_steps=sampling_steps,
            output_scale=output_scale,
            squash=squash,
            normalize_observations=normalize_observations,
        ).to(setup.device)
        self.policy: SquashedFlowPolicy = self.actor
        if average_decay:
            self.policy = copy.deepcopy(self.actor).requires_grad_(False)
            self.policy.normalizer = self.actor.normalizer
        super().__init__(
            setup,
            [*self.actor.parameters()],
            points=1,
            hidden=hidden,
            activation=activation,
            learning_rate=learning_rate,
            critic_learning_rate=critic_learning_rate,
            rollout_steps=rollout_steps,
            batch_size=batch_size,
            epochs=epochs,
            clip=clip,
            **common,
        )
        lecun_uniform_(self.critic.modules())

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The end of the flow, and the pairs with their losses."""
        shape, pairs = self.actor.noise_shape, (self.pairs,)
        return {"latent": shape, "epsilon": pairs + shape, "time": pairs, "loss": pairs}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions, and N pairs of each with their losses; there is no warm-up."""
        actor, rows = self.actor, count(obs)
        vector = actor.normalizer.obs(obs)
        latent = actor.latent(vector, actor.sample_noise(rows))
        if self.action_noise:
            latent = latent + self.action_noise * torch.randn_like(latent)
        epsilon = torch.randn(rows, self.pairs, *actor.noise_shape, device=latent.device)
        time = self.draw_times((rows, self.pairs), latent.device)
        loss = self.pair_losses(vector, latent, epsilon, time)
        drawn = {"latent": latent, "epsilon": epsilon, "time": time, "loss": loss}
        return actor.squashed(latent), drawn

    def draw_times(self, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Return times of pairs, from 0 (noise) to 1 (action)."""
        if self.time_beta is None:
            steps = self.actor.sampler.steps
            return torch.randint(steps, shape, device=device) / steps
        return 0.005 + 0.99 * torch.rand(shape, device=device) ** (1 / self.time_beta)

    def pair_losses(self, obs: Tensor, latent: Tensor, epsilon: Tensor, time: Tensor) -> Tensor:
        """Return the actor's loss of every pair, ``[M, N]``.

        Args:
            obs: normalised ``[M, O]``.
            latent: ends of the flow ``[M, H, A]``.
            epsilon: ``[M, N, H, A]``.
            time: ``[M, N]``.
        """
        clean = latent[:, None].expand_as(epsilon)
        point = torch.lerp(epsilon, clean, time[..., None, None])
        condition = self.actor.network.condition(obs).repeat_interleave(self.pairs, dim=0)
        velocity = self.actor.velocity(point.flatten(0, 1), time.flatten(), condition)
        error = (velocity.view_as(epsilon) - (clean - epsilon)).square().flatten(2)
        loss = error.mean(-1)
        if self.loss_scale == "root":
            loss = loss * math.sqrt(error.shape[-1])
        return loss * time.square() if self.loss == "noise" else loss

    def update(self, data: Rollout) -> Metrics:
        """Improve actor and V on one rollout, in minibatches of decisions with all their pairs."""
        samples = self.samples(data)
        minibatches = minibatch_rows(
            len(samples), self.pace.batch_size, self.epochs, samples.obs.device
        )
        steps = [self.learn(samples[rows]) for rows in minibatches]
        if isinstance(self.actor.normalizer, RunningNormalizer):
            self.actor.normalizer.see(data.obs)
        self.updates += 1
        if self.average_decay:
            begun = self.updates > self.average_start
            polyak(self.policy, self.actor, 1 - self.average_decay if begun else 1.0)
        return mean_metrics(steps)

    @torch.no_grad()
    def samples(self, data: Rollout) -> Samples:
        """Return the rollout's decisions with their advantages and the targets of V."""
        seen = estimate_advantages(
            data, self.actor.normalizer.obs, self.critic, self.reward_scale, self.gae_decay
        )
        advantage = seen.advantage.flatten()
        if self.normalize_advantages == "rollout":
            advantage = normalized(advantage)
        return Samples(
            obs=seen.obs.flatten(0, 1),
            **{name: data.aux[name].flatten(0, 1) for name in self.aux_shapes},
            advantage=advantage,
            target=(seen.advantage + seen.value).flatten(),
        )

    def learn(self, part: Samples) -> dict[str, Tensor]:
        """Take one step of V and, after the warm-up, of the actor."""
        value_loss = 0.5 * (self.critic(part.obs).squeeze(-1) - part.target).square().mean()
        self.critic_optimizer.step(value_loss)
        nothing = torch.zeros_like(part.target)
        loss, log_ratio = nothing.sum(), nothing
        if self.branch:
            if self.normalize_advantages == "minibatch":
                part = replace(part, advantage=normalized(part.advantage))
            losses = self.pair_losses(part.obs, part.latent, part.epsilon, part.time)
            log_ratio = self.log_ratios(part.loss, losses)
            loss = self.surrogate_loss(log_ratio, part.advantage)
            self.actor_optimizer.step(loss)
        return surrogate_metrics(loss, value_loss, log_ratio, self.clip)

    def log_ratios(self, old: Tensor, new: Tensor) -> Tensor:
        """Return logarithms of ratios ``[M, N]``, or ``[M, 1]`` where an action has one.

        Args:
            old: losses of the pairs under the actor that acted, ``[M, N]``.
            new: losses under the actor that learns, ``[M, N]``.
        """
        if self.loss_limit is not None:
            old, new = old.clamp(max=self.loss_limit), new.clamp(max=self.loss_limit)
        if self.ratio == "action":
            old, new = old.mean(-1, keepdim=True), new.mean(-1, keepdim=True)
        found = old - new
        limit = _LARGEST if self.log_ratio_limit is None else self.log_ratio_limit
        # The value is cut, and the gradient passes.
        return found + (found.clamp(max=limit) - found).detach()

    def surrogate_loss(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """Return the mean of the negated surrogates, a scalar.

        Args:
            log_ratio: what :meth:`log_ratios` returned.
            advantage: ``[M]``.
        """
        advantage = advantage[:, None]
        loss = clipped_surrogate(log_ratio, advantage, self.clip)
        if self.trust_region == "asymmetric":
            ratio = log_ratio.exp()
            penalty = advantage.abs() / (2 * self.clip) * (ratio - 1).square()
            loss = torch.where(advantage > 0, loss, penalty - ratio * advantage)
        return loss.mean()
