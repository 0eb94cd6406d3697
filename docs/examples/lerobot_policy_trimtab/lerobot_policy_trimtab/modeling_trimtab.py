"""A policy of Trimtab behind LeRobot's interface; onnxruntime computes it on the processor."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from lerobot_policy_trimtab.configuration_trimtab import TrimtabConfig
from trimtab.policies.bundle.lerobot import ACTION, BatchPolicy, read_packed

_TRAINED = "a policy of Trimtab is trained by trimtab train, and LeRobot runs it"


class TrimtabPolicy(PreTrainedPolicy):
    """The bundle in a ``model.safetensors``.

    Args:
        config: of the folder.
        settings: of LeRobot's other policies; none of them changes a bundle.

    Raises:
        ValueError: if the config has no features.
    """

    config_class = TrimtabConfig
    name = "trimtab"

    def __init__(self, config: TrimtabConfig, **settings: Any) -> None:
        super().__init__(config)
        config.validate_features()
        self._policy: BatchPolicy | None = None
        self._file: Path | None = None
        self._pending: deque[Tensor] = deque()

    @classmethod
    def _load_as_safetensor(
        cls, model: TrimtabPolicy, model_file: str, map_location: str, strict: bool
    ) -> TrimtabPolicy:
        """Open the bundle in the file that LeRobot found or fetched; replay its golden rows."""
        config = model.config
        model._file = Path(model_file)
        model._policy = policy = BatchPolicy(
            read_packed(model_file),
            {name: tuple(feature.shape) for name, feature in config.input_features.items()},
            act_steps=config.n_action_steps,
            seed=config.seed,
            deterministic=config.deterministic,
            inputs=config.inputs,
        )
        contract = policy.contract
        said = (config.chunk_size, tuple(config.output_features[ACTION].shape))
        if said != (contract.horizon, (contract.action_dim,)):
            raise ValueError(f"config.json: chunk and action are {said}, the bundle has others")
        return model

    def _save_pretrained(self, save_directory: Path, state_dict: Any = None) -> None:
        """Write the config, and copy the bundle as it is."""
        self.config._save_pretrained(save_directory)
        if self._file is not None:
            shutil.copyfile(self._file, save_directory / self._file.name)

    def reset(self) -> None:
        """Begin an episode: forget the plan and the history."""
        self._pending.clear()
        if self._policy is not None:
            self._policy.reset()

    def drop_queued_actions(self) -> None:
        """Forget the plan alone, as LeRobot asks when the task changes within an episode."""
        self._pending.clear()

    def predict_action_chunk(self, batch: dict[str, Tensor], noise: Tensor | None = None) -> Tensor:
        """Return the next chunk ``[B, H, A]``, raw units; each call is one decision.

        Args:
            batch: features ``[B, ...]``, raw units.
            noise: ``[B, *noise_shape]`` in place of the policy's own.

        Raises:
            RuntimeError: if no bundle was loaded.
            TrimtabError: if the policy cannot read the batch.
        """
        if self._policy is None:
            raise RuntimeError("load a policy of Trimtab by from_pretrained")
        given = {name: batch[name] for name in self.config.input_features if name in batch}
        arrays = {name: value.detach().float().cpu().numpy() for name, value in given.items()}
        drawn = None if noise is None else noise.detach().float().cpu().numpy()
        chunk = torch.from_numpy(self._policy.chunk(arrays, drawn))
        return chunk.to(next(iter(given.values())).device)

    def select_action(self, batch: dict[str, Tensor], noise: Tensor | None = None) -> Tensor:
        """Return the action ``[B, A]`` of this tick; ask for a chunk when the last one is played.

        Args and errors are those of :meth:`predict_action_chunk`.
        """
        if not self._pending:
            chunk = self.predict_action_chunk(batch, noise)
            self._pending.extend(chunk[:, : self.config.n_action_steps].unbind(1))
        return self._pending.popleft()

    def forward(self, batch: dict[str, Tensor]) -> NoReturn:
        """Refuse: there is no loss here."""
        raise NotImplementedError(_TRAINED)

    def get_optim_params(self) -> NoReturn:
        """Refuse: there is nothing to train here."""
        raise NotImplementedError(_TRAINED)
