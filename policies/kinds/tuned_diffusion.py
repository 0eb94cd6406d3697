"""A diffusion policy whose last denoising steps have a network of their own, which is tuned."""

from __future__ import annotations

import copy
from types import MappingProxyType

from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import ComposedPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.networks.chains import Chain, DiffusionChain, Predict
from trimtab.policies.networks.samplers import with_steps
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.types import Obs


class TunedDiffusionPolicy(ComposedPolicy):
    """The base's early denoising steps, frozen, then tuned ones (DPPO, arXiv 2409.00588).

    It acts by the base's own sampler. Its tuned network begins as a copy of the base's.

    Args:
        base: a diffusion policy; its weights get no gradients.
        tuned_steps: how many of the last steps are tuned.
        normalize_observations: keep a running mean and standard deviation of observations, in place
            of the base's normaliser.

    Raises:
        TrimtabError: if there are not so many steps, or the base's sampler is a scheduler's table.
    """

    adjustable_inside = False  # what was learned belongs to these steps
    neutral = MappingProxyType({"normalize_observations": False})
    base: DiffusionPolicy

    def __init__(
        self, base: DiffusionPolicy, *, tuned_steps: int, normalize_observations: bool = False
    ) -> None:
        steps = len(with_steps(base.sampler).timesteps)
        if not 1 <= tuned_steps <= steps:
            raise TrimtabError(
                f"tuned diffusion policy: tuned_steps={tuned_steps}: must be from 1 to the "
                f"{steps} steps of its sampler"
            )
        super().__init__(base.spec, base.noise_shape)
        self.normalizer = base.normalizer
        if normalize_observations:
            self.normalizer = RunningNormalizer(base.spec)
        self.base = base.requires_grad_(False).eval()
        self.tuned = copy.deepcopy(base.network).requires_grad_(True)
        self.early = steps - tuned_steps
        self.chain = DiffusionChain(base.sampler, eta=0.0)
        self.single = len(base.noise_shape) == 2  # one latent is all the noise that there is

    def predictor(self, obs: Obs, chain: Chain) -> Predict:
        """Return what predicts the noise of each step of ``chain``: frozen, then tuned."""
        vector = self.normalizer.obs(obs)
        frozen, tuned = self.base.network, self.tuned
        frozen_share = frozen.condition(vector) if self.early else None
        tuned_share = tuned.condition(vector)

        def predict(point: Tensor, index: int) -> Tensor:
            time = chain.time(index)
            if index < self.early:
                early: Tensor = frozen(point, time, frozen_share)
                return early
            late: Tensor = tuned(point, time, tuned_share)
            return late

        return predict

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        predict = self.predictor(obs, self.chain)
        point = noise if self.single else noise[:, 0]
        for index in range(self.chain.steps):
            point = self.chain.mean(point, predict(point, index), index)
            if not self.single and index < self.chain.steps - 1:
                point = point + self.chain.std(index) * noise[:, index + 1]
        return self.normalizer.raw_action(point)
