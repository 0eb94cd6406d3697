"""MR.Q: TD3 on an embedding that is trained by what comes next.

Fujimoto et al., "Towards General-Purpose Model-Free Reinforcement Learning" (arXiv 2501.16142), by
the published code (facebookresearch/MRQ, ``MRQ/{MRQ,models}.py``), for observations that are
vectors. z = f(s) embeds a state and x = g(z, a) a state with an action. Values and the actor's
actions are functions of x and z; of them alone f and g learn nothing. An update is of one of two
kinds. Every 250 updates of values, all targets become copies, and 250 updates of the embedding are
made first, which no decision pays for (``paced``).

- embedding:  unrolled from z_0 = f(s_0):  (d_i, z_{i+1}, p_i) = W g(z_i, a_i),  i = 0 to 4
              L_f = sum_i mean m_i [|z_{i+1} - f'(s_{i+1})|^2 / Z + 0.1 CE(p_i, two-hot(r_i))
                                    + 0.1 (d_i - ended_i)^2]
              where m_i = 0 after an episode's last decision; the bins of the reward are symexp of
              65 even points; the last term begins when the first end has been seen
- values:     y = [sum_{i<k} gamma^i r_i + gamma^k (1 - d) R' min_j Q'_j(x'(s_k, a'))] / R,  k = 3,
              a' = clip(mu'(s_k) + e, -1, 1),  e = clip(N(0, 0.2), -0.3, 0.3)
              L_Q = mean w huber(Q_j(x) - y),  with R the mean |r|, R' that of the last copies
- actor:      L_mu = mean w [-mean_j Q_j(g(z, mu(z)))] + 1e-5 mean u^2,  mu = tanh(u)
- weights:    w = p / mean p,  p = max(1, max_j |Q_j(x) - y|)^0.4

An adaptation (``faithful`` is False), because of these weights. The paper draws a row with
probability ~ p of the last time that it was drawn (LAP: Fujimoto et al., "An Equivalence between
Loss Functions and Non-Uniform Sampling in Experience Replay", arXiv 2007.06049). Here all rows are
drawn alike, and each weighs as much as it would have been drawn: values and actor have the same
mean gradient, with more variance. The embedding's rows weigh alike.

Smaller deviations from the published code: a decision that ends an episode has its reward in the
sum (there, the reward is left out, and one of the next episode can get in); near a time limit the
stretch is shorter (there, no stretch begins there); R is the mean over the rows that the last
updates of the embedding drew, not over all stored rows.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import cross_entropy, symexp, two_hot_between
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.embedded_deterministic import EmbeddedDeterministicPolicy
from trimtab.policies.networks.embedding import EmbeddedCritic, EmbeddingModel
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Size
from trimtab.types import Batch, BatchSpec, Metrics, Obs


class MRQ(Algorithm):
    """TD3 on an embedding of states and actions that predicts what comes next.

    Args:
        setup: shapes, limits, discount and device; nothing else is needed.
        embedding: length Z of the embeddings of a state, and of a state with an action; width of
            their encoders.
        action_embedding: length of an action's embedding.
        actor_width: of the actor's hidden layers.
        critic_width: of the critics' hidden layers.
        unrolled: decisions over which the embedding is unrolled.
        n_step: decisions k whose rewards are summed before the bootstrap.
        bins: of the predicted reward.
        reward_bound: the bins lie from symexp of ``-reward_bound`` to symexp of it.
        reward_weight: of the reward's error in the embedding's loss.
        end_weight: of the error of ends in it.
        embedding_learning_rate: AdamW's, for the embedding.
        learning_rate: AdamW's, for actor and critics.
        weight_decay: AdamW's, of all weights.
        max_gradient_norm: of the critics.
        squashing_weight: of the mean square of what the actor squashes.
        priority_exponent: 0.4 of the weights w; 0: rows weigh alike.
        batch_size: stretches in one update.
        target_every: updates of values between two copies.
        exploration_noise: standard deviation of what is added to acting, of actions in [-1, 1].
        target_noise: standard deviation of what is added to the target's action.
        target_noise_clip: its bound.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates of values for each executed action chunk.
    """

    capturable = True
    faithful = False

    def __init__(
        self,
        setup: Setup,
        *,
        embedding: Size = 512,
        action_embedding: Size = 256,
        actor_width: Size = 512,
        critic_width: Size = 512,
        unrolled: Count = 5,
        n_step: Count = 3,
        bins: Annotated[int, Bounds(least=2, most=1 << 20)] = 65,
        reward_bound: Annotated[float, Bounds(above=0, most=80)] = 10.0,
        reward_weight: NonNegative = 0.1,
        end_weight: NonNegative = 0.1,
        embedding_learning_rate: NonNegative = 1e-4,
        learning_rate: NonNegative = 3e-4,
        weight_decay: NonNegative = 1e-4,
        max_gradient_norm: Positive = 20.0,
        squashing_weight: NonNegative = 1e-5,
        priority_exponent: NonNegative = 0.4,
        batch_size: Size = 256,
        target_every: Count = 250,
        exploration_noise: NonNegative = 0.2,
        target_noise: NonNegative = 0.2,
        target_noise_clip: NonNegative = 0.3,
        warmup_steps: Natural = 10_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        length = max(unrolled, n_step)
        self.batch_spec = BatchSpec(n_step=length, sequence=length)
        self.unrolled, self.n_step, self.discount = unrolled, n_step, setup.discount
        self.reward_weight, self.end_weight = reward_weight, end_weight
        self.squashing_weight, self.priority_exponent = squashing_weight, priority_exponent
        self.target_every, self.exploration_noise = target_every, exploration_noise
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip
        spec, device = setup.spec, setup.device
        size = spec.horizon * spec.action_dim
        self.policy: EmbeddedDeterministicPolicy = EmbeddedDeterministicPolicy(
            spec, embedding=embedding, width=actor_width
        ).to(device)
        self.model = EmbeddingModel(
            embedding, size, action_embedding=action_embedding, bins=bins
        ).to(device)
        self.critic = EmbeddedCritic(embedding, critic_width).to(device)
        self.policy_target = copy.deepcopy(self.policy).requires_grad_(False)
        self.model_target = copy.deepcopy(self.model).requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.embedding_optimizer = Adam(
            [*self.policy.encoder.parameters(), *self.model.parameters()],
            embedding_learning_rate, weight_decay=weight_decay,
        )  # fmt: skip
        self.policy_optimizer = Adam(
            self.policy.network.parameters(), learning_rate, weight_decay=weight_decay
        )
        self.critic_optimizer = Adam(
            self.critic.parameters(), learning_rate, weight_decay=weight_decay,
            max_gradient_norm=max_gradient_norm,
        )  # fmt: skip
        self.support = symexp(torch.linspace(-reward_bound, reward_bound, bins, device=device))
        self.rewards = RewardSize().to(device)
        self.last_metrics = dict.fromkeys(
            ("embedding_loss", "critic_loss", "q_mean", "actor_loss", "reward_size"), 0.0
        )

    @property
    def paced(self) -> bool:
        """Whether the next update is one of values, which decisions pay for."""
        return self.updates % (2 * self.target_every) >= self.target_every

    @property
    def branch(self) -> Hashable:
        """The kind of the next update; None where it copies as well."""
        return None if self.updates % self.target_every == 0 else self.paced

    def update(self, data: Batch) -> Metrics:
        """Take one step of the embedding, or one of critics and actor."""
        begins = self.updates % self.target_every == 0
        steps = self.stretch(data)
        if self.paced:
            if begins:
                self.rewards.renew()
            found = self.update_values(data, steps)
        else:
            if begins:
                polyak(self.policy_target, self.policy, 1.0)
                polyak(self.model_target, self.model, 1.0)
                polyak(self.critic_target, self.critic, 1.0)
            found = self.update_embedding(steps)
        self.updates += 1
        self.last_metrics = {**self.last_metrics, **found}
        return dict(self.last_metrics)

    def stretch(self, data: Batch) -> Stretch:
        """Return the decisions of a batch's rows one after another, in normalised units."""
        sequence, normalizer = data.sequence, self.policy.normalizer
        assert sequence is not None
        obs, after = normalizer.obs(sequence.obs), normalizer.obs(data.next_obs)
        # The batch's window has as many decisions, so what it says is of the last valid one.
        index = torch.arange(sequence.valid.shape[1], device=obs.device)
        last = index == sequence.valid.sum(1, keepdim=True) - 1
        following = torch.cat([obs[:, 1:], after[:, None]], dim=1)
        return Stretch(
            obs=obs,
            action=normalizer.normalize_action(sequence.action),
            reward=sequence.reward,
            following=torch.where(last[..., None], after[:, None], following),
            ended=(last & (data.discount == 0)[:, None]).to(obs.dtype),
            valid=sequence.valid.to(obs.dtype),
        )

    def update_embedding(self, steps: Stretch) -> dict[str, float | Tensor]:
        """Take one step of the embedding on what comes next."""
        self.rewards.see(steps)
        with torch.no_grad():
            targets = self.policy_target.embed(steps.following)
            rewards = two_hot_between(steps.reward, self.support)
        embedded = self.policy.embed(steps.obs[:, 0])
        loss = embedded.new_zeros(())
        for i in range(self.unrolled):
            ends, embedded, logits = self.model.predict(embedded, steps.action[:, i])
            of_state = (embedded - targets[:, i]).square().mean(1)
            of_reward = cross_entropy(logits, rewards[:, i])
            of_end = (ends - steps.ended[:, i]).square() * self.rewards.ends_seen
            error = of_state + self.reward_weight * of_reward + self.end_weight * of_end
            loss = loss + (error * steps.valid[:, i]).mean()
        self.embedding_optimizer.step(loss)
        return {"embedding_loss": loss.detach()}

    def update_values(self, data: Batch, steps: Stretch) -> dict[str, float | Tensor]:
        """Take one step of the critics and one of the actor."""
        action = self.policy.normalizer.normalize_action(self.continue_chunks(data))
        with torch.no_grad():
            reward, discount, next_obs = self.n_step_return(steps)
            next_embedded = self.policy_target.embed(next_obs)
            next_action = self.smoothed_action(next_embedded)
            next_value = self.critic_target(self.model_target(next_embedded, next_action)).amin(0)
            target = reward + discount * next_value * self.rewards.size_of_target
            target = target / self.rewards.size
            embedded = self.policy.embed(steps.obs[:, 0])
            joint = self.model(embedded, action)

        # Critics: Huber's loss, as the target is in units of a decision's reward.
        value = self.critic(joint)
        weight = self.priority(value.detach() - target)
        error = nn.functional.smooth_l1_loss(value, target.expand_as(value), reduction="none")
        critic_loss = (weight * error).mean()
        self.critic_optimizer.step(critic_loss)

        # Actor: ascend the mean of the critics; what is squashed stays near 0.
        unbounded = self.policy.before_squashing(embedded)
        ascended = self.critic(self.model(embedded, torch.tanh(unbounded))).mean(0)
        held = self.squashing_weight * unbounded.square().mean()
        actor_loss = -(weight * ascended).mean() + held
        self.policy_optimizer.step(actor_loss)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean() * self.rewards.size,
            "actor_loss": actor_loss.detach(),
            "reward_size": self.rewards.size.clone(),
        }

    def n_step_return(self, steps: Stretch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of rewards, the discount of what follows, and the state that does.

        Returns:
            ``[B]``, ``[B]``, and normalised observations ``[B, O]``.
        """
        valid = steps.valid[:, : self.n_step]
        powers = self.discount ** torch.arange(self.n_step + 1, device=valid.device)
        powers = powers.to(valid.dtype)
        used = valid.sum(1).long()
        ended = (steps.ended[:, : self.n_step] * valid).sum(1)
        reward = (steps.reward[:, : self.n_step] * valid * powers[:-1]).sum(1)
        last = (used - 1)[:, None, None].expand(-1, 1, steps.following.shape[-1])
        return reward, powers[used] * (1 - ended), steps.following.gather(1, last)[:, 0]

    def smoothed_action(self, embedded: Tensor) -> Tensor:
        """Return the target actor's actions with noise, scaled to [-1, 1], ``[B, H, A]``."""
        squashed = torch.tanh(self.policy_target.before_squashing(embedded))
        limit = self.target_noise_clip
        noise = (torch.randn_like(squashed) * self.target_noise).clamp(-limit, limit)
        return (squashed + noise).clamp(-1, 1)

    def priority(self, error: Tensor) -> Tensor:
        """Return the weights ``[B]``, whose mean is 1, of rows with the errors ``[E, B]``."""
        priority = error.abs().amax(0).clamp(min=1.0) ** self.priority_exponent
        return priority / priority.mean()

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, the actor's with noise after it."""
        shape = (count(obs), self.policy.spec.horizon, self.policy.spec.action_dim)
        device = first_leaf(obs).device
        if warmup:
            squashed = 2 * torch.rand(shape, device=device) - 1
        else:
            noise = torch.randn(shape, device=device)
            squashed = (self.policy.squashed(obs) + self.exploration_noise * noise).clamp(-1, 1)
        return self.policy.normalizer.raw_action(squashed), {}


@dataclass(frozen=True)
class Stretch:
    """B stretches of L decisions one after another, normalised."""

    obs: Tensor  # [B, L, O]
    action: Tensor  # [B, L, H, A], scaled to [-1, 1]
    reward: Tensor  # [B, L], raw
    following: Tensor  # [B, L, O]: the observation after each decision
    ended: Tensor  # [B, L], 1 where the episode ended with it, not by a time limit
    valid: Tensor  # [B, L], 0 after an episode's last decision


class RewardSize(nn.Module):
    """The mean size of rewards, which values are divided by, and whether an end was seen.

    Attributes:
        size: R, a scalar; 1 before anything was seen.
        size_of_target: R' of the critics that were copied, a scalar.
        ends_seen: 1 once a row has ended an episode, a scalar.
    """

    size: Tensor
    size_of_target: Tensor
    ends_seen: Tensor
    total: Tensor
    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, start in (("size", 1.0), ("size_of_target", 1.0), ("ends_seen", 0.0)):
            self.register_buffer(name, torch.tensor(start))
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("rows", torch.zeros(()))

    def see(self, steps: Stretch) -> None:
        """Count the rewards of drawn rows."""
        self.total += (steps.reward.abs() * steps.valid).sum()
        self.rows += steps.valid.sum()
        self.ends_seen.copy_(torch.maximum(self.ends_seen, steps.ended.amax()))

    def renew(self) -> None:
        """Take the mean of what was counted since the last time, and begin anew."""
        self.size_of_target.copy_(self.size)
        self.size.copy_((self.total / self.rows).clamp(min=1e-8))
        self.total.zero_()
        self.rows.zero_()
