"""DPMD: a diffusion policy clones its old draws, weighted by their values.

Ma et al., "Efficient Online Reinforcement Learning for Diffusion Policy" (arXiv 2502.00361),
diffusion policy mirror descent; in the settings of flow-rl (arXiv 2603.27450, its
``flowrl/agent/online/dpmd.py``):

- critic:       as :mod:`trimtab.algorithms.off_policy.sdac`
- candidates:   a_k = clip(a'_k + s e, -1, 1),  a'_1 ... a'_K ~ pi_old(.|s),  e ~ N(0, I)
- weights:      w_k = softmax_k mean_i Q_i(s, a_k) / temperature
- policy:       L_pi = mean sum_k w_k min(|eps(s, alpha_t a_k + sigma_t e_k, t) - e_k|^2, c)
- temperature:  L = mean temperature (KL_target - KL),  KL = log K - H(w)
- pi_old:       a copy of pi, every M updates

Its solution is one step of mirror descent, ``pi_old exp(Q / temperature)``: the policy stays within
``target_kl`` of what it was M updates ago. c bounds each entry's error, and an entry beyond it has
no gradient. One temperature serves all states, so that the mean divergence meets its target.

Deviations from flow-rl: those of SDAC, but K is 64 and the weights in the loss sum to 1 there, too;
candidates are clipped to the limits (there: left outside of them, where the critics have never seen
an action); the entropy is that of the weights as they are (there: of weights held above 1e-6).

The authors' code (mahaitongdae/diffusion_policy_online_rl) has one candidate for each next state,
which is the target's action, the best of 32 draws of the policy itself; its weight is
``exp(clip(q, -3, 3) / alpha)`` where q is to be Q in units of its running deviation and is ``Q -
mean / deviation`` by a missing bracket; each step of the critics is applied twice; alpha is SDAC's.
No old policy is kept. ``target_kl`` is 2; flow-rl has 3 for Hopper and 1 for Ant.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.algorithms.off_policy.sdac import SDAC
from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.settings import Count, NonNegative, Positive
from trimtab.types import Batch, Metrics, Obs


class DPMD(SDAC):
    """Diffusion policy mirror descent.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        target_kl: mean divergence of the weights from equal ones, in nats; below log K.
        temperature: at the start, in units of the return.
        temperature_learning_rate: Adam's, for the temperature.
        proposal_noise: standard deviation s of what is added to the old policy's draws, of actions
            in [-1, 1].
        max_error: bound c of a squared error.
        old_every: updates M from one copy of the policy to the next.
        policy_learning_rate: see :class:`SDAC`.
        keywords: those of :class:`SDAC`.

    Raises:
        TrimtabError: if K candidates cannot diverge as far as ``target_kl``.
    """

    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        target_kl: Positive = 2.0,
        temperature: Positive = 1.0,
        temperature_learning_rate: NonNegative = 3e-4,
        proposal_noise: NonNegative = 0.2,
        max_error: Positive = 3.0,
        old_every: Count = 1_000,
        policy_learning_rate: NonNegative = 1e-4,
        **keywords: Any,
    ) -> None:
        super().__init__(
            setup, temperature=temperature, policy_learning_rate=policy_learning_rate, **keywords
        )
        if target_kl >= math.log(self.candidates):
            raise TrimtabError(
                f"algorithm.target_kl={target_kl}: must be below log(candidates), which is "
                f"{math.log(self.candidates):.3g}; lower it, or raise algorithm.candidates"
            )
        self.target_kl, self.proposal_noise = target_kl, proposal_noise
        self.max_error, self.old_every = max_error, old_every
        self.old = copy.deepcopy(self.actor).requires_grad_(False)
        self.learned_temperature = Temperature(temperature).to(setup.device)
        self.temperature_optimizer = Adam(
            self.learned_temperature.parameters(), temperature_learning_rate
        )

    @property
    def branch(self) -> bool:
        """Whether the old policy becomes the present one after the next update."""
        return self.updates % self.old_every == 0

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, policy and temperature; now and then renew the old policy."""
        metrics = super().update(data)
        if self.branch:
            polyak(self.old, self.actor, 1.0)
        self.updates += 1
        return metrics

    def update_policy(self, raw_obs: Obs, obs: Tensor, action: Tensor) -> Metrics:
        """Take one step of policy and temperature; the buffer's ``action`` is not looked at."""
        with torch.no_grad():
            clean = self.proposals(raw_obs)
            value = self.critic.of_actions(obs, clean).mean(0)
            weight, divergence = self.weights(value)
        noisy, level, noise = self.add_noise(clean.flatten(0, 1))
        rows = obs.expand(self.candidates, -1, -1).flatten(0, 1)
        error = (self.predict_noise(rows, noisy, level) - noise).square().clamp(max=self.max_error)
        error = error.unflatten(0, weight.shape)
        loss = (weight[..., None, None] * error).sum(0).mean()
        self.policy_optimizer.step(loss)

        # Temperature: raise it while the weights are further from equal ones than they should be.
        temperature = self.learned_temperature()
        self.temperature_optimizer.step(temperature * (self.target_kl - divergence.mean()))
        return {
            "policy_loss": loss.detach(),
            "kl": divergence.mean(),
            "temperature": temperature.detach(),
        }

    def proposals(self, raw_obs: Obs) -> Tensor:
        """Return K noisy draws of the old policy ``[K, B, H, A]``, scaled to [-1, 1]."""
        many = self.candidates

        def repeated(part: Tensor) -> Tensor:
            return part.expand(many, *part.shape).flatten(0, 1)

        rows = tree_map(repeated, raw_obs)
        drawn = self.old.normalizer.normalize_action(self.old.act(rows))
        noise = self.proposal_noise * torch.randn_like(drawn)
        found: Tensor = (drawn + noise).clamp(-1, 1).unflatten(0, (many, -1))
        return found

    def weights(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights ``[K, B]`` of values ``[K, B]``, and their divergence from equal ones."""
        weight = torch.softmax(value / self.learned_temperature(), 0)
        return weight, math.log(len(value)) - torch.special.entr(weight).sum(0)
