"""DSRL-SAC: soft actor-critic whose action is the noise of a frozen policy.

Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (arXiv
2506.15799). A generative policy with a deterministic sampler maps (s, w) to an action; its weights
are frozen and the random w ~ N(0, I) is replaced by a learned actor pi(w|s):

- one transition is (s, w, sum of the chunk's rewards, s'), w in the box [-b, b]
- the losses are those of SAC (``trimtab.algorithms.off_policy.sac``) with w in place of the action

Deviations from the public code, each a known defect or a choice of this suite:

- a chunk ends with its episode, and a time limit bootstraps (there: a wrapper steps on after the
  end, and the limit counts as a termination);
- during warm-up the base acts once on w ~ N(0, I) clipped to the box, and the w that acted is the
  one stored (there: the warm-up action is denoised twice, so stored and executed w differ);
- alpha starts at 0.1 (there: 1.0), small beside a success of 1;
- Stable-Baselines3's networks are replaced by ReLU with layer normalisation before the activation
  (there: tanh);
- smaller and fewer: two layers of 256 (there: three of 128 to 2048), two updates for each decision
  (2.5 to 7.5), a warm-up of 4000 steps (24000 and more); log standard deviations above -5 (-20);
- ``noise_chunk`` chooses between a latent for each action of a chunk, as there, and one that is
  repeated over it, as in the authors' code for pi0;
- rewards are the task's own (there: robomimic's, of 0 and 1, are lowered by 1 in every environment
  step, those of Gym's tasks are not); ``reward_offset=1`` lowers them as there, by 1 for each
  action that was executed;
- the target counts no entropy of later actions unless ``backup_entropy`` is set (there: it does): a
  latent has many dimensions, so entropy pays for staying alive. With rewards of 0 and 1, a task
  that ends at its sparse success is then best left unsolved (seen: success fell to 0 while values
  rose to 11); with rewards lowered by 1 staying alive costs more than its entropy is worth. Set
  both, ``backup_entropy=true`` and ``reward_offset=1``, for the published target;
- the steered policy is judged at the actor's mode (there: its latent is sampled).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.noise_chunk import with_noise_chunk
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.settings import Bounds
from trimtab.types import Batch, Obs, PolicySpec


class DSRLSAC(SAC):
    """Soft actor-critic in the noise space of a frozen base policy.

    Args:
        setup: needs ``base``.
        magnitude: half width b of the box of latents.
        layer_norm: as in SAC.
        initial_temperature: as in SAC.
        target_entropy: as in SAC; 0 in the published settings.
        backup_entropy: as in SAC; off, because entropy pays for staying alive.
        warmup_steps: environment steps of the base itself before learning.
        updates_per_decision: as in SAC.
        reward_offset: what is taken from the reward of every executed environment step, a chunk's
            k steps losing k times as much. Its sign is that of the official code's setting of this
            name: 1, as published for robomimic's tasks, makes a reward of 0 into -1. It makes every
            step before the success cost something, which ``backup_entropy`` needs.
        noise_chunk: ``each`` action of a chunk has a latent of its own, or one is ``repeated``.
        sac: further settings of SAC, without those of RLPD's critics.
    """

    needs = Needs({"base"})
    neutral = MappingProxyType({"noise_chunk": "each"})

    without = frozenset(
        {"actor_layer_norm", "critics", "target_critics", "pessimistic_actor", "actor_every"}
        | {"entropy_per_dimension"}
    )

    def __init__(
        self,
        setup: Setup,
        *,
        magnitude: Annotated[float, Bounds(least=1e-3)] = 1.5,
        layer_norm: bool = True,
        initial_temperature: float = 0.1,
        target_entropy: float | None = 0.0,
        backup_entropy: bool = False,
        warmup_steps: int = 4_000,
        updates_per_decision: float = 2.0,
        reward_offset: Annotated[float, Bounds(least=-1e6, most=1e6)] = 0.0,
        noise_chunk: Literal["each", "repeated"] = "each",
        **sac: Any,
    ) -> None:
        self.reward_offset = reward_offset
        self.magnitude = magnitude
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        assert setup.base is not None
        base = with_noise_chunk(copy.deepcopy(setup.base).to(setup.device), noise_chunk)
        setup = replace(setup, base=base)
        super().__init__(
            setup,
            layer_norm=layer_norm,
            initial_temperature=initial_temperature,
            target_entropy=target_entropy,
            backup_entropy=backup_entropy,
            warmup_steps=warmup_steps,
            updates_per_decision=updates_per_decision,
            **sac,
        )
        # The actor reads observations in the base's normalised units.
        self.actor.read_observations_as(base.normalizer)
        self.steered = LatentPolicy(self.actor, base)
        self.policy = self.steered

    def actor_spec(self, setup: Setup) -> PolicySpec:
        """Return the shapes and limits of the actor: the base's latent, in the box."""
        assert setup.base is not None
        return latent_spec(setup.base, self.magnitude)

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The latent that acted is stored with the transition."""
        return {"latent": (self.actor.spec.horizon, self.actor.spec.action_dim)}

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the base does during warm-up, steered after it; return the latent too."""
        latent = self.base_latent(obs) if warmup else self.actor.act(obs)
        return self.steered.decode(obs, latent)[:, : self.act_steps], {"latent": latent}

    def base_latent(self, obs: Obs) -> Tensor:
        """Return latents of the frozen base ``[N, H, A]``: standard normal, clipped to the box."""
        shape = (count(obs), *self.actor.noise_shape)
        latent = torch.randn(shape, device=first_leaf(obs).device)
        return latent.clamp(-self.magnitude, self.magnitude)

    def target_reward(self, data: Batch) -> Tensor:
        """Return the chunks' rewards ``[B]``, lowered for each action that was executed."""
        return data.reward - self.reward_offset * data.valid.sum(1)

    def action_for_critic(self, data: Batch) -> Tensor:
        """The critics are about latents, not about the actions that they led to."""
        return data.aux["latent"]
