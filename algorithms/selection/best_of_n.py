"""The best of N samples of a frozen clone, by a critic that is learned off-policy online.

Ghasemipour, Schuurmans and Gu, "EMaQ: Expected-Max Q-Learning Operator for Simple Yet Effective
Offline and Online RL" (arXiv 2007.11091); in the form of the best-of-N baseline of Li, Zhou and
Levine, "Reinforcement Learning with Action Chunking" (arXiv 2507.07969, BFN). The clone mu is never
trained; all that learns is the critic that ranks its samples:

- critic:  a* = argmax_k w(Q(s', a_k)),  a_1 ... a_M ~ mu(.|s')
           y = r + gamma (1 - d) w(Q'(s', a*)),  L_Q = sum_i mean (Q_i(s, a) - y)^2
- acting:  argmax_k w(Q(s, a_k)) of N samples, to gather data and to be judged

w is the mean of the Q functions, or their least. Chunks are executed whole, so r is what all of the
chunk collected, and the backup over it has no off-policy bias.

An adaptation (``faithful`` is False): neither paper ranks the chunks of a frozen, pretrained policy
online with nothing else trained. Besides:

- ``target_candidates`` M is a setting apart from N (EMaQ and BFN: the same). With 1 the critic is
  that of the clone itself, and acting is one step of improvement over it, as in IDQL;
- an episode's end may cut a chunk: its missing actions are those of a fresh sample of the clone
  (BFN leaves out windows that an episode cuts);
- a chunk's rewards count alike and the discount is one for each decision, as everywhere here;
- the critics are those of this suite: ReLU, layer normalisation before it, widths of 256 (BFN's:
  four layers of 512, GELU, normalisation after it).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup, Stateful
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import continued
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count
from trimtab.policies.base import Policy
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.settings import Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class BestOfN(Algorithm):
    """Rank the samples of a frozen base by a critic, and play the best.

    Args:
        setup: needs ``base``.
        candidates: samples N among which the critic chooses when acting.
        target_candidates: samples M among which it chooses in the target; 1: it takes any sample.
        hidden: widths of the hidden layers of the critics.
        layer_norm: normalise after each hidden layer of the critics.
        critics: number of Q functions.
        pessimistic: whether a sample is worth the least of the Q functions; else their mean.
        learning_rate: Adam's.
        batch_size: decisions in one update.
        tau: Polyak rate of the target critics.
        warmup_steps: environment steps of the base itself before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"base"})
    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        candidates: Size = 32,
        target_candidates: Size = 4,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = True,
        critics: Size = 2,
        pessimistic: bool = False,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        self.target_candidates = target_candidates
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        self.policy: BestOfPolicy = BestOfPolicy(
            self.proposer(setup), candidates=candidates, hidden=hidden, members=critics,
            act_steps=self.act_steps, layer_norm=layer_norm, pessimistic=pessimistic,
        ).to(setup.device)  # fmt: skip
        self.target = copy.deepcopy(self.policy.critic).requires_grad_(False)
        self.critic_optimizer = Adam(self.policy.critic.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critic, and move its target."""
        # Critic: regress every Q to what the target says of the next state's best proposal.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data.next_obs)
        value = self.policy.value(data.obs, continued(data, self.policy.base))
        critic_loss = (value - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)
        polyak(self.target, self.policy.critic, self.tau)
        return {"critic_loss": critic_loss.detach(), "q_mean": value.detach().mean()}

    def next_value(self, obs: Obs) -> Tensor:
        """Return the target's value ``[B]`` of the proposal that the learned critic likes best."""
        policy, rows, many = self.policy, count(obs), self.target_candidates
        noise = policy.base.sample_noise(rows * many)
        repeated, chunks = policy.propose(obs, noise.unflatten(0, (rows, many)))
        if many > 1:
            score = policy.worth(policy.value(repeated, chunks)).reshape(rows, many)
            chunks = policy.taken(chunks, score)
        return policy.worth(policy.value(obs, chunks, self.target))

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Play any proposal during warm-up, and the best of several after it."""
        acting = self.policy.base if warmup else self.policy
        return acting.act(obs)[:, : self.act_steps], {}

    def proposer(self, setup: Setup) -> Policy:
        """Return what proposes: the base, frozen."""
        assert setup.base is not None
        return copy.deepcopy(setup.base).requires_grad_(False).eval()

    def state(self) -> Mapping[str, Stateful]:
        """Return critic, target and optimiser; the base stays as it is."""
        return {
            "critic": self.policy.critic,
            "target": self.target,
            "critic_optimizer": self.critic_optimizer,
        }
