"""Residual: soft actor-critic over bounded corrections of a frozen policy's action chunks.

Yuan et al., "Policy Decorator: Model-Agnostic Online Refinement for Large Policy Model" (arXiv
2412.13630). A frozen base plays chunks a_b ~ base(s); an actor u ~ pi(.|s) in (-1, 1) edits them:

- action:       a = a_b + beta u, with beta small
- exploration:  of the first H decisions, decision n is corrected with probability n / H; else u = 0
- critic:       y = r + gamma (1 - d) [min_i Q'_i(s', a_b' + beta u') - alpha log pi(u'|s')],
                L_Q = 1/2 sum_i mean (Q_i(s, a) - y)^2, a being what was executed
- actor:        L_pi = mean [alpha log pi(u|s) - min_i Q_i(s, a_b + beta u)]
- temperature:  L_alpha = -mean log(alpha) (log pi(u|s) + H_target)

It is judged at the actor's mode; the base is sampled as ever. Settings of Ankile et al., "ResFiT:
Residual Off-Policy RL for Finetuning Behavior Cloning Policies" (arXiv 2509.19301): an actor that
also sees a_b (``sees_base``), ten critics with layer normalisation of which y takes the least of
two (``critics``, ``target_critics``, ``layer_norm``), an actor on their mean
(``pessimistic_actor=false``), returns of three decisions (``n_step``), one step of the actor for
four of the critics (``actor_every``), and demonstrations in every batch (``offline_share`` of the
run, with ``store_base=false``). With ``act_steps=1`` every step is corrected anew.

Deviations from Policy Decorator's code:

- the sum is clipped to the action limits, and critics see it clipped (there: the simulator clips);
- beta counts in the base's normalised units, where the data fills [-1, 1] (there: the task's);
- the base's chunk at s' is drawn when it is learned from (there: once, while gathering);
- the target counts no entropy unless ``backup_entropy`` is set, rewards are the task's own unless
  ``reward_offset`` lowers them in each step (there: both, by 1 for each decision, which is
  ``reward_offset=1/act_steps``), for the reason that DSRL-SAC's page here gives;
- the actor's log standard deviation is clamped to [-5, 2] and starts at 0, so that corrections are
  drawn from nearly all of the box at first (there: squashed to [-20, 2], about -9 at first);
- alpha starts at 0.01 (there: at 1): from 1 it takes ten thousand updates to fall to a success's
  size, and until then the actor only spreads its corrections;
- smaller and fewer: a warm-up of 4000 steps (8000 decisions), batches of 256 (1024), H of 2000
  decisions (30k to 8M), learning rate 3e-4 (1e-4), one update for each decision (1/4). The paper
  discounts a chunk by 0.97.

Deviations from ResFiT: a chunk longer than one action is corrected as a whole when it begins
(there: its every step anew, while the base's chunk is played without looking); the actor stays a
squashed Gaussian with an entropy (there: deterministic, with noise of 0.05), and its rate is that
of the critics (there: 1e-6 and 1e-4); no delayed copy of it; time limits are bootstrapped (there:
they are ends); the critics do not learn alone first (there: for 10000 updates), and the warm-up is
corrected as ``explore_decisions`` says (there: by uniform noise of 0.2 in every step).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.schedules import Progress
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.errors import TrimtabError
from trimtab.observations import count, tree_map
from trimtab.policies.kinds.edited import EditedPolicy, editor_of
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics, Obs


class Residual(Algorithm):
    """Soft actor-critic over bounded corrections of a frozen base.

    Args:
        setup: needs ``base``.
        scale: beta, the most that a correction changes of a normalised action.
        explore_decisions: H, decisions of all environments together until all are corrected.
        sees_base: whether the actor reads the base's chunk beside the observation.
        store_base: whether the base's chunk is stored with a decision; else it is drawn anew when
            it is learned from, so that demonstrations, which have none, can be mixed in.
        hidden: widths of the hidden layers of actor and critics.
        layer_norm: normalise after each hidden layer of actor and critics.
        critics: number of Q functions.
        target_critics: how many of them, drawn anew each time, y takes the least of; None: all.
        pessimistic_actor: whether the actor ascends the least Q function; else their mean.
        actor_every: critic updates for one of actor and temperature.
        n_step: decisions whose rewards are summed before the bootstrap.
        learning_rate: Adam's, for actor, critics and temperature.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        target_entropy: H_target; None for -1 of each action dimension of the chunk.
        backup_entropy: whether the target y counts the entropy of later corrections.
        reward_offset: what is taken from the reward of every executed environment step, where
            ``n_step`` is 1.
        max_gradient_norm: bound on the norm of all gradients of a network together.
        warmup_steps: environment steps of uniform corrections, as rare as H says, at first.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"base"}, base_state=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        scale: Annotated[float, Bounds(least=1e-6)] = 0.1,
        explore_decisions: Natural = 2_000,
        sees_base: bool = False,
        store_base: bool = True,
        hidden: Sequence[Size] = (256, 256, 256),
        layer_norm: bool = False,
        critics: Size = 2,
        target_critics: Annotated[int, Bounds(least=1, most_of="critics")] | None = None,
        pessimistic_actor: bool = True,
        actor_every: Count = 1,
        n_step: Size = 1,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.01,
        initial_temperature: Positive = 0.01,
        target_entropy: float | None = None,
        backup_entropy: bool = False,
        reward_offset: Annotated[float, Bounds(least=-1e6, most=1e6)] = 0.0,
        max_gradient_norm: Positive = 50.0,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        if n_step > 1 and reward_offset:
            raise TrimtabError("algorithm.reward_offset goes with n_step=1 only; leave one out")
        assert setup.base is not None
        self.batch_spec = BatchSpec(n_step=n_step)
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        self.target_critics, self.actor_every = target_critics, actor_every
        self.pessimistic_actor, self.backup_entropy = pessimistic_actor, backup_entropy
        self.reward_offset, self.store_base = reward_offset, store_base

        base = copy.deepcopy(setup.base).to(setup.device)
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        editor = editor_of(
            base, self.act_steps, sees_chunk=sees_base, hidden=hidden, layer_norm=layer_norm
        )
        self.policy: EditedPolicy = EditedPolicy(base, editor, scale=scale).to(setup.device)
        size = self.act_steps * base.spec.action_dim
        self.target_entropy = -float(size) if target_entropy is None else float(target_entropy)
        self.critic = EnsembleCritic(
            base.spec.obs_dim, size, hidden=hidden, members=critics, layer_norm=layer_norm
        ).to(setup.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.progress = Progress(explore_decisions).to(setup.device)
        most = max_gradient_norm
        self.actor_optimizer = Adam(editor.parameters(), learning_rate, max_gradient_norm=most)
        self.critic_optimizer = Adam(
            self.critic.parameters(), learning_rate, max_gradient_norm=most
        )
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        self.last_metrics = {"actor_loss": 0.0, "entropy": 0.0}

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        plan, next_plan = self.plans(data)
        normalizer = self.policy.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        alpha = self.temperature().detach()

        # Critic: regress every Q to the value of the next corrected chunk under the targets.
        with torch.no_grad():
            action, log_prob = self.corrected(data.next_obs, next_plan)
            value = self.target(next_obs, action, self.target.drawn(self.target_critics)).amin(0)
            if self.backup_entropy:
                value = value - alpha * log_prob
            reward = data.reward - self.reward_offset * data.valid.sum(1)
            backup = reward + data.discount * value
            taken = self.executed(data, plan)
        value = self.critic(obs, taken)
        critic_loss = 0.5 * (value - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            self.last_metrics = self.update_actor(data.obs, obs, plan, alpha)
        self.updates += 1
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **self.last_metrics,
            "temperature": alpha,
            "corrected": self.progress(),
        }

    def update_actor(self, raw_obs: Obs, obs: Tensor, plan: Tensor, alpha: Tensor) -> Metrics:
        """Take one step of actor and temperature."""
        # Actor: entropy-regularised ascent on the value of the corrected chunk.
        action, log_prob = self.corrected(raw_obs, plan)
        value = self.critic(obs, action)
        value = value.amin(0) if self.pessimistic_actor else value.mean(0)
        actor_loss = (alpha * log_prob - value).mean()
        self.actor_optimizer.step(actor_loss)

        # Temperature: raise alpha while the entropy is below its target.
        log_prob = log_prob.detach()
        loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(loss)
        return {"actor_loss": actor_loss.detach(), "entropy": -log_prob.mean()}

    def corrected(self, obs: Obs, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Return corrected chunks in normalised units, and the log-densities of corrections."""
        editor = self.policy.editor
        noise = torch.randn(len(plan), *editor.noise_shape, device=plan.device)
        edit, log_prob = editor.sample_with_log_prob(self.policy.seen(obs, plan), noise)
        action = self.policy.applied(plan, edit)
        return self.policy.normalizer.normalize_action(action), log_prob

    @torch.no_grad()
    def drawn(self, obs: Obs) -> Tensor:
        """Return the executed part of chunks that the base draws, raw ``[B, h, A]``."""
        noise = self.policy.base.sample_noise(count(obs))
        plan: Tensor = self.policy.base(obs, noise)
        return plan[:, : self.act_steps]

    def plans(self, data: Batch) -> tuple[Tensor, Tensor]:
        """Return the base's chunks at a batch's observations and at the next ones.

        Where none were stored, the base is asked for both.
        """
        if "base" in data.aux:
            return data.aux["base"], self.drawn(data.next_obs)
        both = self.drawn(tree_map(lambda *parts: torch.cat(parts), data.obs, data.next_obs))
        first, second = both.chunk(2)
        return first, second

    def executed(self, data: Batch, plan: Tensor) -> Tensor:
        """Return what was executed, normalised; what an end cut off goes on as now corrected."""
        taken = self.policy.normalizer.normalize_action(data.action)
        if data.whole or self.act_steps == 1:
            return taken
        planned, _ = self.corrected(data.obs, plan)
        return torch.where(data.valid[..., None], taken, planned)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Correct some of the base's chunks, the more the later; return the base's chunks too."""
        plan = self.drawn(obs)
        shape = (len(plan), *self.policy.editor.noise_shape)
        if warmup:
            edit = 2 * torch.rand(shape, device=plan.device) - 1
        else:
            noise = torch.randn(shape, device=plan.device)
            edit, _ = self.policy.editor.sample_with_log_prob(self.policy.seen(obs, plan), noise)
        # A chunk that is not corrected is stored as it is played: with u = 0.
        corrected = self.progress.coins(len(plan))
        edit = torch.where(corrected[:, None, None], edit, torch.zeros_like(edit))
        return self.policy.applied(plan, edit), {"base": plan} if self.store_base else {}

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The base's chunk is stored: the actor learns to correct the one that was played."""
        if not self.store_base:
            return {}
        return {"base": (self.act_steps, self.policy.spec.action_dim)}
