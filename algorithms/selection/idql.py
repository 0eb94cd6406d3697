"""IDQL: implicit Q-learning under a generative policy that only clones.

Hansen-Estruch et al., "IDQL: Implicit Q-Learning as an Actor-Critic Method with Diffusion Policies"
(arXiv 2304.10573), in the online form of DPPO's baselines (Ren et al., "Diffusion Policy Policy
Optimization", arXiv 2409.00588, appendix D):

- value:   L_V = mean |tau - 1(u < 0)| u^2,  u = min_i Q'_i(s, a) - V(s)
- critic:  L_Q = sum_i mean (Q_i(s, a) - r - gamma (1 - d) V(s'))^2
- policy:  its own imitation loss on the same batch, with weight 1
- judged:  argmax_k min_i Q'_i(s, a_k) of N samples a_k of the policy's moving average
- gather:  one of N samples, drawn with weights |tau' - 1(A_k < 0)|, A_k = min_i Q'_i(s, a_k) - V(s)

tau is ``expectile``, tau' is ``exploration_expectile``, and both have the same name in the paper.
No next action is ever sampled, so an update costs no run of the sampler but for chunks that an
episode cut. V, Q and the choice are about the part of the plan that is executed.

Deviations from the authors' code: a batch is the same for critics and policy (there: 256 and 512);
no decay of the learning rate, no dropout and no layer normalisation of the policy, which is the
run's, or its base; V has the critics' widths, and neither is normalised unless ``layer_norm`` is
set; N is 32 (there: 64 to train and 128 to judge what was tuned; DPPO's: 20 and 10). A chunk that
its episode cut short goes on with a fresh sample of the policy. From DPPO's code: online the policy
clones what the run gathers, and the exploration is as above; there a critic's target moves by 0.001
and its learning rate is 1e-3. The warm-up is gathered by samples of the policy, also after offline
updates (there: the exploration begins at once).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.expectiles import expectile_loss
from trimtab.algorithms.common.plans import as_plans, check_clonable, continued
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class IDQL(Algorithm):
    """Clone, learn what is possible by expectiles, and choose among samples.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``.
        expectile: tau of V, between 0 and 1; 0.7, and 0.9 for mazes, in the paper.
        exploration_expectile: tau' of the draw that gathers data; 1 takes no sample below V.
        candidates: samples N among which is chosen.
        hidden: widths of the hidden layers of V and of the critics.
        layer_norm: normalise after each hidden layer of V and of the critics.
        critics: number of Q functions.
        learning_rate: Adam's, for V and the critics.
        policy_learning_rate: Adam's, for the policy.
        batch_size: decisions in one update.
        tau: Polyak rate of the target critics.
        ema_decay: decay of the policy's moving average, which acts (0: the learner itself).
        warmup_steps: environment steps of the policy itself before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        expectile: Share = 0.7,
        exploration_expectile: Annotated[float, Bounds(least=0.5, most=1)] = 0.7,
        candidates: Size = 32,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = False,
        critics: Size = 2,
        learning_rate: NonNegative = 3e-4,
        policy_learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        ema_decay: Share = 0.999,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.expectile, self.exploration_expectile = expectile, exploration_expectile
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau, self.ema_decay = tau, ema_decay
        self.act_steps = setup.spec.horizon  # the policy may plan further than is executed
        self.learner = setup.start()
        check_clonable(self.learner)
        # What is judged holds the average of the policy, and the target critics.
        average = copy.deepcopy(self.learner).requires_grad_(False).eval()
        self.policy: BestOfPolicy = BestOfPolicy(
            average, candidates=candidates, hidden=hidden, members=critics,
            act_steps=self.act_steps, layer_norm=layer_norm,
        ).to(setup.device)  # fmt: skip
        self.critic = copy.deepcopy(self.policy.critic)
        self.policy.critic.requires_grad_(False)
        width = self.learner.spec.obs_dim
        self.value = mlp(width, hidden, 1, layer_norm=layer_norm).to(setup.device)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.value_optimizer = Adam(self.value.parameters(), learning_rate)
        self.policy_optimizer = Adam(self.learner.parameters(), policy_learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of V, of the critics and of the policy; move target and average."""
        policy = self.policy
        action = policy.normalizer.normalize_action(continued(data, self.policy.base))
        obs = policy.normalizer.obs(data.obs)

        # V: an expectile of the target critics over the actions that were taken.
        with torch.no_grad():
            reached = policy.worth(policy.critic(obs, action))
        value = self.value(obs).squeeze(-1)
        value_loss = 0.5 * expectile_loss(value[None], reached, self.expectile)
        self.value_optimizer.step(value_loss)

        # Critics: one step ahead by V; no action of the policy is asked about.
        with torch.no_grad():
            next_value = self.value(policy.normalizer.obs(data.next_obs)).squeeze(-1)
            backup = data.reward + data.discount * next_value
        estimate = self.critic(obs, action)
        critic_loss = (estimate - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        # Policy: imitation of all that is stored, unweighted.
        clone_loss = self.learner.bc_loss(as_plans(data, self.learner.spec.horizon))
        self.policy_optimizer.step(clone_loss)
        polyak(policy.critic, self.critic, self.tau)
        polyak(policy.base, self.learner, 1.0 - self.ema_decay)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "clone_loss": clone_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "v_mean": value.detach().mean(),
        }

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Play the policy's average during warm-up, and the implicit policy after it."""
        plan = self.policy.base.act(obs) if warmup else self.implicit(obs)
        return plan[:, : self.act_steps], {}

    @torch.no_grad()
    def implicit(self, obs: Obs) -> Tensor:
        """Return one of N samples ``[B, H, A]``, those that are better than V likelier."""
        policy, shape = self.policy, (count(obs), self.policy.candidates)
        noise = policy.base.sample_noise(shape[0] * shape[1]).unflatten(0, shape)
        rows, chunks = policy.propose(obs, noise)
        value = policy.worth(policy.value(rows, chunks)).reshape(shape)
        weight = self.weights(value - self.value(policy.normalizer.obs(obs)))
        drawn = torch.multinomial(weight, 1)
        return policy.taken(chunks, torch.zeros_like(weight).scatter(1, drawn, 1.0))

    def weights(self, advantage: Tensor) -> Tensor:
        """Return the weights of samples in the implicit policy, of any sum above 0."""
        kept = self.exploration_expectile
        # With tau' = 1 all samples may lie below V; a little weight leaves then one of them.
        return torch.where(advantage > 0, kept, max(1.0 - kept, 1e-6))
