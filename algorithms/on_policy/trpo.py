"""Trust region policy optimisation.

Schulman et al., "Trust Region Policy Optimization" (arXiv 1502.05477), appendix C:

- policy:  maximise mean [rho A] subject to mean KL(pi_old || pi) <= delta, along the direction
           x = F^-1 g found by conjugate gradients (F the Fisher matrix, damped), with the step
           sqrt(2 delta / x^T F x) shortened until the bound holds and the surrogate has improved
- value:   several passes of minibatches over the rollout, as in PPO

Everything else (advantages, normalisation, rollouts) is PPO's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.policies.kinds.diagonal_gaussian import gaussian_kl
from trimtab.settings import Bounds, NonNegative, Positive, Size
from trimtab.types import Metrics


class TRPO(PPO):
    """Trust region policy optimisation.

    Args:
        setup: as in PPO.
        delta: bound on the mean divergence of an update.
        damping: added to the Fisher matrix's diagonal.
        conjugate_steps: steps of conjugate gradients.
        line_search_steps: how often a step is shortened before it is given up.
        line_search_decay: by how much.
        ppo: settings of PPO but ``unused_settings``; ``learning_rate``, ``batch_size`` and
            ``epochs`` are those of the value.
    """

    unused_settings = frozenset({"clip", "value_weight", "entropy_weight", "max_gradient_norm"})

    def __init__(
        self,
        setup: Setup,
        *,
        delta: Positive = 0.01,
        damping: NonNegative = 0.1,
        conjugate_steps: Size = 15,
        line_search_steps: Size = 10,
        line_search_decay: Annotated[float, Bounds(least=1e-3, most=1)] = 0.8,
        **ppo: Any,
    ) -> None:
        super().__init__(setup, **ppo)
        self.optimizer = Adam(self.critic.parameters(), self.learning_rate, epsilon=1e-5)
        self.delta, self.damping = delta, damping
        self.conjugate_steps = conjugate_steps
        self.line_search_steps, self.line_search_decay = line_search_steps, line_search_decay

    def improve(self, samples: Samples) -> Metrics:
        """Take one step of the policy in its trust region, and fit the value."""
        metrics = self.improve_policy(samples)
        rate = self.schedule_rate()
        loss = torch.zeros_like(samples.value[0])
        for part in self.minibatches(samples):
            loss = self.value_loss(part)
            self.optimizer.step(loss)
        return {**metrics, "value_loss": loss.detach(), "learning_rate": rate}

    def improve_policy(self, samples: Samples) -> Metrics:
        """Step along the natural gradient as far as the bound allows; return how it went."""
        weights = list(self.policy.parameters())
        old = [weight.detach().clone() for weight in weights]
        old_log_std = self.policy.log_std.detach().clone()
        advantage = normalized(samples.advantage)

        def surrogate_and_kl() -> tuple[Tensor, Tensor]:
            mean = self.policy.head(samples.obs)
            log_prob = self.policy.log_prob(mean, samples.action)
            surrogate = ((log_prob - samples.log_prob).exp() * advantage).mean()
            kl = gaussian_kl(samples.mean, old_log_std, mean, self.policy.log_std)
            return surrogate, kl.mean()

        surrogate, kl = surrogate_and_kl()
        gradient = flat(torch.autograd.grad(surrogate, weights, retain_graph=True))
        slope = flat(torch.autograd.grad(kl, weights, create_graph=True))

        def fisher(vector: Tensor) -> Tensor:
            product = torch.autograd.grad((slope * vector).sum(), weights, retain_graph=True)
            return flat(product) + self.damping * vector

        direction = conjugate_gradients(fisher, gradient, self.conjugate_steps)
        curvature = (direction * fisher(direction)).sum()
        length = (2 * self.delta / (curvature + 1e-8)).sqrt()

        # Line search: the quadratic model is only a model.
        for trial in range(self.line_search_steps):
            change = (self.line_search_decay**trial * length * direction).split(
                [weight.numel() for weight in weights]
            )
            with torch.no_grad():
                for weight, start, move in zip(weights, old, change, strict=True):
                    weight.copy_(start + move.view_as(weight))
                reached, kl = surrogate_and_kl()
            if kl <= self.delta and reached > surrogate:
                break
        else:
            with torch.no_grad():
                for weight, start in zip(weights, old, strict=True):
                    weight.copy_(start)
            reached, kl, trial = surrogate.detach(), torch.zeros_like(kl), self.line_search_steps
        return {
            "policy_loss": -reached.detach(),
            "kl": kl.detach(),
            "line_search_steps": float(trial),
            "entropy": self.policy.entropy().detach(),
        }


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([part.reshape(-1) for part in parts])


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Return x with ``product(x)`` nearly ``b`` (Hestenes and Stiefel, 1952)."""
    x = torch.zeros_like(b)
    residual, direction = b.clone(), b.clone()
    size = residual.dot(residual)
    for _ in range(steps):
        if size < 1e-10:
            break
        image = product(direction)
        length = size / direction.dot(image)
        x = x + length * direction
        residual = residual - length * image
        new_size = residual.dot(residual)
        direction = residual + new_size / size * direction
        size = new_size
    return x.detach()
