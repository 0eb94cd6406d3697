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
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.policies.kinds.edited_latent import EditedLatentPolicy, modulation_spec
from trimtab.settings import Bounds, Size
from trimtab.types import Obs


class RFS(PPO):
    """Proximal policy optimisation over the noise of a frozen base and a correction of its chunks.

    Args:
        setup: needs ``base``.
        magnitude: b, half width of the box of latents.
        scale: beta, the most that a correction changes of a normalised action.
        edit_log_std: logarithm of the width of u at the start.
        ppo: settings of PPO.
    """

    needs = Needs({"base"})
    unused_settings = frozenset({"initial_log_std", "decay_steps", "value_clip"})
    faithful = False
    unsaved = frozenset({"actor"})  # a part of the policy
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        magnitude: Annotated[float, Bounds(least=1e-3)] = 1.5,
        scale: Annotated[float, Bounds(least=1e-6)] = 0.1,
        edit_log_std: Annotated[float, Bounds(least=-20, most=2)] = -1.0,
        hidden: Sequence[Size] = (256, 256),
        rollout_steps: int = 64,
        **ppo: Any,
    ) -> None:
        assert setup.base is not None
        base = copy.deepcopy(setup.base).to(setup.device)
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        modulations = replace(setup, spec=modulation_spec(base, self.act_steps, magnitude))
        super().__init__(modulations, hidden=hidden, rollout_steps=rollout_steps, **ppo)
        policy = EditedLatentPolicy(self.actor, base, scale=scale, act_steps=self.act_steps)
        # The actor's numbers are in units of their limits, and w is to have a width of 1.
        with torch.no_grad():
            self.actor.log_std[:, : policy.latent_size] = -math.log(magnitude)
            self.actor.log_std[:, policy.latent_size :] = edit_log_std
        self.edited = policy.to(setup.device)
        self.policy = self.edited  # type: ignore[assignment]

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the base's chunks for sampled latents, with sampled corrections."""
        modulation, stored = super().explore(obs, warmup=warmup)
        return self.edited.decoded(obs, modulation)[:, : self.act_steps], stored
