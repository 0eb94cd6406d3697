"""Proximal policy optimisation of Stable-Baselines3, as a peer in the same harness.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), in the
implementation of Raffin et al., "Stable-Baselines3: Reliable Reinforcement Learning
Implementations" (Journal of Machine Learning Research 22(268), 2021). Networks, optimiser,
advantages and the update are theirs, with their default settings: neither observations nor rewards
are normalised, which their zoo does for some tasks with a wrapper.

Deviations from a run of theirs: environments are Trimtab's; actions are scaled to [-1, 1] for the
learner, as they advise; minibatches are shuffled from torch's random state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Pace, Setup, Stateful
from trimtab.algorithms.peers.sb3 import Peer, copy_layers, library, linear_layers, prepared
from trimtab.policies.features import features
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.networks.mlp import ACTIVATIONS, Activation
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share, Size
from trimtab.types import Metrics, Obs, Rollout

if TYPE_CHECKING:
    import stable_baselines3


class SB3PPO(Peer):
    """Stable-Baselines3's proximal policy optimisation.

    Args:
        setup: shapes, limits, number of environments and discount.
        hidden: widths of the hidden layers of actor and critic.
        activation: of the hidden layers: tanh, relu, elu, gelu or silu.
        initial_log_std: logarithm of the actor's width at the start, in actions scaled to [-1, 1].
        learning_rate: Adam's.
        rollout_steps: decisions of each environment between updates.
        batch_size: decisions in a minibatch.
        epochs: passes over each rollout.
        gae_decay: lambda of the advantage's estimate.
        clip: how far the ratio of likelihoods may leave 1.
        value_clip: how far V may move from its old value before its loss stops; None: no bound.
        value_weight: weight of the value's loss.
        entropy_weight: weight of the entropy.
        max_gradient_norm: bound on the norm of all gradients together.
    """

    model: stable_baselines3.PPO
    judged: DiagonalGaussianPolicy

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (64, 64),
        activation: Activation = "tanh",
        initial_log_std: float = 0.0,
        learning_rate: NonNegative = 3e-4,
        rollout_steps: Count = 2048,
        batch_size: Annotated[int, Bounds(least=2)] = 64,
        epochs: Size = 10,
        gae_decay: Share = 0.95,
        clip: Positive = 0.2,
        value_clip: Positive | None = None,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        max_gradient_norm: Positive = 0.5,
    ) -> None:
        self.pace = Pace(batch_size, rollout_steps=rollout_steps)
        model: stable_baselines3.PPO = library().PPO(
            "MlpPolicy",
            None,
            learning_rate=learning_rate,
            n_steps=rollout_steps,
            batch_size=batch_size,
            n_epochs=epochs,
            gamma=setup.discount,
            gae_lambda=gae_decay,
            clip_range=clip,
            clip_range_vf=value_clip,
            ent_coef=entropy_weight,
            vf_coef=value_weight,
            max_grad_norm=max_gradient_norm,
            policy_kwargs={
                "net_arch": list(hidden),
                "activation_fn": ACTIVATIONS[activation],
                "log_std_init": initial_log_std,
            },
            device=setup.device,
            _init_setup_model=False,
        )
        self.model = prepared(model, setup)
        self.judged = DiagonalGaussianPolicy(setup.spec, hidden=hidden, activation=activation)
        self.judged.to(setup.device)

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What their own collection keeps beside an action: it before clipping, log-density, V."""
        return {"unclipped": self.judged.noise_shape, "log_prob": (), "value": ()}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions; there is no warm-up."""
        action, value, log_prob = self.model.policy(features(obs, self.judged.spec))
        unclipped = action.reshape(-1, *self.judged.noise_shape)
        aux = {"unclipped": unclipped, "log_prob": log_prob, "value": value.squeeze(-1)}
        return self.judged.normalizer.raw_action(unclipped), aux

    def update(self, data: Rollout) -> Metrics:
        """Fill Stable-Baselines3's rollout buffer and let it learn from it."""
        self.fill(data)
        with numpy_seeded_from_torch():
            self.model.train()
        self.updates += 1
        logged = self.model.logger.name_to_value
        return {
            "policy_loss": float(logged["train/policy_gradient_loss"]),
            "value_loss": float(logged["train/value_loss"]),
            "kl": float(logged["train/approx_kl"]),
            "clipped": float(logged["train/clip_fraction"]),
            "entropy": -float(logged["train/entropy_loss"]),
        }

    @torch.no_grad()
    def fill(self, data: Rollout) -> None:
        """Do with a rollout what their ``collect_rollouts`` does with its steps."""
        policy, buffer = self.model.policy, self.model.rollout_buffer
        obs, next_obs = (features(obs, self.judged.spec) for obs in (data.obs, data.next_obs))
        # A time limit is bootstrapped through its reward; at a termination the discount is 0.
        reward = data.reward.clone()
        reward[data.cut] += data.discount[data.cut] * self.value(next_obs[data.cut])
        # Where row 0 begins an episode makes no difference to any advantage.
        starts = torch.cat([torch.zeros_like(data.cut[:1]), data.cut[:-1]])
        buffer.reset()
        for row in range(len(reward)):
            buffer.add(
                obs[row].cpu().numpy(),
                data.aux["unclipped"][row].cpu().numpy(),
                reward[row].cpu().numpy(),
                starts[row].cpu().numpy(),
                data.aux["value"][row],
                data.aux["log_prob"][row],
            )
        last = policy.predict_values(next_obs[-1])
        buffer.compute_returns_and_advantage(last, data.cut[-1].cpu().numpy())

    def value(self, obs: Tensor) -> Tensor:
        """Return V ``[M]`` of observations ``[M, O]``, of which there may be none."""
        return self.model.policy.predict_values(obs).squeeze(-1)

    def copy_weights(self) -> None:
        """Fill our actor."""
        policy = self.model.policy
        body = linear_layers(policy.mlp_extractor.policy_net)
        head = policy.action_net
        assert isinstance(head, nn.Linear) and isinstance(policy.log_std, Tensor)
        copy_layers(self.judged.network, [*body, [head]])
        with torch.no_grad():
            self.judged.log_std.copy_(policy.log_std.reshape(self.judged.noise_shape))

    def state(self) -> Mapping[str, Stateful]:
        """Return their actor and critic, and their optimiser."""
        return {"networks": self.model.policy, "optimizer": self.model.policy.optimizer}


@contextmanager
def numpy_seeded_from_torch() -> Iterator[None]:
    """Seed numpy's global generator from torch's for as long as this lasts.

    Stable-Baselines3 shuffles with it, and so do some simulators, whose numbers must not depend on
    the learner.
    """
    state = np.random.get_state()
    np.random.seed(int(torch.randint(2**31, ())))
    try:
        yield
    finally:
        np.random.set_state(state)
