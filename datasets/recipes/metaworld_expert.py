"""Meta-World's own scripted experts, with noise on their actions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError


class MetaWorldExpert:
    """The scripted expert of a Meta-World task.

    Args:
        task: Meta-World task name, such as ``push-v3``.
        generator: decides the noise.
        noise: standard deviation of the noise added to each action dimension.

    Raises:
        TrimtabError: if Meta-World is not installed or has no expert for ``task``.
    """

    name: ClassVar[str] = "metaworld_expert"
    revision: ClassVar[int] = 1

    def __init__(self, task: str, generator: np.random.Generator, *, noise: float = 0.0) -> None:
        try:
            from metaworld.policies import ENV_POLICY_MAP
        except ImportError as error:
            raise TrimtabError(
                "the expert recipe needs Meta-World: pip install 'trimtab[metaworld]'"
            ) from error
        if task not in ENV_POLICY_MAP:
            raise TrimtabError(f"Meta-World has no scripted expert for {task!r}")
        make_expert: Callable[[], Any] = ENV_POLICY_MAP[task]
        self.expert = make_expert()
        self.generator, self.noise = generator, noise

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the expert's action ``[4]``, noisy."""
        with warnings.catch_warnings(
            action="ignore"
        ):  # that the experts' gains are high, at every step
            action = np.clip(self.expert.get_action(np.asarray(obs, dtype=np.float64)), -1, 1)
        noisy: NDArray[Any] = action + self.noise * self.generator.standard_normal(action.shape)
        return noisy
