"""Meta-World's scripted experts in several competences: an episode has its own noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from trimtab.datasets.recipes.metaworld_expert import MetaWorldExpert
from trimtab.settings import NonNegative

__all__ = ["MetaWorldMixed"]


class MetaWorldMixed(MetaWorldExpert):
    """The scripted expert of a Meta-World task, as steady as the episode's draw.

    Args:
        task: Meta-World task name, such as ``push-v3``.
        generator: decides the competence of the episode and the noise.
        noise_levels: standard deviations of the noise added to each action dimension, of which each
            episode draws one.

    Raises:
        TrimtabError: if Meta-World is not installed or has no expert for ``task``.
    """

    name: ClassVar[str] = "metaworld_mixed"
    revision: ClassVar[int] = 1

    def __init__(
        self, task: str, generator: np.random.Generator, *, noise_levels: Sequence[NonNegative]
    ) -> None:
        super().__init__(task, generator, noise=float(generator.choice(noise_levels)))
