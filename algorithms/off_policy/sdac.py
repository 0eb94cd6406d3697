"""SDAC: a diffusion policy is fitted to ``exp(Q / temperature)`` without a sample of it.

Ma et al., "Efficient Online Reinforcement Learning for Diffusion Policy" (arXiv 2502.00361), soft
diffusion actor-critic with reverse sampling; in the settings of flow-rl (arXiv 2603.27450, its
``flowrl/agent/online/sdac.py``):

- critic:      y = r + gamma (1 - d) min_i Q'_i(s', a'),  a' ~ pi(.|s')
               L_Q = sum_i mean (Q_i(s, a) - y)^2
- noise:       a_t = alpha_t a + sigma_t e,  a from the buffer, t uniform, e ~ N(0, I)
- candidates:  a_k = (a_t + sigma_t e_k) / alpha_t,  e_k ~ N(0, I), so that a_k is in the box
- weights:     w_k = softmax_k min_i Q_i(s, a_k) / temperature
- policy:      L_pi = mean sum_k w_k |eps(s, a_t, t) + e_k|^2
- target:      Q' <- (1 - tau) Q' + tau Q
- acting:      argmax_k min_i Q_i(s, a_k) of N draws

a_k is what a_t may have been: ``a_t = alpha_t a_k + sigma_t (-e_k)``, so ``-e_k`` is the noise that
the policy would have to predict, hence the plus. For each a_t the best prediction is the mean noise
under the posterior of ``a_0`` with the prior ``exp(Q / temperature)``. No gradient passes through
a critic or a sampler.

How many draws an action is the best of is a setting, apart for what is evaluated
(``action_candidates``), what gathers (``behaviour_candidates``) and the target
(``target_candidates``). flow-rl's are 10, 1 and 1; the authors' are 32 each. The evaluated
policy's label has its number.

Deviations from flow-rl: ``candidates`` K is 64, as the authors' (there: 500); t is one of the
``train_steps`` levels of this suite's cosine schedule (there: continuous), and steps of DDPM have
the variance of the posterior (there: beta); the denoiser is this suite's, with ReLU and sinusoidal
features of time (there: Mish, learned features, and a network of its own for the observation); the
policy learns after the critics' step (there: from the critics before it); losses are summed over
critics and candidates (there: averaged); actions seen by critics are scaled to [-1, 1].

The authors' code (mahaitongdae/diffusion_policy_online_rl) has otherwise: a in a_t is an action of
the policy; candidates are clipped to the box, not drawn in it; a linear schedule, and chains that
begin at half of the noise; rewards times 0.2; networks of three layers with Mish; one update for a
step of five environments, every second of which moves the policy and the targets; a rate of the
policy that falls to 3e-5; noise of 0.1 alpha on actions that gather and on those of the target.
Its weights are ``softmax(5 min Q / alpha)``, which with its scale of rewards is a temperature of
alpha. Its alpha is learned against an entropy that is a function of alpha alone, so it is a
schedule, from 5 to 0.98, that no data enter; here ``temperature`` is constant, as in flow-rl.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import continued
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count, first_leaf
from trimtab.policies.base import Policy
from trimtab.policies.kinds.best_draw import BestDrawPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.settings import Bounds, Natural, NonNegative, Positive, Share, Size, Steps
from trimtab.types import Batch, Metrics, Obs

__all__ = ["SDAC", "truncated_normal"]


class SDAC(Algorithm):
    """Soft diffusion actor-critic.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        temperature: of the policy ``exp(Q / temperature)``, in units of the return.
        candidates: clean actions K for each noisy one.
        action_candidates: draws of which the evaluated policy plays the best; 1: it is the
            diffusion policy alone.
        behaviour_candidates: draws of which the best is executed to gather data.
        target_candidates: draws of which the target takes the best.
        exploration_noise: standard deviation of what is added to gather data, of actions in
            [-1, 1].
        hidden: widths of the hidden layers of the critics.
        policy_hidden: those of the denoiser.
        time_dim: width of the denoiser's features of time.
        train_steps: noise levels of the policy, cosine schedule.
        sampler: ``ddpm`` or ``ddim``.
        sampling_steps: denoising steps of a draw.
        learning_rate: Adam's, for the critics.
        policy_learning_rate: Adam's, for the policy.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    capturable = True
    unsaved = frozenset({"best_of", "policy"})  # made of actor and critic, which are saved

    def __init__(
        self,
        setup: Setup,
        *,
        temperature: Positive = 0.05,
        candidates: Size = 64,
        action_candidates: Size = 10,
        behaviour_candidates: Size = 1,
        target_candidates: Size = 1,
        exploration_noise: NonNegative = 0.0,
        hidden: Sequence[Size] = (256, 256),
        policy_hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        train_steps: Steps = 20,
        sampler: Literal["ddim", "ddpm"] = "ddpm",
        sampling_steps: Annotated[int, Bounds(least=1, most_of="train_steps")] = 20,
        learning_rate: NonNegative = 3e-4,
        policy_learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.temperature, self.candidates, self.tau = temperature, candidates, tau
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.behaviour_candidates = behaviour_candidates
        self.target_candidates = target_candidates
        self.exploration_noise = exploration_noise
        self.actor = DiffusionPolicy(
            setup.spec, hidden=policy_hidden, time_dim=time_dim, train_steps=train_steps,
            sampler=sampler, sampling_steps=sampling_steps,
        )  # fmt: skip
        self.best_of: BestDrawPolicy = BestDrawPolicy(
            self.actor, candidates=action_candidates, hidden=hidden
        ).to(setup.device)
        self.policy: Policy = self.best_of if action_candidates > 1 else self.actor
        self.critic = self.best_of.critic
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy_optimizer = Adam(self.actor.parameters(), policy_learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics and policy, and move the target critics."""
        obs = self.actor.normalizer.obs(data.obs)
        action = self.actor.normalizer.normalize_action(continued(data, self.actor))

        # Critics: regress both to the lesser target value of a fresh next action.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data.next_obs)
        value = self.critic(obs, action)
        critic_loss = (value - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        policy_metrics = self.update_policy(data.obs, obs, action)
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **policy_metrics,
        }

    def update_policy(self, raw_obs: Obs, obs: Tensor, action: Tensor) -> Metrics:
        """Take one step of the policy.

        Args:
            raw_obs: observations of B rows.
            obs: the same normalised, ``[B, O]``.
            action: the buffer's chunks scaled to [-1, 1], ``[B, H, A]``.
        """
        noisy, level, _ = self.add_noise(action)
        with torch.no_grad():
            reverse, weight = self.weighted_candidates(obs, noisy, level)
        error = (self.predict_noise(obs, noisy, level) + reverse).square()
        loss = (weight[..., None, None] * error).sum(0).mean()
        self.policy_optimizer.step(loss)
        effective = torch.special.entr(weight).sum(0).exp().mean()
        return {"policy_loss": loss.detach(), "effective_candidates": effective}

    def weighted_candidates(
        self, obs: Tensor, noisy: Tensor, level: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the candidates' reverse noise ``[K, B, H, A]`` and their weights ``[K, B]``.

        Args:
            obs: normalised, ``[B, O]``.
            noisy: chunks a_t, ``[B, H, A]``.
            level: t of each row, ``[B]``.
        """
        signal, sigma = self.scales(level)
        low, high = (-signal - noisy) / sigma, (signal - noisy) / sigma
        uniform = torch.rand(self.candidates, *noisy.shape, device=noisy.device)
        reverse = truncated_normal(low, high, uniform)
        clean = (noisy + sigma * reverse) / signal
        value = self.critic.of_actions(obs, clean).amin(0)
        return reverse, torch.softmax(value / self.temperature, 0)

    def add_noise(self, clean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return noisy chunks ``[B, H, A]``, their levels ``[B]`` and the noise in them."""
        level = torch.randint(self.actor.train_steps, (len(clean),), device=clean.device)
        noise = torch.randn_like(clean)
        signal, sigma = self.scales(level)
        return signal * clean + sigma * noise, level, noise

    def scales(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Return alpha_t and sigma_t of levels ``[B]``, each ``[B, 1, 1]``."""
        share = self.actor.alpha[level][:, None, None]
        return share.sqrt(), (1 - share).sqrt()

    def predict_noise(self, obs: Tensor, noisy: Tensor, level: Tensor) -> Tensor:
        """Return the noise ``[B, H, A]`` that the policy finds in noisy chunks."""
        network = self.actor.network
        found: Tensor = network(noisy, level / self.actor.train_steps, network.condition(obs))
        return found

    def next_value(self, obs: Obs) -> Tensor:
        """Return the target critics' lesser value ``[B]`` of an action of the policy."""
        chunk = self.best_draw(obs, self.target_candidates)
        return self.best_of.worth(self.best_of.value(obs, chunk, self.target))

    def best_draw(self, obs: Obs, many: int) -> Tensor:
        """Return the raw chunk ``[B, H, A]`` that the critics value highest, of ``many`` draws."""
        rows = count(obs)
        noise = self.actor.sample_noise(rows * many).unflatten(0, (rows, many))
        repeated, chunks = self.best_of.propose(obs, noise)
        if many == 1:
            return chunks
        values = self.best_of.value(repeated, chunks)
        return self.best_of.taken(chunks, self.best_of.worth(values).reshape(rows, many))

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, the policy's with noise after it."""
        normalizer, spec = self.actor.normalizer, self.actor.spec
        shape = (count(obs), spec.horizon, spec.action_dim)
        device = first_leaf(obs).device
        if warmup:
            return normalizer.raw_action(2 * torch.rand(shape, device=device) - 1), {}
        drawn = normalizer.normalize_action(self.best_draw(obs, self.behaviour_candidates))
        noise = self.exploration_noise * torch.randn(shape, device=device)
        return normalizer.raw_action((drawn + noise).clamp(-1, 1)), {}


def truncated_normal(low: Tensor, high: Tensor, uniform: Tensor) -> Tensor:
    """Return standard normal variables between bounds, of uniform ones.

    By the inverse of the distribution function, on the side of 0 where floats are dense: the other
    tail is its mirror image.

    Args:
        low: lower bounds.
        high: upper bounds, above ``low``.
        uniform: in [0, 1], of a shape to which the bounds broadcast.
    """
    mirrored = low + high > 0
    near = torch.where(mirrored, -low, high)
    far = torch.where(mirrored, -high, low)
    below = 0.5 * torch.erfc(-far / math.sqrt(2.0))
    above = 0.5 * torch.erfc(-near / math.sqrt(2.0))
    # A share of 0 has an infinite inverse; the smallest float has one of 13 deviations.
    share = torch.lerp(below, above, uniform).clamp_min(torch.finfo(uniform.dtype).tiny)
    found = torch.special.ndtri(share).clamp(far, near)
    return torch.where(mirrored, -found, found)
