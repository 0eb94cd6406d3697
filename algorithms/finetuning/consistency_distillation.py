"""Consistency distillation: a frozen policy of many sampling steps becomes a student of one.

The student is a consistency policy f (``policies/kinds/consistency.py``). Two targets:

- ``same_noise``:
      L = mean |f(z) - base(s, z)|^2,  z ~ N(0, I)
  as RL-100 distils (Lei et al., arXiv 2510.14830, "action_same_noise" in its code) and Park et al.,
  "Flow Q-Learning" (arXiv 2502.02538). The student keeps the base's map from noise to actions.
- ``consistency``:
      L = mean d( f(x, sigma_i), sg f(x', sigma_{i+1}) ) / (sigma_i - sigma_{i+1}),
      x = a + sigma_i eps
  Song et al., "Consistency Models" (arXiv 2303.01469), algorithm 2: x' is x one step of Heun's
  method further on the base's own path, and d the pseudo-Huber distance of Prasad et al.,
  "Consistency Policy" (arXiv 2405.07503), d(x, y) = sqrt(|x - y|^2 + c^2) - c, c = 0.00054 sqrt(D).
  The weight is that of Song and Dhariwal (arXiv 2310.14189). What is known is the clean end of a
  path; without the weight it took far longer to reach the high levels.

Of the dataset only the observations are used.

Deviations: clean chunks a are the base's own samples and not the data's, so that it is the base
that is distilled, and a base may plan further than is executed; the target network is the student
itself without gradients, as in the code of Consistency Policy (Song et al.: a moving average), and
the levels do not grow in number; there is no jump between two arbitrary levels and no loss against
the data, both of which Consistency Policy has; the policy that is judged is a moving average of the
student.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.one_step import KarrasDenoiser, same_noise_loss, student_of
from trimtab.algorithms.common.schedules import UpdateCount, average_decay
from trimtab.algorithms.common.targets import polyak
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.settings import Bounds, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs

_HUBER = 0.00054


class ConsistencyDistillation(Algorithm):
    """Distil ``base`` into a consistency policy.

    Args:
        setup: needs ``base`` and ``dataset``.
        target: ``same_noise`` or ``consistency``.
        sampling_steps: of the student; several need ``target=consistency``.
        hidden: widths of the student's hidden layers.
        time_dim: width of the features of the student's noise level.
        levels: number N of the student's noise levels.
        learning_rate: Adam's.
        batch_size: observations in one update.
        ema_decay: decay of the moving average of the weights (0: judge the student itself).

    Raises:
        TrimtabError: if the base has nothing to teach, or the settings do not fit together.
    """

    needs = Needs({"base", "dataset"}, next_observations=False, rewards=False)
    unsaved = frozenset({"teacher", "denoiser"})  # they are frozen
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        target: Literal["same_noise", "consistency"] = "same_noise",
        sampling_steps: Size = 1,
        hidden: Sequence[Size] = (256, 256, 256),
        time_dim: Annotated[int, Bounds(least=0, most=1 << 16)] = 16,
        levels: Size = 40,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        ema_decay: Share = 0.995,
    ) -> None:
        assert setup.base is not None
        self.pace = Pace(batch_size)
        self.ema_decay = ema_decay
        self.teacher = copy.deepcopy(setup.base).to(setup.device).requires_grad_(False).eval()
        self.student: ConsistencyPolicy = student_of(
            self.teacher,
            hidden=hidden,
            time_dim=time_dim,
            levels=levels,
            sampling_steps=sampling_steps,
        )
        self.loss = self.consistency if target == "consistency" else self.same_noise
        if target == "consistency":
            self.denoiser = KarrasDenoiser(self.teacher, self.student)
        elif sampling_steps > 1:
            raise TrimtabError(
                f"algorithm.sampling_steps={sampling_steps}: the same noise is one latent; use 1, "
                "or algorithm.target=consistency"
            )
        self.policy = copy.deepcopy(self.student).requires_grad_(False).eval()
        self.optimizer = Adam(self.student.parameters(), learning_rate)
        self.count = UpdateCount(setup.device)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the student, and move the average that is judged."""
        loss = self.loss(data.obs)
        self.optimizer.step(loss)
        polyak(self.policy, self.student, 1.0 - average_decay(self.ema_decay, self.count()))
        self.count.increase()
        self.updates += 1
        return {"distillation_loss": loss.detach()}

    def same_noise(self, obs: Obs) -> Tensor:
        """Return the squared difference from the base on the same noise."""
        return same_noise_loss(self.student, self.teacher, obs)

    def consistency(self, obs: Obs) -> Tensor:
        """Return the distance between the student's chunks at two levels of one path."""
        read = self.student.normalizer.obs(obs)
        with torch.no_grad():
            chunk = self.teacher(obs, self.teacher.sample_noise(len(read)))
            clean = self.student.normalizer.normalize_action(chunk)
            level = torch.randint(self.student.levels - 1, (len(read),), device=read.device)
            sigma = self.student.sigmas[level]
            noisy = clean + sigma[:, None, None] * torch.randn_like(clean)
            reached = self.denoiser.step(noisy, level, self.denoiser.condition(read))
        condition = self.student.network.condition(read)
        learned = self.student.denoise(noisy, sigma, condition)
        with torch.no_grad():
            lower = self.student.sigmas[level + 1]
            target = self.student.denoise(reached, lower, condition)
        squared = (learned - target).square().flatten(1)
        bend = _HUBER * squared.shape[1] ** 0.5
        distance: Tensor = (squared.sum(1) + bend**2).sqrt() - bend
        return (distance / (sigma - lower)).mean()
