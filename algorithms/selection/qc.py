"""Q-chunking: a critic over action chunks, and the best of N chunks of a flow that clones the data.

Li, Zhou and Levine, "Reinforcement Learning with Action Chunking" (arXiv 2507.07969), QC with the
implicit constraint of best-of-N sampling (``actor_type=best-of-n`` in the authors' code):

- critic:  a* = argmax_k mean_i Q_i(s', a_k),  a_1 ... a_M ~ mu(.|s')
           y = R + gamma (1 - d) mean_i Q'_i(s', a*),  L_Q = sum_i mean (Q_i(s, a) - y)^2
- flow:    mean |v(s, x_t, t) - (a - eps)|^2,  x_t = (1 - t) eps + t a
- acting:  argmax_k mean_i Q_i(s, a_k),  a_1 ... a_N ~ mu(.|s), with no noise added

Here a is a whole chunk, R what it collected, s' where it ended. The backup is unbiased though it
spans several steps, because Q is about all of the actions that were executed. The flow mu goes on
cloning all that is stored: the data's chunks and those that were gathered, which were chosen.

Deviations from the authors' code:

- gathered chunks are decisions, one after another (there, and in a dataset here: windows that begin
  at any step); R sums rewards, and the discount is one for a decision (there: one for each step);
- one update for each decision (there: for each step; ``updates_per_decision`` of a chunk's length);
  ``offline_share`` is a fixed share of each batch (there: data and experience are one buffer, in
  which the data's share falls);
- a chunk that its episode cut short stays, its missing actions being those of a fresh sample of mu
  (there: such windows are left out; windows that begin sooner tell of the same end);
- ``target_candidates`` M is 8 and N is 32 (there: 32 for both), since sampling M chunks for each
  row of a batch is most of an update's time without an accelerator;
- flow and critics are those of this suite: the run's policy or base, which may also be a diffusion
  policy; ReLU, layer normalisation before it, widths of 256 (there: four layers of 512, GELU,
  normalisation after it). Loss of each critic: summed over them (there: averaged);
- the target critics move after the critics' step (there: before it, to their weights so far).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimtab.algorithms.base import Needs, Setup, Stateful
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import as_plans, check_clonable
from trimtab.algorithms.selection.best_of_n import BestOfN
from trimtab.policies.base import Policy
from trimtab.settings import Size
from trimtab.types import Batch, Metrics


class QChunking(BestOfN):
    """Best of N chunks of a policy that goes on cloning.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``.
        target_candidates: chunks M among which the critic chooses in the target.
        warmup_steps: environment steps before learning online, of the clone itself if no offline
            updates came before.
        best_of_n: further settings of best of N.
    """

    needs = Needs({"start"})
    faithful = True
    revision = 2  # 1 played any sample in the first steps after offline updates, too
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        target_candidates: Size = 8,
        warmup_steps: int = 5_000,
        **best_of_n: Any,
    ) -> None:
        super().__init__(
            setup, target_candidates=target_candidates, warmup_steps=warmup_steps, **best_of_n
        )
        self.pace = replace(self.pace, skip_warmup_after_offline=True)
        learning_rate = self.critic_optimizer.learning_rate
        self.clone_optimizer = Adam(self.policy.base.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critic, and one of the policy's imitation of what is stored."""
        metrics = super().update(data)
        clone = self.policy.base
        clone_loss = clone.bc_loss(as_plans(data, clone.spec.horizon))
        self.clone_optimizer.step(clone_loss)
        return {**metrics, "clone_loss": clone_loss.detach()}

    def proposer(self, setup: Setup) -> Policy:
        """Return what proposes: a copy of the base, or a new policy, that can be trained."""
        start = setup.start()
        check_clonable(start)
        return start

    def state(self) -> Mapping[str, Stateful]:
        """Return clone and critic, target and optimisers."""
        return {
            **super().state(),
            "clone": self.policy.base,
            "clone_optimizer": self.clone_optimizer,
        }
