"""Vector environments on a GPU, seen from torch: tensors in and out, observations uncopied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.envs.engines.mjx_vector import MjxVectorEnv

__all__ = ["TorchVectorEnv"]


class TorchVectorEnv(gymnasium.vector.VectorWrapper):
    """The same environments with tensors on ``device`` in place of arrays, in the infos as well.

    Observations are JAX's own memory, handed over by DLPack: read them and never write into them.
    Actions, rewards and flags are small and are copied, because the books of episodes are kept by
    the processor.

    Args:
        env: the environments, whose simulations are on ``device``.
        device: torch's name of it.

    Raises:
        TrimtabError: if torch has no such device.
    """

    def __init__(self, env: MjxVectorEnv, device: str) -> None:
        import torch

        super().__init__(env)
        self._envs, self.id = env, env.id
        try:
            self.device = torch.empty(0, device=device).device
        except (AssertionError, ImportError, RuntimeError) as error:  # as torch was built
            raise TrimtabError(f"torch has no device {device!r} here; use device=cpu") from error

    def state_dict(self) -> dict[str, Any]:
        """Return the exact state as arrays, as the same environments without tensors do."""
        return self._envs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state.

        Raises:
            TrimtabError: as the same environments without tensors do.
        """
        self._envs.load_state_dict(state)

    def _tensors(self, value: Any) -> Any:
        import torch

        if isinstance(value, dict):
            return {name: self._tensors(entry) for name, entry in value.items()}
        return torch.as_tensor(value, device=self.device)

    @property
    def observations(self) -> Any:
        """The present observations [N, O] as JAX holds them."""
        return self._envs.observations

    def _observations(self) -> Tensor:
        from torch.utils.dlpack import from_dlpack

        observations: Tensor = from_dlpack(self.observations)
        return observations

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Start the next episode everywhere; return observations [N, O] and no infos."""
        self._envs.reset(seed=seed, options=options)
        return self._observations(), {}

    def step(self, actions: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Apply ``actions`` [N, act_steps, A]; return what the environments do, as tensors."""
        _, *outcome, infos = self._envs.step(actions.detach().cpu().numpy().astype(np.float32))
        reward, terminated, truncated = map(self._tensors, outcome)
        return self._observations(), reward, terminated, truncated, self._tensors(infos)
