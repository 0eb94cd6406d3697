"""Diffusion-QL: a generative policy that clones and climbs the critics through its whole sampler.

Wang, Hunt and Zhou, "Diffusion Policies as an Expressive Policy Class for Offline Reinforcement
Learning" (arXiv 2208.06193):

- critic:  y = r + gamma (1 - d) min_i Q'_i(s', a'),  a' ~ the policy's moving average
           L_Q = sum_i mean (Q_i(s, a) - y)^2
           with ``backup_samples`` K > 1: min_i max_k Q'_i(s', a'_k), "max Q backup"
- policy:  imitation loss - eta mean Q_i(s, a_0) / sg mean |Q_j(s, a_0)|,  a_0 ~ the policy,
           (i, j) = (1, 2) or (2, 1) by the fall of a coin; the gradient passes all denoising steps
- average: after ``ema_start`` updates every ``ema_every`` one, with ``ema_decay``
- acting:  one of N samples, drawn by softmax of min_i Q'_i(s, a_k) / ``temperature``

Deviations from the authors' code:

- any policy whose noise leads to its action by differentiable steps can be trained: the run's, or
  its base. That of the paper is ``policy=diffusion policy.sampler=ddpm policy.train_steps=5
  policy.sampling_steps=5``; its noise schedule is then a cosine (there: variance preserving);
- samples are those of the moving average, both to act and in the target (there: in the target; the
  learner itself acts): the policy that is judged changes slowly, and starts as the base;
- gradients are bounded by ``max_gradient_norm`` 1 (there: by task from 1 to 15, or not at all);
  critics have ReLU (there: Mish); the critics' rate is the policy's;
- the task's action limits clip a_0, and no gradient passes where they do (there: [-1, 1]);
- it may go on, or begin, online: on what it gathers by acting as above. The warm-up is gathered by
  single samples;
- chunks: the critics are about the executed part of a plan; the imitation leaves out the rest, and
  what an episode cut. DPPO's DQL (arXiv 2409.00588) imitates the action it has just generated; here
  it is the stored one, as in the paper;
- the authors report the best checkpoint, chosen online or by the imitation loss; here the last one
  counts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import as_plans, check_clonable, continued
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class DiffusionQL(Algorithm):
    """Clone and climb the critics, through the sampler.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``.
        eta: weight of the value against imitation; 1 for locomotion, 0.005 to 4.5 elsewhere.
        candidates: samples N of which one acts.
        temperature: of the softmax that draws it.
        backup_samples: samples K in the target, of which each Q function takes its highest.
        hidden: widths of the hidden layers of the critics.
        layer_norm: normalise after each hidden layer of the critics.
        learning_rate: Adam's, for policy and critics.
        max_gradient_norm: bound on the norms of the gradients; None: there is none.
        batch_size: decisions in one update.
        tau: Polyak rate of the target critics.
        ema_decay: decay of the policy's moving average.
        ema_start: updates before it begins to move.
        ema_every: updates from one move to the next.
        warmup_steps: environment steps of single samples before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        eta: NonNegative = 1.0,
        candidates: Size = 50,
        temperature: Annotated[float, Bounds(least=1e-9)] = 1.0,
        backup_samples: Size = 1,
        hidden: Sequence[Size] = (256, 256, 256),
        layer_norm: bool = False,
        learning_rate: NonNegative = 3e-4,
        max_gradient_norm: Positive | None = 1.0,
        batch_size: Size = 256,
        tau: Share = 0.005,
        ema_decay: Share = 0.995,
        ema_start: Natural = 1_000,
        ema_every: Count = 5,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.eta, self.backup_samples = eta, backup_samples
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        self.ema_decay, self.ema_start, self.ema_every = ema_decay, ema_start, ema_every
        self.act_steps = setup.spec.horizon  # the policy may plan further than is executed
        self.learner = setup.start()
        check_clonable(self.learner)
        # What is judged holds the average of the policy, and the target critics.
        average = copy.deepcopy(self.learner).requires_grad_(False).eval()
        self.policy: BestOfPolicy = BestOfPolicy(
            average, candidates=candidates, hidden=hidden, act_steps=self.act_steps,
            layer_norm=layer_norm, temperature=temperature,
        ).to(setup.device)  # fmt: skip
        self.critic = copy.deepcopy(self.policy.critic)
        self.policy.critic.requires_grad_(False)
        self.policy_optimizer = Adam(
            self.learner.parameters(), learning_rate, max_gradient_norm=max_gradient_norm
        )
        self.critic_optimizer = Adam(
            self.critic.parameters(), learning_rate, max_gradient_norm=max_gradient_norm
        )

    @property
    def branch(self) -> bool:
        """Whether the next update moves the average."""
        return self.updates >= self.ema_start and self.updates % self.ema_every == 0

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics and policy; move target and average."""
        # Critics: the value of the next state under the policy's average and the targets.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data.next_obs)
        estimate = self.policy.value(data.obs, continued(data, self.policy.base), self.critic)
        critic_loss = (estimate - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        # Policy: imitation, and one critic's value at the other's scale.
        clone_loss = self.learner.bc_loss(as_plans(data, self.learner.spec.horizon))
        value_loss = self.value_loss(data.obs)
        self.policy_optimizer.step(clone_loss + self.eta * value_loss)

        polyak(self.policy.critic, self.critic, self.tau)
        if self.branch:
            polyak(self.policy.base, self.learner, 1.0 - self.ema_decay)
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "clone_loss": clone_loss.detach(),
            "value_loss": value_loss.detach(),
        }

    def next_value(self, obs: Obs) -> Tensor:
        """Return the targets' value ``[B]``: of one sample, or of each target's best of several."""
        policy, shape = self.policy, (count(obs), self.backup_samples)
        noise = policy.base.sample_noise(shape[0] * shape[1]).unflatten(0, shape)
        rows, chunks = policy.propose(obs, noise)
        return policy.value(rows, chunks).reshape(-1, *shape).amax(2).amin(0)

    def value_loss(self, obs: Obs) -> Tensor:
        """Return minus one critic's mean value of samples, divided by the other's mean size."""
        learner = self.learner
        action = learner(obs, learner.sample_noise(count(obs)))
        value = self.policy.value(obs, action, self.critic)
        # The coin is a tensor, so that no update waits for its device.
        coin = torch.rand((), device=value.device) > 0.5
        climbed, scale = value.mean(1), value.detach().abs().mean(1).clamp_min(1e-6)
        return -torch.where(coin, climbed[0] / scale[1], climbed[1] / scale[0])

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Play single samples during warm-up, and after it one of several, by their values."""
        acting = self.policy.base if warmup else self.policy
        return acting.act(obs)[:, : self.act_steps], {}
