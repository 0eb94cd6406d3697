"""What the peers from Stable-Baselines3 share.

Raffin et al., "Stable-Baselines3: Reliable Reinforcement Learning Implementations" (Journal of
Machine Learning Research 22(268), 2021). A peer learns with Stable-Baselines3's own networks,
optimisers and ``train()``; environments, buffers, the judge and the checkpoints are Trimtab's. To
Stable-Baselines3 a chunk of H actions is one action of ``H * A`` dimensions in [-1, 1].
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.features import features
from trimtab.types import Batch, Metrics, Obs, PolicySpec

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

ModelT = TypeVar("ModelT", bound="BaseAlgorithm")


def library(module: str = "stable_baselines3") -> Any:
    """Return Stable-Baselines3, or one of its modules.

    It is imported where a run needs it only, so that methods can be listed without it.

    Raises:
        TrimtabError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TrimtabError(
            f"Stable-Baselines3 cannot be imported ({error}); pip install 'trimtab[sb3]'"
        ) from error


def prepared(model: ModelT, setup: Setup) -> ModelT:
    """Give a model that was made without an environment its shapes, networks and a silent logger.

    Args:
        model: made with ``env=None`` and ``_init_setup_model=False``.
        setup: shapes and number of environments.
    """
    spec = setup.spec
    model.observation_space = spaces.Box(-float("inf"), float("inf"), (spec.obs_dim,))
    model.action_space = spaces.Box(-1.0, 1.0, (spec.horizon * spec.action_dim,))
    model.n_envs = setup.num_envs
    model.set_logger(library("stable_baselines3.common.logger").Logger(None, []))
    model._setup_model()
    return model


@torch.no_grad()
def copy_layers(network: nn.Module, theirs: Sequence[Sequence[nn.Linear]]) -> None:
    """Copy linear layers into ours.

    Args:
        network: its linear layers are filled in their order.
        theirs: for each of them one layer, or several that share their input and are joined.
    """
    ours = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    for layer, heads in zip(ours, theirs, strict=True):
        layer.weight.copy_(torch.cat([head.weight for head in heads]))
        layer.bias.copy_(torch.cat([head.bias for head in heads]))


def linear_layers(network: nn.Module) -> list[list[nn.Linear]]:
    """Return the linear layers of a perceptron in their order, each alone in a list."""
    return [[layer] for layer in network.modules() if isinstance(layer, nn.Linear)]


class Peer(Algorithm):
    """A method whose learner is Stable-Baselines3's.

    Attributes:
        judged: a policy of Trimtab's own; :meth:`copy_weights` brings its weights up to date.
    """

    judged: Policy

    @abstractmethod
    def copy_weights(self) -> None:
        """Fill ``judged`` with the weights of Stable-Baselines3's actor."""

    # Only read by the harness, which the attribute's type cannot say.
    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """What is evaluated and exported, with the weights of this moment."""
        self.copy_weights()
        return self.judged


class OneBatch:
    """Stands where Stable-Baselines3 keeps its replay buffer, and hands on the harness's batch."""

    def __init__(self) -> None:
        self.held: ReplayBufferSamples | None = None

    def hold(self, data: Batch, action: Tensor, spec: PolicySpec) -> None:
        """Keep a batch for the next :meth:`sample`.

        ``discount`` has gamma and terminations in it already, so nothing is marked as done.

        Args:
            data: the batch.
            action: its actions scaled to [-1, 1], ``[B, H, A]``.
            spec: of the policy: their networks read one vector.
        """
        samples = library("stable_baselines3.common.type_aliases").ReplayBufferSamples
        self.held = samples(
            observations=features(data.obs, spec),
            actions=action.flatten(1),
            next_observations=features(data.next_obs, spec),
            dones=torch.zeros_like(data.reward)[:, None],
            rewards=data.reward[:, None],
            discounts=data.discount[:, None],
        )

    def sample(self, batch_size: int, env: object = None) -> ReplayBufferSamples:
        """Return the batch that is held, once."""
        held, self.held = self.held, None
        assert held is not None and len(held.rewards) == batch_size
        return held


class ReplayingPeer(Peer):
    """A peer that learns from batches out of the harness's replay buffer.

    Attributes:
        model: theirs.
        replay: what ``model`` takes for its replay buffer.
    """

    model: OffPolicyAlgorithm
    replay: OneBatch

    def adopt(self, model: OffPolicyAlgorithm, setup: Setup) -> None:
        """Make ``model`` ready to learn from what this method is given."""
        self.replay = OneBatch()
        model.replay_buffer = cast("ReplayBuffer", self.replay)
        self.model = prepared(model, setup)

    @abstractmethod
    def squashed_action(self, obs: Tensor) -> Tensor:
        """Return what Stable-Baselines3 would try, in [-1, 1], ``[N, H * A]``.

        Args:
            obs: one vector a row, ``[N, obs_dim]``.
        """

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, those of Stable-Baselines3 after it."""
        spec = self.judged.spec
        vector = features(obs, spec)
        shape = (len(vector), spec.horizon, spec.action_dim)
        if warmup:
            squashed = 2 * torch.rand(shape, device=vector.device) - 1
        else:
            squashed = self.squashed_action(vector).reshape(shape)
        return self.judged.normalizer.raw_action(squashed), {}

    def update(self, data: Batch) -> Metrics:
        """Let Stable-Baselines3 take one gradient step."""
        action = self.judged.normalizer.normalize_action(self.continue_chunks(data))
        self.replay.hold(data, action, self.judged.spec)
        self.model.logger.name_to_value.clear()
        # Their count of updates decides when TD3 moves its actor; ours is in the checkpoint.
        self.model._n_updates = self.updates
        self.model.train(gradient_steps=1, batch_size=len(data))
        self.updates += 1
        return self.metrics(self.model.logger.name_to_value)

    @abstractmethod
    def metrics(self, logged: Mapping[str, Any]) -> Metrics:
        """Return named scalars from what Stable-Baselines3 logged of one update."""
