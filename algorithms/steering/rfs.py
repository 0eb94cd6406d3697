"""RFS: one actor gives the noise of a frozen policy and a correction of its actions.

Su et al., "RFS: Reinforcement Learning with Residual Flow Steering for Dexterous Manipulation"
(arXiv 2602.01789). A frozen flow maps (s, w) to a chunk. An actor gives both its start w, which
changes where the flow goes, and a correction u of what comes out, which reaches what no start does:

- action:  a = base(s, w) + beta u,  (w, u) ~ pi(.|s)
- losses:  those of PPO (``trimtab.algorithms.on_policy.ppo``) with (w, u) in place of the action

An adaptation (``faithful`` is False): the paper's abstract and its project page were read; its code
was not found. So all bounds and numbers are this suite's. The paper then goes on from human
corrections of a real robot; that part is left out. Choices:

- w is clipped to [-b, b], b = 1.5 as in DSRL; u is clipped to [-1, 1] and counts in the base's
  normalised units; the sum is clipped to the action limits;
- at the start w ~ N(0, I) and u is near 0, so that learning starts from the base itself;
- a decision is a chunk, and (w, u) are of the whole chunk;
- PPO's settings are this suite's usual ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Setup, Stateful
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.policies.kinds.edited_latent import EditedLatentPolicy, modulation_spec
from trimtab.policies.networks.mlp import Activation
from trimtab.settings import Bounds, NonNegative, Size
from trimtab.types import Metrics, Obs, Rollout


class RFS(Algorithm):
    """Proximal policy optimisation over the noise of a frozen base and a correction of its chunks.

    Args:
        setup: needs ``base``.
        magnitude: b, half width of the box of latents.
        scale: beta, the most that a correction changes of a normalised action.
        edit_log_std: logarithm of the width of u at the start.
        hidden: widths of the hidden layers of actor and critic.
        activation: of the hidden layers: tanh, relu, elu, gelu or silu.
        normalize_observations: whether the actor keeps running statistics of observations.
        normalize_rewards: whether rewards are divided by the running scale of returns.
        learning_rate: Adam's.
        rollout_steps: decisions of each environment between updates.
        batch_size: decisions in a minibatch.
        epochs: passes over each rollout.
        gae_decay: lambda of the advantage's estimate.
        clip: how far the ratio of likelihoods counts from 1.
        value_weight: weight of the value's loss.
        entropy_weight: weight of the entropy.
        max_gradient_norm: bound on the norm of all gradients together.
    """

    needs = Needs({"base"})
    faithful = False
    # It learns by PPO's own update, so what changes that one changes this one.
    revision: ClassVar[int] = PPO.revision

    def __init__(
        self,
        setup: Setup,
        *,
        magnitude: Annotated[float, Bounds(least=1e-3)] = 1.5,
        scale: Annotated[float, Bounds(least=1e-6)] = 0.1,
        edit_log_std: Annotated[float, Bounds(least=-20, most=2)] = -1.0,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "tanh",
        normalize_observations: bool = True,
        normalize_rewards: bool = True,
        learning_rate: NonNegative = 3e-4,
        rollout_steps: int = 64,
        batch_size: Size = 64,
        epochs: Size = 10,
        gae_decay: float = 0.95,
        clip: float = 0.2,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        max_gradient_norm: float = 0.5,
    ) -> None:
        assert setup.base is not None
        base = copy.deepcopy(setup.base).to(setup.device)
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        spec = modulation_spec(base, self.act_steps, magnitude)
        self.learner = PPO(
            replace(setup, spec=spec, base=None),
            hidden=hidden,
            activation=activation,
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
            learning_rate=learning_rate,
            rollout_steps=rollout_steps,
            batch_size=batch_size,
            epochs=epochs,
            gae_decay=gae_decay,
            clip=clip,
            value_weight=value_weight,
            entropy_weight=entropy_weight,
            max_gradient_norm=max_gradient_norm,
        )
        self.rollout_steps, self.batch_size = rollout_steps, batch_size
        actor = self.learner.policy
        self.policy: EditedLatentPolicy = EditedLatentPolicy(
            actor, base, scale=scale, act_steps=self.act_steps
        ).to(setup.device)
        # The actor's numbers are in units of their limits, and w is to have a width of 1.
        latents = self.policy.latent_size
        with torch.no_grad():
            actor.log_std[:, :latents] = -math.log(magnitude)
            actor.log_std[:, latents:] = edit_log_std

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What the actor gave before it was clipped, as PPO stores its actions."""
        return self.learner.aux_shapes

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the base's chunks for sampled latents, with sampled corrections."""
        modulation, stored = self.learner.explore(obs, warmup=warmup)
        return self.policy.decoded(obs, modulation)[:, : self.act_steps], stored

    def update(self, data: Rollout) -> Metrics:
        """Improve actor and value on one rollout, as PPO does."""
        return self.learner.update(data)

    def state(self) -> Mapping[str, Stateful]:
        """Return all that PPO holds, and the policy with its frozen base."""
        return {"learner": self.learner, "policy": self.policy}
