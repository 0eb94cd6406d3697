"""ACT: a transformer that gives a chunk of actions at once, as LeRobot trained it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.networks.action_transformer import ActionTransformer
from trimtab.settings import Size
from trimtab.types import Obs, PolicySpec


class ActionTransformerPolicy(Policy):
    """Zhao et al., "Learning Fine-Grained Bimanual Manipulation" (arXiv 2304.13705), of states.

    The variable of style is zero, as the paper has it where the policy acts, so that it takes no
    noise. Its encoder was for training alone, and is not here.

    Args:
        spec: shapes and limits.
        sizes: numbers of each group of the observation that is one token; None: all are one.
        width: of a token.
        heads: attentions side by side.
        feedforward: width of each layer's perceptron.
        encoders: layers of the encoder.
        decoders: layers of the decoder.
        activation: of the perceptrons.
        norm_first: whether normalisation stands before each part of a layer, and not behind it.

    Raises:
        TrimtabError: if the sizes do not fit.
    """

    built_by_method = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        sizes: Sequence[Size] | None = None,
        width: Size = 512,
        heads: Size = 8,
        feedforward: Size = 3200,
        encoders: Size = 4,
        decoders: Size = 1,
        activation: Literal["relu", "gelu"] = "relu",
        norm_first: bool = False,
    ) -> None:
        groups = [spec.obs_dim] if sizes is None else list(sizes)
        if sum(groups) != spec.obs_dim:
            raise TrimtabError(f"sizes={groups}: an observation has {spec.obs_dim} numbers")
        settings: dict[str, Any] = {
            "width": width, "heads": heads, "feedforward": feedforward, "encoders": encoders,
            "decoders": decoders, "activation": activation, "norm_first": norm_first,
        }  # fmt: skip
        super().__init__(spec, (0,), sizes=groups)
        self.network = ActionTransformer(groups, spec.horizon, spec.action_dim, **settings)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.network(self.normalizer.obs(obs)))
