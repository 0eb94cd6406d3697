"""Behaviour cloning from observations with noise: nearby observations get nearby actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.settings import NonNegative
from trimtab.types import Batch, Metrics


class SmoothedBehaviorCloning(BehaviorCloning):
    """Clone, with noise on the observations.

    Args:
        setup: needs ``policy`` and ``dataset``.
        noise: standard deviation of the noise, in the observation's units.
        keywords: those of behaviour cloning.
    """

    faithful = False

    def __init__(self, setup: Setup, *, noise: NonNegative = 0.02, **keywords: Any) -> None:
        super().__init__(setup, **keywords)
        self.noise = noise

    def update(self, data: Batch) -> Metrics:
        """Take one gradient step."""
        assert isinstance(data.obs, torch.Tensor)
        return super().update(replace(data, obs=data.obs + self.noise * torch.randn_like(data.obs)))
