"""SERL in its form for states: RLPD with demonstrations, rewarded by a learned success classifier.

Luo et al., "SERL: A Software Suite for Sample-Efficient Robotic Reinforcement Learning" (arXiv
2401.16013). A classifier of success learns from the data, and then stands for the reward:

- classifier:  L_c = -1/2 mean_success log p(s') - 1/2 mean_other log (1 - p(s'))
               over the observations that decisions led to; p(s) = sigmoid(c(s))
- reward:      r = 1 where p(s') > 1/2, else 0; what follows a success does not count
- RLPD (arXiv 2302.02948): half of each batch is data, 10 critics with layer normalisation, y takes
               the least of two of them, without entropy; the actor climbs their mean, with one step
               for four of the critics

The classifier learns in the offline updates and is fixed online, as there. What a success is in the
data is read from its reward: at least ``success_reward``. The task's own reward is not learned
from, and it and the task's own success judge the policy.

An adaptation (``faithful`` is False), because it reads states: no pictures and no encoder, no
dropout in the classifier, no relative frames and no impedance control, no learner beside the actor
(updates alternate with decisions). An episode goes on behind a success unless
``env_options.terminate_on_success`` ends it (there: it ends). Hidden layers have ReLU, not tanh,
y's two critics are different ones (there: drawn with replacement), the actor's log standard
deviation has SAC's limits, and observations have mean 0 and standard deviation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.phases import Budget, Phase, default_phases
from trimtab.errors import TrimtabError
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import NonNegative, Size
from trimtab.types import Batch, Metrics


class SERL(SAC):
    """Soft actor-critic on data and experience, with a learned reward.

    Args:
        setup: needs ``dataset``, of demonstrations with rewards that tell successes.
        success_reward: least reward of a decision in the data that led to a success.
        classifier_hidden: widths of the classifier's hidden layers.
        classifier_learning_rate: Adam's, for the classifier.
        sac: settings of SAC; RLPD's are in ``conf/algorithm/serl.yaml``.

    Raises:
        TrimtabError: of ``phases``, without offline updates.
    """

    needs = Needs({"dataset"}, transitions_only=True)
    faithful = False
    success_reward: float
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        success_reward: float = 1.0,
        classifier_hidden: Sequence[Size] = (256,),
        classifier_learning_rate: NonNegative = 1e-4,
        **sac: Any,
    ) -> None:
        super().__init__(setup, **sac)
        assert setup.statistics is not None
        self.actor.normalizer.standardize(setup.statistics)
        self.success_reward = success_reward
        classifier = mlp(self.actor.spec.obs_dim, classifier_hidden, 1, layer_norm=True)
        self.classifier = classifier.to(setup.device)
        self.classifier_optimizer = Adam(self.classifier.parameters(), classifier_learning_rate)

    def classify(self, data: Batch) -> Metrics:
        """Take one step of the classifier; successes and others weigh the same in all."""
        success = (data.reward >= self.success_reward).float()
        logits = self.logits(data)
        each = functional.binary_cross_entropy_with_logits(logits, success, reduction="none")
        loss = 0.5 * (mean_where(each, success) + mean_where(each, 1.0 - success))
        self.classifier_optimizer.step(loss)
        right = ((logits.detach() > 0).float() == success).float()
        return {
            "classifier_loss": loss.detach(),
            "successes": success.mean(),
            "recognised": mean_where(right, success),
            "rejected": mean_where(right, 1.0 - success),
        }

    def update(self, data: Batch) -> Metrics:
        """Take one step of RLPD, with the classifier's rewards."""
        with torch.no_grad():
            success = (self.logits(data) > 0).float()
        rewarded = replace(data, reward=success, discount=data.discount * (1.0 - success))
        return {**super().update(rewarded), "successes": success.mean()}

    def logits(self, data: Batch) -> Tensor:
        """Return c of the observations that decisions led to, ``[B]``."""
        found: Tensor = self.classifier(self.actor.normalizer.obs(data.next_obs)).squeeze(-1)
        return found

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Learn the classifier on the data, and then the policy by it."""
        if not budget.offline_steps:
            raise TrimtabError(
                "offline_steps=0: the success classifier learns from the dataset first; give "
                "offline_steps"
            )
        return default_phases(budget, self.classify, self.update)


def mean_where(value: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of ``value`` ``[B]`` where ``weight`` is 1; 0 where it is 1 nowhere."""
    return (value * weight).sum() / weight.sum().clamp_min(1.0)
