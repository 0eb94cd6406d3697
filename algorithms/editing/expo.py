"""EXPO: a base that only imitates, an editor of its actions, and the best of both at every choice.

Dong et al., "EXPO: Stable Reinforcement Learning with Expressive Policies" (arXiv 2507.07986). The
expressive base pi_b never meets a gradient of Q. A small tanh-Gaussian editor pi_e(.|s, a), bounded
by beta, does. The on-the-fly policy pi(s) draws N actions of the base and edits each; of these 2N
it takes the one whose value, the least of a few target critics drawn at random, is highest. It acts
and it is in the target:

- critic:       y = r + gamma (1 - d) min_{i in M} Q'_i(s', a'),  a' = pi(s'), chosen by the critics
                of another draw M';  L_Q = mean_i mean (Q_i(s, a) - y)^2
- editor:       L_e = mean [alpha l - mean_i Q_i(s, a + beta u)],  u ~ pi_e(.|s, a), a stored,
                l = log pi_e(u|s, a) - D log(beta), the log-density of beta u
- temperature:  L_alpha = -mean log(alpha) (l + H_target)
- base:         its own imitation loss on the same batch; acting uses a slow average of it, the
                target the base itself

Several critic steps go before one of editor, temperature and base (``actor_every``). Offline
updates train the base alone, as in the paper's variant with pre-training.

Deviations from the code (of which a public copy was read):

- edited actions are clipped to the limits, and critics see them clipped (there: the simulator
  clips); beta counts in the base's normalised units, where its data fills [-1, 1];
- H_target is -D / 2 + D log(beta), which the code offers as ``adjust_target_entropy`` and leaves
  off. With -D / 2 and a small beta no editor has so much entropy, since D log(2 beta) is its most,
  and alpha grows without end. ``shift_target_entropy=false`` gives it back;
- during warm-up the slow base acts (there: uniform random actions, or no warm-up); as there, a new
  base's slow average still holds its first weights after few offline updates;
- the temperature loss has ``log alpha`` in place of ``alpha``, as everywhere here;
- any kind of base (there: a DDPM of 10 steps), Adam without weight decay or a cosine; chunks that
  were cut short are imitated as far as they went, and critics see them go on as a new edited draw;
- fewer: ``backup_candidates`` of 4 in the target (8), one update for each decision (20), two of
  the critics for one of the others (20), editor and critics of two layers (three). The editor
  starts near no edit and its log standard deviation is held above -5 (there: -20).

The paper learns from half demonstrations, half its own decisions: give ``dataset`` and
``offline_share=0.5``. Without them the base imitates what the run itself has done.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import as_plans, check_clonable
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.observations import count
from trimtab.policies.kinds.best_of import picked
from trimtab.policies.kinds.edited import editor_of, seen
from trimtab.policies.kinds.edited_best_of import EditedBestOfPolicy
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class EXPO(Algorithm):
    """The best of a base's actions and of the same actions edited.

    Args:
        setup: needs ``base``, or ``policy`` and ``dataset``.
        scale: beta, the most that an edit changes of a normalised action.
        candidates: N, actions of the base among which, and among their edits, it chooses to act.
        backup_candidates: the same in the target y.
        hidden: widths of the hidden layers of editor and critics.
        layer_norm: normalise after each hidden layer of the critics.
        critics: number of Q functions.
        target_critics: how many of them, drawn anew each time, choose or value.
        actor_every: critic updates for one of editor, temperature and base.
        learning_rate: Adam's, for editor, critics and temperature.
        base_learning_rate: Adam's, for the base.
        base_rate: Polyak rate of the base that acts.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        target_entropy: H_target; None for -1/2 of each action dimension of the chunk.
        shift_target_entropy: whether the logarithm of beta for each dimension is added to it.
        warmup_steps: environment steps of the base itself before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        scale: Annotated[float, Bounds(least=1e-6)] = 0.1,
        candidates: Size = 8,
        backup_candidates: Size = 4,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = True,
        critics: Size = 10,
        target_critics: Annotated[int, Bounds(least=1, most_of="critics")] = 2,
        actor_every: Count = 2,
        learning_rate: NonNegative = 3e-4,
        base_learning_rate: NonNegative = 3e-4,
        base_rate: Share = 0.001,
        batch_size: Size = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 1.0,
        target_entropy: float | None = None,
        shift_target_entropy: bool = True,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        self.actor_every = actor_every
        self.backup_candidates, self.base_rate = backup_candidates, base_rate

        self.base = setup.start()  # learns; the copy that acts is in the policy
        check_clonable(self.base)
        self.act_steps = setup.spec.horizon
        self.size = self.act_steps * self.base.spec.action_dim
        editor = editor_of(self.base, self.act_steps, sees_chunk=True, hidden=hidden)
        self.policy: EditedBestOfPolicy = EditedBestOfPolicy(
            copy.deepcopy(self.base), editor, scale=scale, candidates=candidates, hidden=hidden,
            critics=critics, target_critics=target_critics, layer_norm=layer_norm,
        ).to(setup.device)  # fmt: skip
        self.policy.critic.requires_grad_(False)  # the target critics choose, so they are part
        self.critic = copy.deepcopy(self.policy.critic).requires_grad_(True)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.shift = self.size * math.log(scale)
        wanted = -self.size / 2 if target_entropy is None else float(target_entropy)
        self.target_entropy = wanted + (self.shift if shift_target_entropy else 0.0)
        self.base_optimizer = Adam(self.base.parameters(), base_learning_rate)
        self.editor_optimizer = Adam(editor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        self.last_metrics = {"editor_loss": 0.0, "entropy": 0.0, "bc_loss": 0.0}

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critics, and at times one of editor, temperature and base."""
        normalizer = self.policy.normalizer
        obs = normalizer.obs(data.obs)
        alpha = self.temperature().detach()

        # Critic: regress every Q to the target critics' value of what would be done next.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data.next_obs)
            taken = self.executed(data)
        value = self.critic(obs, taken)
        critic_loss = (value - backup).square().mean()
        self.critic_optimizer.step(critic_loss)
        polyak(self.policy.critic, self.critic, self.tau)

        if self.actor_due:
            self.last_metrics = {
                **self.update_editor(data.obs, obs, taken, alpha),
                **self.imitate(data),
            }
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **self.last_metrics,
            "temperature": alpha,
        }

    def next_value(self, obs: Obs) -> Tensor:
        """Return what the on-the-fly policy's choice is worth ``[B]``, by critics of two draws."""
        rows, many = count(obs), self.backup_candidates
        base_noise = self.base.sample_noise(rows * many).unflatten(0, (rows, many))
        edit_noise = self.policy.editor.sample_noise(rows * many).unflatten(0, (rows, many))
        plans = self.policy.proposals(self.base, obs, base_noise, edit_noise)
        best = self.policy.values(obs, plans, self.members()).amin(0).argmax(1)
        chosen = picked(plans, best)[:, None]
        return self.policy.values(obs, chosen, self.members()).amin(0)[:, 0]

    def update_editor(self, raw_obs: Obs, obs: Tensor, taken: Tensor, alpha: Tensor) -> Metrics:
        """Take one step of editor and temperature."""
        # Editor: entropy-regularised ascent on the mean of the critics, from the buffer's actions.
        edited, log_prob = self.edited(raw_obs, taken)
        loss = (alpha * log_prob - self.critic(obs, edited).mean(0)).mean()
        self.editor_optimizer.step(loss)

        # Temperature: raise alpha while the entropy is below its target.
        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)
        return {"editor_loss": loss.detach(), "entropy": -log_prob.mean()}

    def imitate(self, data: Batch) -> Metrics:
        """Take one step of the base on its own imitation loss, and move the one that acts."""
        loss = self.base.bc_loss(as_plans(data, self.base.spec.horizon))
        self.base_optimizer.step(loss)
        polyak(self.policy.base, self.base, self.base_rate)
        return {"bc_loss": loss.detach()}

    def members(self) -> Tensor | None:
        """Return the numbers of the critics of one draw."""
        return self.critic.drawn(self.policy.target_critics)

    def edited(self, obs: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised actions ``[B, h, A]`` edited, and log-densities of what was added."""
        editor, normalizer = self.policy.editor, self.policy.normalizer
        noise = editor.sample_noise(len(action))
        edit, log_prob = editor.sample_with_log_prob(seen(editor, obs, action), noise)
        raw = self.policy.applied(action, edit)
        return normalizer.normalize_action(raw), log_prob - self.shift

    def executed(self, data: Batch) -> Tensor:
        """Return what was executed, normalised; what an end cut off goes on as an edited draw."""
        normalizer = self.policy.normalizer
        taken = normalizer.normalize_action(data.action)
        if data.whole or self.act_steps == 1:
            return taken
        plan = self.base(data.obs, self.base.sample_noise(len(data)))[:, : self.act_steps]
        planned, _ = self.edited(data.obs, normalizer.normalize_action(plan))
        return torch.where(data.valid[..., None], taken, planned)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the slow base does during warm-up, as the on-the-fly policy after it."""
        actor = self.policy.base if warmup else self.policy
        return actor.act(obs)[:, : self.act_steps], {}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Train the base alone on the dataset, then all of it on what is gathered."""
        usual = (
            Phase("imitation", budget.offline_steps, "updates", Feed.DATASET, self.imitate),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )
        return tuple(phase for phase in usual if phase.length)
