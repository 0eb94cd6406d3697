"""Settings of a policy of Trimtab in LeRobot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from lerobot.configs import PreTrainedConfig

_TRAINED = "a policy of Trimtab is trained by trimtab train, and LeRobot runs it"


@PreTrainedConfig.register_subclass("trimtab")
@dataclass
class TrimtabConfig(PreTrainedConfig):
    """What LeRobot may know and change of a policy; what it computes is in its bundle.

    Attributes:
        chunk_size: length H of a predicted chunk.
        n_action_steps: how many actions of each chunk ``select_action`` plays.
        action_feature_names: the actions' names in their order, if the bundle has them.
        seed: of the noise.
        deterministic: zero noise if True; None for what the bundle says.
        inputs: inputs that the policy's user chooses, such as ``{"guidance": 3}``.
    """

    chunk_size: int = 1
    n_action_steps: int = 1
    action_feature_names: list[str] | None = None
    seed: int = 0
    deterministic: bool | None = None
    inputs: dict[str, float] = field(default_factory=dict)

    @property
    def observation_delta_indices(self) -> None:
        """One observation a call: the policy remembers those that it reads."""
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        """The ticks of a chunk's actions, from that of the observation."""
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        """Rewards are not read."""
        return None

    def get_optimizer_preset(self) -> NoReturn:
        """Refuse: LeRobot does not train this policy."""
        raise NotImplementedError(_TRAINED)

    def get_scheduler_preset(self) -> NoReturn:
        """Refuse: LeRobot does not train this policy."""
        raise NotImplementedError(_TRAINED)

    def validate_features(self) -> None:
        """Check that there is something to observe, and an action.

        Raises:
            ValueError: if not.
        """
        if not self.input_features or self.action_feature is None:
            raise ValueError("a policy of Trimtab has input_features, and output_features: action")
