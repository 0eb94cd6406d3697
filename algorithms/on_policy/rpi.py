"""RPI: imitate the oracle that knows best here, and one's own policy where that one does.

Liu et al., "Blending Imitation and Reinforcement Learning for Robust Policy Improvement" (arXiv
2310.01737), on PPO (:mod:`trimtab.algorithms.on_policy.ppo`). Oracles pi_1 ... pi_K are policies of
the same task, good or bad (``oracles=``); the learner pi_0 joins them. Each has an ensemble of
state values, mean mu_k(s) and deviation sigma_k(s):

- roll-in:     in some episodes the learner acts for t ~ U{0 ... T - 1} decisions only; then k*
               acts to the end, chosen in that state
- RAPS:        k* = argmax { mu_k + sigma_k of the oracles, mu_0 - sigma_0 }
- values:      L_V = mean (V_k(s) - R)^2, R what k collected from s on
- RPG:         f(s) = mu_k(s) of the largest mean, k among all; but mu_0(s) where sigma_k(s) > Gamma
               A = sum_t (gamma lambda)^t delta_t,  delta = r + gamma f(s') - f(s)
- policy:      PPO's clipped surrogate of the learner's own decisions, with this A

So an oracle is imitated where it is worth more than the learner, and where none is, this is PPO.
``selection`` has the rules that RPI is held against, too: ``maps`` (Liu et al., "Active Policy
Improvement from Multiple Black-box Oracles", arXiv 2306.10259: mu + sigma of oracles alone, and f
over oracles alone), ``mamba`` (Cheng et al., arXiv 2007.00795: an oracle by chance, the same f),
``mean`` (the largest mu, RPI's own ablation).

Deviations: the paper's code was not at hand; settings are those of its text and of the code of
MAPS. A rollout has a fixed number of decisions, and of the episodes that begin in it the share
``rollin_share`` are roll-ins (there: 4 of them and at least 2048 steps of the learner in an
iteration), so an episode may go on in the next rollout. R is bootstrapped by V_k where a rollout
ends, and by V_0 at a switch. The learner's decisions of a roll-in are learned from, too. Oracles'
values are first learned in ``pretraining_updates`` rollouts of oracles by chance (there: 8 episodes
of each). The observation normaliser moves after the update (there: before), the last iterate is
kept (there: the best), and oracles act as they are judged. sigma is the members' own deviation, and
Adam's constants are PPO's (MAPS: the sample deviation, 1.12 times as large with five members, and a
second constant of 0.99).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.oracles import (
    Seen,
    Selection,
    Turns,
    ValueEnsembles,
    score,
    standardized,
    stretches,
)
from trimtab.algorithms.common.returns import generalized_advantage, next_values
from trimtab.algorithms.common.rollouts import clipped_surrogate, estimate_kl
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.errors import TrimtabError
from trimtab.observations import count, tree_map
from trimtab.policies.features import features, observations
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Count, Natural, NonNegative, Share, Size
from trimtab.types import Metrics, Obs, Rollout


class RPI(PPO):
    """Policy improvement over a set of oracles and the learner itself.

    Args:
        setup: needs ``oracles``.
        selection: rule for what takes over from the learner: raps, mean, maps or mamba.
        doubt: Gamma, deviation of the best value above which the learner's own is the baseline.
        rollin_share: chance that an episode is a roll-in.
        rollin_decisions: T, decisions among which the switch is drawn; those of an episode.
        pretraining_updates: rollouts of oracles alone, before the learner learns.
        members: networks of each policy's value.
        value_hidden: widths of their hidden layers.
        value_rate: Adam's, for them.
        value_steps: their gradient steps after each rollout.
        value_batch_size: decisions of each policy in one of these steps.
        value_rows: decisions that are remembered for them.
        hidden: widths of the actor's hidden layers.
        gae_decay: lambda of the advantage.
        ppo: further settings of PPO.

    Raises:
        TrimtabError: if there is no oracle.
    """

    needs = Needs({"oracles"})
    unused_settings: ClassVar[frozenset[str]] = frozenset(
        {"value_clip", "value_weight", "normalize_rewards"}
    )
    critic: ValueEnsembles
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        selection: Selection = "raps",
        doubt: NonNegative = 0.5,
        rollin_share: Share = 0.5,
        rollin_decisions: Count = 1_000,
        pretraining_updates: Natural = 8,
        members: Annotated[int, Bounds(least=2)] = 5,
        value_hidden: Sequence[Size] = (256, 256),
        value_rate: float = 1e-3,
        value_steps: Count = 64,
        value_batch_size: Count = 128,
        value_rows: Count = 19_200,
        hidden: Sequence[Size] = (128, 128),
        gae_decay: float = 0.9,
        **ppo: Any,
    ) -> None:
        if not setup.oracles:
            raise TrimtabError("rpi imitates other policies: add oracles=[<a run or a bundle>,…]")
        self.selection, self.doubt = selection, doubt
        self.rollin_share, self.rollin_decisions = rollin_share, rollin_decisions
        self.pretraining_updates, self.members = pretraining_updates, members
        self.value_steps, self.value_batch_size = value_steps, value_batch_size
        self.value_hidden, self.policies = value_hidden, 1 + len(setup.oracles)
        super().__init__(
            setup, hidden=hidden, gae_decay=gae_decay, normalize_rewards=False, **ppo
        )  # fmt: skip
        # Values have an optimiser of their own.
        bound = self.optimizer.max_gradient_norm
        self.optimizer = Adam(
            self.actor.parameters(), self.learning_rate, epsilon=1e-5, max_gradient_norm=bound
        )
        self.oracles = [one.to(setup.device).requires_grad_(False).eval() for one in setup.oracles]
        self.value_optimizer = Adam(self.critic.parameters(), value_rate)
        self.seen = Seen(value_rows, setup.spec.obs_dim).to(setup.device)
        self.turns = Turns(setup.num_envs).to(setup.device)

    def update(self, data: Rollout) -> Metrics:
        """Learn the values of all, and improve the learner once those of the oracles are known."""
        obs, target, actor = self.returns(data)
        self.seen.add(obs, target, actor)
        value_loss = self.learn_values()
        if self.updates < self.pretraining_updates:
            names = ("policy_loss", "kl", "entropy", "learning_rate")
            metrics: Metrics = dict.fromkeys(names, 0.0)
        else:
            metrics = self.improve(self.samples(data))
        if isinstance(self.actor.normalizer, RunningNormalizer):
            self.actor.normalizer.see(data.obs)
        self.updates += 1
        share = (actor > 0).float().mean()
        return {**metrics, "value_loss": value_loss, "oracle_share": share}

    def learn(self, part: Samples) -> dict[str, Tensor]:
        """Take one step of the policy on a minibatch of its own decisions."""
        mean = self.actor.head(part.obs)
        log_prob = self.actor.log_prob(mean, part.action)
        policy_loss = self.policy_loss(part, mean, log_prob)
        self.optimizer.step(policy_loss - self.entropy_weight * self.actor.entropy())
        divergence = estimate_kl(log_prob - part.log_prob)
        return {"policy_loss": policy_loss.detach(), "kl": divergence}

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return the clipped surrogate's loss, of decisions by their weights."""
        return clipped_surrogate(log_prob - part.log_prob, part.target, self.clip).mean()

    def learn_values(self) -> Tensor:
        """Take some steps of all values; return their mean loss."""
        many = self.value_steps * self.value_batch_size
        obs, target, counts = self.seen.draw(self.policies, many)
        obs = self.actor.normalizer.obs(observations(obs, self.actor.spec))
        losses = []
        batches = zip(
            *(part.split(self.value_batch_size, 1) for part in (obs, target, counts)), strict=True
        )
        for read, wanted, counted in batches:
            error = (self.critic.each(read) - wanted[:, None]).square().mean(1) * counted
            loss = error.sum(1).div(counted.sum(1).clamp(min=1)).sum()
            self.value_optimizer.step(loss * self.members)  # each network as if it were alone
            losses.append(loss.detach() / self.policies)
        return torch.stack(losses).mean()

    @torch.no_grad()
    def samples(self, data: Rollout) -> Samples:
        """Return the rollout's decisions; the targets are what the policy's loss weighs them by.

        Those of oracles have the weight 0.
        """
        mean, deviation, after = self.values(data)
        value, following = self.baseline(mean, deviation), self.baseline(*after)
        advantage = generalized_advantage(
            data.reward, value, following, data.discount, stretches(data), self.gae_decay
        )
        own = data.aux["actor"] == 0
        middle = self.actor.head(self.actor.normalizer.obs(data.obs).flatten(0, 1))
        action = data.aux["unclipped"].flatten(0, 1)
        return Samples(
            obs=self.actor.normalizer.obs(data.obs).flatten(0, 1),
            action=action,
            mean=middle,
            log_prob=self.actor.log_prob(middle, action),
            value=value.flatten(),
            advantage=advantage.flatten(),
            target=standardized(advantage, own).flatten(),
        )

    def baseline(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return f ``[...]`` of means and deviations ``[P, ...]``."""
        if self.selection in ("maps", "mamba"):
            best: Tensor = mean[1:].amax(0)
            return best
        most, chosen = mean.max(0)
        doubts = deviation.gather(0, chosen[None])[0] > self.doubt
        return torch.where(doubts, mean[0], most)

    @torch.no_grad()
    def returns(self, data: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Return raw observations ``[M, O]``, R and which policy acted, each ``[M]``."""
        mean, _, after = self.values(data)
        actor = data.aux["actor"].long()[None]
        value, following = mean.gather(0, actor)[0], after[0].gather(0, actor)[0]
        target = value + generalized_advantage(
            data.reward, value, following, data.discount, stretches(data), 1.0
        )
        obs = features(data.obs, self.actor.spec).flatten(0, 1)
        return obs, target.flatten(), actor.flatten()

    def values(self, data: Rollout) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return means and deviations ``[P, T, N]``, and those of the true next observations."""
        read = self.actor.normalizer.obs
        cuts = data.cuts
        here = self.critic.moments(read(data.obs))
        last = self.critic.moments(read(tree_map(lambda part: part[-1], data.next_obs)))
        at_cuts = self.critic.moments(
            read(tree_map(lambda part: part.flatten(0, 1)[cuts], data.next_obs))
        )
        mean, deviation = (
            torch.stack([next_values(one, cuts, *ends) for one, *ends in zip(*each, strict=True)])
            for each in zip(here, last, at_cuts, strict=True)
        )
        return *here, (mean, deviation)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the actions of the policy whose turn it is.

        Asked about other rows than the run's environments, it is the learner's turn.
        """
        own, aux = super().explore(obs, warmup=warmup)
        if count(obs) != self.turns.num_envs:
            return own, {**aux, "actor": own.new_zeros(len(own))}
        drawn, decision = torch.rand(2, len(own), device=own.device)
        if self.updates < self.pretraining_updates:
            switch = torch.zeros_like(self.turns.switch)
            chosen = 1 + (drawn * (self.policies - 1)).long()
        else:
            switch = (decision * self.rollin_decisions).long()
            switch = torch.where(drawn < self.rollin_share, switch, -1)
            chosen = score(
                self.selection, *self.critic.moments(self.actor.normalizer.obs(obs))
            ).argmax(0)
        actor = self.turns.next(switch, chosen)
        actions = [own]
        for oracle in self.oracles:
            chunk = oracle.act(obs, deterministic=oracle.evaluate_deterministic)
            actions.append(chunk[:, : own.shape[1]])
        action = torch.stack(actions)[actor, torch.arange(len(own), device=own.device)]
        return action, {**aux, "actor": actor.to(own.dtype)}

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The learner's action is stored, whether it acts or not, and which policy acted."""
        return {**super().aux_shapes, "actor": ()}

    def on_episode_end(self, rows: Sequence[int]) -> None:
        """Let the learner begin in new episodes."""
        self.turns.on_episode_end(rows)

    def make_critic(self, obs_dim: int, hidden: Sequence[int], activation: str) -> nn.Module:
        """Return the values of the learner and of each oracle."""
        return ValueEnsembles(obs_dim, self.policies, self.members, self.value_hidden)
