"""DSRL-NA: noise-aliased steering, with a critic over real actions distilled into the noise space.

Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (arXiv
2506.15799), algorithm DSRL-NA. Besides the actor pi(w|s) there are two families of critics:

- Q_A(s, a) over executed chunks:
      y = r + gamma (1 - d) [min_i Q'_A,i(s', a') - alpha log pi(w'|s')],
      w' ~ pi(.|s'), a' = base(s', w');  1/2 sum_i mean (Q_A,i(s, a) - y)^2
- Q_W(s, w) over latents:
      1/2 sum_i mean (sg Q_A,i(s, base(s, w)) - Q_W,i(s, w))^2,  w ~ N(0, I)
- actor:
      mean [alpha log pi(w|s) - min_i Q_W,i(s, w)]

No gradient passes through the base. The buffer holds real actions, so demonstrations can be added.

Deviations from the public code, each a known defect or a choice of this suite:

- ``magnitude`` is respected (there it is read by DSRL-SAC only and NA runs at 1);
- distillation draws a share of its latents uniformly from the actor's box, so that Q_W is fitted on
  all that the actor can reach (there: N(0, I) alone, which leaves the corners of the box unfitted);
- one distillation step on the same batch follows each critic step (there: ten on fresh batches
  after every twenty);
- those of DSRL-SAC: no entropy in the target and no offset of rewards (``backup_entropy`` and
  ``reward_offset`` give both), chunks end with their episode, time limits bootstrap, ReLU with
  layer norm, judged at the actor's mode; and warm-up latents are clipped to the box (there: by
  DSRL-SAC only).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.observations import count, first_leaf
from trimtab.settings import Share
from trimtab.types import Batch, Metrics, Obs


class DSRLNA(DSRLSAC):
    """Noise-aliased steering of a frozen base policy.

    Args:
        setup: needs ``base``.
        uniform_share: share of the distillation latents drawn uniformly from the box.
        dsrl_sac: settings of DSRL-SAC.
    """

    # 2: rows with uniform latents in the distillation are drawn at random; chunks that were cut
    # short go on, gathered or recorded, as the learner would act now.
    revision = 2
    capturable = True

    def __init__(self, setup: Setup, *, uniform_share: Share = 0.5, **dsrl_sac: Any) -> None:
        super().__init__(setup, **dsrl_sac)
        self.uniform_share = uniform_share
        # The inherited critic becomes Q_W; Q_A is a family of its own, over executed chunks.
        base = self.policy.base
        size = self.act_steps * base.spec.action_dim
        self.action_critic = self.critic.for_inputs(base.spec.obs_dim, size).to(setup.device)
        self.target = copy.deepcopy(self.action_critic).requires_grad_(False)
        learning_rate = self.critic_optimizer.learning_rate
        self.action_optimizer = Adam(self.action_critic.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of Q_A, of Q_W by distillation, of actor and temperature."""
        base = self.policy.base
        obs = self.actor.normalizer.obs(data.obs)
        next_obs = self.actor.normalizer.obs(data.next_obs)
        alpha = self.temperature().detach()

        # Q_A: regress to the soft value of the next state, its action decoded from the actor's w'.
        with torch.no_grad():
            next_latent, next_log_prob = self.sample_latent(data.next_obs)
            next_action = self.decode_normalized(data.next_obs, next_latent)
            next_value = self.target(next_obs, next_action).amin(0)
            if self.backup_entropy:
                next_value = next_value - alpha * next_log_prob
            backup = self.target_reward(data) + data.discount * next_value
        action = base.normalizer.normalize_action(self.continue_chunks(data))
        value = self.action_critic(obs, action)
        critic_loss = 0.5 * (value - backup).square().mean(1).sum()
        self.action_optimizer.step(critic_loss)

        # Q_W: member i of the noise critics copies member i of Q_A on decoded latents.
        latent = self.distillation_latent(data.obs)
        with torch.no_grad():
            taught = self.action_critic(obs, self.decode_normalized(data.obs, latent))
        distillation_loss = 0.5 * (self.critic(obs, latent) - taught).square().mean(1).sum()
        self.critic_optimizer.step(distillation_loss)

        actor_loss, log_prob = self.update_actor(data.obs, obs, alpha)
        polyak(self.target, self.action_critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "distillation_loss": distillation_loss.detach(),
            "q_mean": value.detach().mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": -log_prob.mean(),
            "temperature": alpha,
        }

    def decode_normalized(self, raw_obs: Obs, latent: Tensor) -> Tensor:
        """Return the executed actions, normalised, of latents that are scaled to [-1, 1]."""
        action = self.policy.decode(raw_obs, latent * self.magnitude)[:, : self.act_steps]
        return self.policy.base.normalizer.normalize_action(action)

    def distillation_latent(self, obs: Obs) -> Tensor:
        """Return latents scaled by the box ``[B, H, A]``: some uniform in it, the rest N(0, I).

        Which rows get which is drawn anew each time: a mixture puts a dataset's rows before those
        that were gathered online, and both need both kinds.
        """
        shape, device = (count(obs), *self.actor.noise_shape), first_leaf(obs).device
        latent = torch.randn(shape, device=device) / self.magnitude
        uniform = torch.randperm(len(latent), device=device)
        uniform = uniform[: int(self.uniform_share * len(latent))]
        latent[uniform] = 2 * torch.rand_like(latent[: len(uniform)]) - 1
        return latent

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Nothing: the critics are about the actions that were executed."""
        return {}

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as DSRL-SAC does, with nothing to store beside the action."""
        action, _ = super().explore(obs, warmup=warmup)
        return action, {}
