"""Behaviour cloning: fit a policy to the actions of a dataset.

Chi et al., "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion" (arXiv 2303.04137).
The loss is the policy's own: squared error for a Gaussian of fixed width, noise prediction for a
diffusion policy, flow matching for a flow policy (Lipman et al., arXiv 2210.02747). As in DPPO's
pre-training (arXiv 2409.00588) the learning rate decays by a cosine and the policy that is judged
is an exponential moving average of the learner.

Deviations from DPPO's pre-training: the average is updated at each gradient step from the first on
(there: every tenth after epoch 20), with a warm-up of its rate so that it starts from the learner;
Adam without weight decay.
"""

from __future__ import annotations

import copy

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.schedules import UpdateCount, average_decay, cosine
from trimtab.algorithms.common.targets import polyak
from trimtab.settings import NonNegative, Share, Size
from trimtab.types import Batch, Metrics


class BehaviorCloning(Algorithm):
    """Minimise the policy's own imitation loss over a dataset.

    Args:
        setup: needs ``policy`` and ``dataset``.
        learning_rate: at the start.
        final_learning_rate: at the end of the cosine.
        decay_updates: updates after which the cosine has reached its end.
        batch_size: windows in one update.
        ema_decay: decay of the moving average of the weights (0: judge the learner itself).
    """

    needs = Needs({"policy", "dataset"}, next_observations=False, rewards=False)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        learning_rate: NonNegative = 1e-3,
        final_learning_rate: NonNegative = 1e-4,
        decay_updates: int = 10_000,
        batch_size: Size = 256,
        ema_decay: Share = 0.995,
    ) -> None:
        assert setup.policy is not None and setup.statistics is not None
        self.pace = Pace(batch_size)
        self.learning_rate = (learning_rate, final_learning_rate)
        self.decay_updates = decay_updates
        self.ema_decay = ema_decay
        self.learner = setup.policy(setup.spec).to(setup.device)
        self.learner.fit_normalizer(setup.statistics)
        self.policy = copy.deepcopy(self.learner).requires_grad_(False).eval()
        self.optimizer = Adam(self.learner.parameters(), learning_rate)
        self.count = UpdateCount(setup.device)

    def update(self, data: Batch) -> Metrics:
        """Take one gradient step on the policy's imitation loss."""
        loss = self.learner.bc_loss(data)
        rate = cosine(*self.learning_rate, self.count(), self.decay_updates)
        self.optimizer.learning_rate = rate
        self.optimizer.step(loss)
        polyak(self.policy, self.learner, 1.0 - average_decay(self.ema_decay, self.count()))
        self.count.increase()
        self.updates += 1
        return {"bc_loss": loss.detach(), "learning_rate": rate}
