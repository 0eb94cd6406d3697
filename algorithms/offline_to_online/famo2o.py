"""FamO2O: a family of policies from bold to careful, and in each state the best of them.

Wang et al., "Train Once, Get a Family: State-Adaptive Balances for Offline-to-Online Reinforcement
Learning" (arXiv 2310.17966), on IQL (:mod:`trimtab.algorithms.offline.iql`, whose values are
learned as they are). A universal policy pi_u(a|s, b) reads how bold to be, and a balance policy
pi_b(b|s) says it:

- universal:    L_u = -mean min(exp(b A(s, a)), w) log pi_u(a|s, b), A without gradient,
                with b uniform in its range offline, and b ~ pi_b(.|s) online
- balance:      L_b = mean [T log pi_b(b|s) - min_i Q'_i(s, a)],  a ~ pi_u(.|s, b),  b ~ pi_b(.|s),
                both reparameterised; pi_u and Q' get no gradient
- temperature:  L_T = T mean [-log pi_b(b|s) - H_target]

A = min_i Q'_i(s, a) - V(s), w is ``most_weight``. Both policies learn in both phases. The balance's
density is that of its squashed number, before it is spread over the range. While it acts, offline
and online, b is the mode of pi_b, and online the action is sampled.

Deviations: A and V(s') are those from before V's step, and the policies' step comes after the
critics', whose targets have then moved, as in our IQL (there: V, pi_b, T, pi_u, Q, all from V after
its step); online pi_u hears the balances of pi_b after its step (there: before); weights begin as
torch has it (there: orthogonal); observations are normalised, as in
our IQL (there: for ant mazes not).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.weighting import advantage_weight
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.algorithms.offline.iql import IQL
from trimtab.policies.kinds.balanced_gaussian import BalancedGaussianPolicy
from trimtab.settings import Bounds, NonNegative
from trimtab.types import Batch, Metrics, PolicySpec


class FamO2O(IQL):
    """IQL with a family of policies and a balance for each state.

    Args:
        setup: needs ``dataset``.
        least_balance: lower end of the range of b; 8 for ant mazes in the authors' files.
        most_balance: upper end of it; 14 for ant mazes.
        initial_temperature: T at the start.
        target_entropy: H_target of the balance.
        iql: further settings of IQL, without ``beta``; ``learning_rate`` is that of everything.
    """

    unused_settings = IQL.unused_settings | {"beta"}
    policy: BalancedGaussianPolicy
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        least_balance: NonNegative = 1.0,
        most_balance: Annotated[float, Bounds(least_of="least_balance")] = 5.0,
        initial_temperature: Annotated[float, Bounds(least=1e-9)] = 1.0,
        target_entropy: float = -0.5,
        **iql: Any,
    ) -> None:
        self.balances = (least_balance, most_balance)
        super().__init__(setup, **iql)
        self.target_entropy = target_entropy
        self.temperature = Temperature(initial_temperature).to(setup.device)
        rate = self.learning_rate
        self.policy_optimizer = Adam(self.policy.universal(), rate)
        self.balance_optimizer = Adam(self.policy.adaptive(), rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), rate)
        self.adapted = False  # whether b is that of pi_b

    def update_policy(
        self, data: Batch, obs: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Take one step of balance, temperature and universal policy."""
        policy = self.policy
        # Balance: where its choice leads to actions of more worth, and to entropy of its own.
        balance, log_prob = policy.sampled_balance(obs, torch.randn_like(advantage))
        drawn = policy.mean_at(obs, balance)
        drawn = drawn + policy.log_std.exp() * torch.randn_like(drawn)
        worth = self.target(obs, drawn).amin(0)
        balance_loss = (self.temperature().detach() * log_prob - worth).mean()
        self.balance_optimizer.step(balance_loss)
        entropy = -log_prob.detach().mean()
        self.temperature_optimizer.step(self.temperature() * (entropy - self.target_entropy))

        # Universal policy: the data's actions, the better ones more, and by b how much more.
        with torch.no_grad():
            if self.adapted:
                told, _ = policy.sampled_balance(obs, torch.randn_like(advantage))
            else:
                told = policy.spread(2.0 * torch.rand_like(advantage) - 1.0)
            weight = advantage_weight(advantage, told, self.most_weight)
        errors = policy.errors_of(policy.mean_at(obs, told), data.action)
        dimensions = policy.spec.action_dim
        policy_loss = dimensions * policy.masked_mean(errors * weight[:, None, None], data.valid)
        self.policy_optimizer.step(policy_loss)
        return policy_loss, weight, {
            "balance_loss": balance_loss.detach(),
            "balance": balance.detach().mean(),
            "balance_entropy": entropy,
            "temperature": self.temperature().detach(),
        }  # fmt: skip

    def update(self, data: Batch) -> Metrics:
        """Take one step of everything, the universal policy at balances by chance."""
        self.adapted = False
        return super().update(data)

    def update_online(self, data: Batch) -> Metrics:
        """Take one step of everything, the universal policy at the balances of each state."""
        self.adapted = True
        return super().update_online(data)

    def made_policy(self, spec: PolicySpec, hidden: Sequence[int]) -> BalancedGaussianPolicy:
        """Return both policies as one, with fresh weights."""
        least, most = self.balances
        return BalancedGaussianPolicy(
            spec, hidden=hidden, least_balance=least, most_balance=most
        )  # fmt: skip
