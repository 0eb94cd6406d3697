"""SAC whose critics model the distribution of their errors as a generalised Gaussian.

Kim et al., "Generalized Gaussian Temporal Difference Error for Uncertainty-aware Reinforcement
Learning" (arXiv 2408.02295), with their code (ait-lab/ggtde: ``losses/mle.py``, ``algos/sac``).
Each of SAC's critics is the mean of M members, each of which gives a value and a shape beta:

- target:  y_m = r + gamma (1 - d) [min_i Q'_im(s', a') - alpha log pi(a'|s')]
- error:   delta_im = Q_im(s, a) - y_m
- critic:  L_Q = 1/2 sum_i mean sum_m w_im [|delta_im|^beta_im - log beta_im + lgamma(1 / beta_im)]
           w_im = beta_im / sum_n beta_in
- actor:   ascends min_i mean_m Q_im

The bracket is the negative log-density of the error, up to a constant, for a scale of 1. A large
shape means light tails, that is, little noise in this decision; so members count the more, the
surer they are (risk-averse weights). Rewards should be such that errors are about 1.

With ``shape=2`` and ``members=1`` it is SAC: with a given shape nothing but |delta|^beta is left of
the bracket, and all members count as one. Everything else is SAC's.

An adaptation (``faithful`` is False). Their code has |delta| beta in place of |delta|^beta, which
is no density's; here it is the paper's. Their shape is softplus of the output, without a bound, so
that a sudden error can overflow; here it is between 0.05 and 2, where the distribution is positive
definite. Weights take no gradient. The second term of their loss, which weighs decisions by the
variance between members (0.1 of the whole), is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.generalized_gaussian import negative_log_density, shape_of
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.policies.networks.critic import EnsembleCritic, Members
from trimtab.settings import Bounds, Size
from trimtab.types import Batch, Metrics


class GeneralizedGaussianSAC(SAC):
    """SAC with a generalised Gaussian error.

    Args:
        setup: as in SAC.
        shape: beta of all decisions, from 1 (absolute error) to 2 (squared error); None: it is
            learned in each decision.
        members: M, the members of each critic.
        sac: settings of SAC.
    """

    faithful: ClassVar[bool] = False
    capturable = True
    unused_settings = frozenset({"target_critics"})
    critic: MemberCritic
    target: MemberCritic

    def __init__(
        self,
        setup: Setup,
        *,
        shape: Annotated[float, Bounds(least=1, most=2)] | None = None,
        members: Size = 5,
        **sac: Any,
    ) -> None:
        self.shape, self.members = shape, members
        super().__init__(setup, **sac)

    def make_critic(
        self, obs_dim: int, size: int, hidden: Sequence[int], critics: int, layer_norm: bool
    ) -> EnsembleCritic:
        """Return the Q functions with fresh weights."""
        return MemberCritic(
            obs_dim,
            size,
            hidden=hidden,
            critics=critics,
            members=self.members,
            layer_norm=layer_norm,
            outputs=2 if self.shape is None else 1,
        )

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        action = self.actor.normalizer.normalize_action(self.continue_chunks(data))
        obs = self.actor.normalizer.obs(data.obs)
        alpha = self.temperature().detach()

        # Critic: the likelihood of each member's error from its own target.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data, alpha)
        outputs = self.critic.outputs_of(obs, action)
        critic_loss, shape = self.error_loss(outputs, backup)
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            actor_loss, log_prob = self.update_actor(data.obs, obs, alpha)
            self.last_metrics = {
                "actor_loss": actor_loss.detach(),
                "entropy": -log_prob.mean(),
            }
        self.updates += 1
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": outputs[..., 0].detach().mean(),
            "shape": shape,
            **self.last_metrics,
            "temperature": alpha,
        }

    def next_value(self, data: Batch, alpha: Tensor) -> Tensor:
        """Return soft values ``[M, B]`` of the next observations: the least critic's, by member."""
        action, log_prob = self.sample(data.next_obs)
        next_obs = self.actor.normalizer.obs(data.next_obs)
        value = self.target.outputs_of(next_obs, action)[..., 0].amin(0)
        return value - alpha * log_prob if self.backup_entropy else value

    def error_loss(self, outputs: Tensor, backup: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' loss and the mean shape.

        Args:
            outputs: of the critics, ``[C, M, B, 2]``, or ``[C, M, B, 1]`` where the shape is given.
            backup: targets ``[M, B]``.
        """
        error = outputs[..., 0] - backup
        if self.shape is not None:
            loss = error.abs().pow(self.shape).mean(1)
            return 0.5 * loss.mean(-1).sum(), torch.full_like(loss[0, 0], self.shape)
        shape = shape_of(outputs[..., 1])
        weight = shape.detach() / shape.detach().sum(1, keepdim=True)
        loss = (weight * negative_log_density(error, shape)).sum(1)
        return 0.5 * loss.mean(-1).sum(), shape.detach().mean()


class MemberCritic(EnsembleCritic):
    """C critics, each the mean of M members.

    Args:
        obs_dim: length of the observation.
        action_size: length of the flattened action chunk.
        hidden: widths of the hidden layers.
        critics: number C.
        members: number M.
        layer_norm: normalise after each hidden layer.
        outputs: numbers of each member, of which the first is its value.
    """

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        hidden: Sequence[int],
        critics: int,
        members: int,
        layer_norm: bool,
        outputs: int,
    ) -> None:
        total = critics * members
        super().__init__(
            obs_dim,
            action_size,
            hidden=hidden,
            members=total,
            layer_norm=layer_norm,
            outputs=outputs,
        )
        self.shape = (critics, members, -1, outputs)

    def outputs_of(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return outputs ``[C, M, B, outputs]`` of each member for actions ``[B, H, A]``."""
        return super().forward(obs, action).view(self.shape)

    def forward(self, obs: Tensor, action: Tensor, members: Members = None) -> Tensor:
        """Return values ``[C, B]`` of actions ``[B, H, A]``, or those of some critics."""
        value = self.outputs_of(obs, action)[..., 0].mean(1)
        return value if members is None else value[members]
