"""Guided TD3+BC: how strongly each action of the data is imitated is learned from a few good ones.

Yang et al., "Hundreds Guide Millions: Adaptive Offline Reinforcement Learning With Expert Guidance"
(arXiv 2309.01448), on TD3+BC (arXiv 2106.06860). A guiding network G weighs the imitation of each
action, and learns so that a step of the actor by these weights comes nearer to expert actions:

- virtual:  theta' = theta - eta grad mean (-lambda Q_1(s, mu(s)) + w_i |mu(s_i) - a_i|^2)
            with w = G(s, a), for the last layer of the actor
- guide:    L_G = mean over expert rows |mu'(s) - a|^2, differentiated through theta'
- actor:    L_mu = mean (-lambda Q_1(s, mu(s)) + w_i |mu(s_i) - a_i|^2), with the new w as a number
            and lambda = alpha / mean |Q_1(s, mu(s))|, which gets no gradient

The expert rows are drawn from the few episodes that a run names by ``expert=``, as in the paper.
Where it names none, they are those rows of a batch that collect most until their episode's end.

An adaptation (``faithful`` is False): the paper's code was not found, and only its idea is known
here. Our choices: without ``expert=`` the good rows come from the batch itself; an update takes
``guide_share`` of its batch as expert rows; the virtual step is one of the last layer; its rate;
the network G; and the range of its weights, from 0 to ``most_weight``. They begin at half of that.
Half of 2 is 1, which is TD3+BC.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.observations import tree_map
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Positive, Share
from trimtab.types import Batch, BatchSpec


class GuidedTD3BC(TD3BC):
    """TD3+BC whose imitation is weighted by a network that expert rows guide.

    Args:
        setup: needs ``dataset``; takes ``expert``.
        guide_share: expert rows of an update, as a share of its batch.
        virtual_rate: eta of the virtual step.
        most_weight: bound on a weight.
        td3_bc: settings of TD3+BC; ``hidden`` and ``learning_rate`` are G's, too.
    """

    batch_spec = BatchSpec(mc_return=True)
    needs = Needs({"dataset"}, optional={"expert"}, transitions_only=True)
    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        guide_share: Share = 0.1,
        virtual_rate: Positive = 0.1,
        most_weight: Positive = 2.0,
        **td3_bc: Any,
    ) -> None:
        super().__init__(setup, **td3_bc)
        self.expert = setup.expert
        if self.expert is not None:
            self.batch_spec = BatchSpec()
        self.guide_share, self.virtual_rate = guide_share, virtual_rate
        self.most_weight = most_weight
        size = setup.spec.horizon * setup.spec.action_dim
        self.guide = mlp(setup.spec.obs_dim + size, self.hidden, 1).to(setup.device)
        self.guide_optimizer = Adam(self.guide.parameters(), self.critic_optimizer.learning_rate)

    def policy_loss(self, data: Batch, value: Tensor, squashed: Tensor) -> Tensor:
        """Return the actor's loss, after one step of the guiding network."""
        obs = self.policy.normalizer.obs(data.obs)
        target = self.policy.normalizer.normalize_action(data.action)
        scale = self.alpha / value.abs().mean().detach()
        climb = -scale * value.mean()
        error = (squashed - target).square()

        guided = climb + self.weighted(error, self.weights(obs, target), data)
        self.guide_optimizer.step(self.guide_loss(*self.experts(data, obs, target), guided))
        with torch.no_grad():
            weight = self.weights(obs, target)
        return climb + self.weighted(error, weight, data)

    def weights(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return how strongly scaled actions ``[B, H, A]`` are imitated, ``[B]``."""
        read = torch.cat([obs, action.flatten(1)], dim=1)
        weight: Tensor = self.most_weight * torch.sigmoid(self.guide(read).squeeze(-1))
        return weight

    def weighted(self, error: Tensor, weight: Tensor, data: Batch) -> Tensor:
        """Return the mean of errors ``[B, H, A]`` of valid actions by their weights ``[B]``."""
        return self.policy.masked_mean(error * weight[:, None, None], data.valid)

    def experts(self, data: Batch, obs: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return observations ``[E, O]`` and scaled actions ``[E, H, A]`` of expert rows.

        The third value ``[E, H]`` says which actions are valid.

        Args:
            data: the batch.
            obs: its normalised observations ``[B, O]``.
            target: its scaled actions ``[B, H, A]``.
        """
        count = max(1, int(self.guide_share * len(data)))
        if self.expert is None:
            assert data.mc_return is not None
            best = data.mc_return.topk(count).indices
            return obs[best], target[best], data.valid[best]
        drawn = torch.randint(len(self.expert), (count,), device=target.device)
        normalizer = self.policy.normalizer
        seen = tree_map(lambda part: part[drawn], self.expert.obs)
        action = normalizer.normalize_action(self.expert.action[drawn])
        return normalizer.obs(seen), action, self.expert.valid[drawn]

    def guide_loss(self, obs: Tensor, action: Tensor, valid: Tensor, guided: Tensor) -> Tensor:
        """Return the experts' imitation error after a virtual step of the actor's last layer.

        Args:
            obs: normalised observations ``[E, O]`` of expert rows.
            action: their scaled actions ``[E, H, A]``.
            valid: which of those count ``[E, H]``.
            guided: the actor's loss, which depends on the guiding network.
        """
        last = self.policy.network[-1]
        assert isinstance(last, nn.Linear)
        slopes = torch.autograd.grad(guided, (last.weight, last.bias), create_graph=True)
        weight, bias = (
            now.detach() - self.virtual_rate * slope
            for now, slope in zip((last.weight, last.bias), slopes, strict=True)
        )
        with torch.no_grad():
            features = self.policy.network[:-1](obs)
        moved = torch.tanh(functional.linear(features, weight, bias)).reshape(action.shape)
        return self.policy.masked_mean((moved - action).square(), valid)
