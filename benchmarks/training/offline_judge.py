"""Off-policy evaluation of a finished policy: what a dataset alone says of its return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.policy_evaluation import (
    Act,
    FittedQ,
    ModelValue,
    per_decision_weighted,
    step_log_ratios,
)
from trimtab.benchmarks.training.data.offline_data import open_source
from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.normalizer import Normalizer
from trimtab.types import Batch, PolicySpec

__all__ = ["ESTIMATORS", "Estimate", "OfflineJudge"]

Told = Callable[[float], None]


@dataclass(frozen=True)
class Estimate:
    """What one estimator says.

    Attributes:
        estimator: which one.
        value: of the discounted return.
        note: what its user must know of it, in words; or empty.
    """

    estimator: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class _Decisions:
    """A dataset's episodes as decisions, one after another, filled up to the longest."""

    obs: Tensor  # [N, O], where an episode's decision is taken
    action: Tensor  # [N, H, A]
    valid: Tensor  # [N, H], what of it was executed
    reward: Tensor  # [E, T]
    taken: Tensor  # [E, T]
    ended: Tensor  # [E], whether the task itself ended


class OfflineJudge:
    """Judges policies by one dataset, without an environment.

    Args:
        dataset: of the task.
        spec: shapes and limits of the executed chunks.
        discount: gamma of a decision.
        updates: gradient steps of each thing that is learned.
        batch_size: decisions in one step.
        hidden: widths of the networks' hidden layers.
        seed: of all that is drawn.

    Raises:
        TrimtabError: if a setting is outside its range, or all rewards of the dataset are equal.
    """

    def __init__(
        self,
        dataset: Dataset,
        spec: PolicySpec,
        *,
        discount: float = 0.99,
        updates: int = 20_000,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256),
        seed: int = 0,
    ) -> None:
        if not 0.0 <= discount < 1.0:
            raise TrimtabError(f"evaluate: discount={discount}: must be from 0 to below 1")
        if min(updates, batch_size) < 1:
            raise TrimtabError("evaluate: updates and batch_size must be at least 1")
        only = dataset.only_reward
        if only is not None:
            raise TrimtabError(
                f"evaluate: offline=true: dataset {dataset.id}: every reward is {only:g}, so it "
                "says nothing of a return; give data with rewards, or judge the policy in its task "
                "without offline=true"
            )
        self.dataset, self.spec, self.discount = dataset, spec, discount
        self.updates, self.batch_size, self.hidden, self.seed = updates, batch_size, hidden, seed
        self.normalizer = Normalizer(spec)
        statistics = dataset.statistics()
        self.normalizer.fit(statistics)  # actions as in the data
        self.normalizer.standardize(statistics)
        self.decisions = _decisions_of(dataset, spec.horizon)
        taken = self.decisions.reward[self.decisions.taken]
        self.rewards = float(taken.min()), float(taken.max())
        starts = np.stack([episode.observations[0] for episode in dataset.episodes])
        self.starts = self.normalizer.obs(torch.from_numpy(starts))
        self._behaviour: Policy | None = None

    def check(self, policy: Policy) -> None:
        """Check that a policy reads what a dataset has.

        Raises:
            TrimtabError: if it reads parts, a history or inputs of its own.
        """
        if policy.spec.parts or policy.spec.history > 1:
            raise TrimtabError(
                f"evaluate: offline=true: this {policy.kind} policy reads parts, inputs or a "
                "history; judge one that reads a single flat observation"
            )

    def fitted_q(self, policy: Policy, deterministic: bool, tell: Told) -> Estimate:
        """Return the estimate of fitted Q evaluation."""
        torch.manual_seed(self.seed)
        act = self._act(policy, deterministic)
        size = self.spec.horizon * self.spec.action_dim
        fitted = FittedQ(
            self.spec.obs_dim, size, rewards=self.rewards, discount=self.discount,
            hidden=self.hidden,
        )  # fmt: skip

        def step(batch: Batch, obs: Tensor, action: Tensor, next_obs: Tensor) -> None:
            chunk = _continued(batch, obs, action, act)
            fitted.update(obs, chunk, batch.reward, next_obs, batch.discount, act)

        self._learn(step, tell)
        return Estimate("fitted_q", float(fitted.value(self.starts, act(self.starts)).mean()))

    def model(self, policy: Policy, deterministic: bool, tell: Told) -> Estimate:
        """Return what the policy earns in learned models, as long as the longest episode."""
        torch.manual_seed(self.seed)
        size = self.spec.horizon * self.spec.action_dim
        unit = max(abs(reward) for reward in self.rewards) or 1.0
        model = ModelValue(self.spec.obs_dim, size, hidden=self.hidden, unit=unit)
        act = self._act(policy, deterministic)

        def step(batch: Batch, obs: Tensor, action: Tensor, next_obs: Tensor) -> None:
            chunk = _continued(batch, obs, action, act)
            model.update(obs, chunk, batch.reward, next_obs, batch.discount == 0)

        self._learn(step, tell)
        value = model.value(
            self.starts, act, decisions=self.decisions.taken.shape[1], discount=self.discount,
        )  # fmt: skip
        return Estimate("model", float(value.mean()))

    def importance(self, policy: Policy, deterministic: bool, tell: Told) -> Estimate:
        """Return the importance-weighted estimate of the sampled policy.

        Raises:
            TrimtabError: if its actions have no density.
        """
        target = self._density(policy)  # refuses before anything is learned
        if self._behaviour is None:
            self._behaviour = self._cloned(tell)
        ratio = step_log_ratios(target, self._density(self._behaviour))
        rows = torch.zeros(self.decisions.taken.shape)
        rows[self.decisions.taken] = ratio
        value, effective = per_decision_weighted(
            rows, self.decisions.reward, self.decisions.taken, self.decisions.ended, self.discount
        )
        episodes = len(self.decisions.taken)
        note = f"{float(effective):.1f} of {episodes} episodes carry it"
        note += "; of the policy with its noise" if deterministic else ""
        return Estimate("importance", float(value), note)

    @torch.no_grad()
    def _density(self, policy: Policy) -> Tensor:
        """Return the log-density of every decision of the data, ``[N]``."""
        missing = policy.spec.horizon - self.spec.horizon
        found = []
        for obs, action, valid in zip(
            *(x.split(4096) for x in (self.decisions.obs, self.decisions.action,
                                      self.decisions.valid)), strict=True
        ):  # fmt: skip
            whole = torch.nn.functional.pad(action, (0, 0, 0, missing))
            density = policy.log_density(obs, whole)[:, : self.spec.horizon]
            found.append((density * valid).sum(1))  # of what was executed
        return torch.cat(found)

    def _cloned(self, tell: Told) -> Policy:
        """Return the policy that gathered the data, as far as a Gaussian can be fitted to it."""
        torch.manual_seed(self.seed)
        behaviour = TanhGaussianPolicy(self.spec, hidden=self.hidden)
        behaviour.normalizer.standardize(self.dataset.statistics())
        optimizer = Adam(behaviour.network.parameters(), 3e-4, weight_decay=1e-5)

        def step(batch: Batch, obs: Tensor, action: Tensor, next_obs: Tensor) -> None:
            density = behaviour.log_density(batch.obs, batch.action) * batch.valid
            optimizer.step(-density.sum(1).mean())

        self._learn(step, tell)
        return behaviour

    def _act(self, policy: Policy, deterministic: bool) -> Act:
        """Return what is executed as a function of normalised values."""
        own = self.normalizer

        @torch.no_grad()
        def act(obs: Tensor) -> Tensor:
            raw = policy.act(obs * own.obs_scale + own.obs_shift, deterministic=deterministic)
            return own.normalize_action(raw[:, : self.spec.horizon])

        return act

    def _learn(self, step: Callable[[Batch, Tensor, Tensor, Tensor], None], tell: Told) -> None:
        """Take all gradient steps on batches of the dataset."""
        source = open_source(
            self.dataset, window=self.spec.horizon, discount=self.discount, chunked=True,
            seed=self.seed,
        )  # fmt: skip
        own = self.normalizer
        for update in range(self.updates):
            batch = source.sample(self.batch_size)
            assert isinstance(batch.obs, Tensor) and isinstance(batch.next_obs, Tensor)
            action = own.normalize_action(batch.action)
            step(batch, own.obs(batch.obs), action, own.obs(batch.next_obs))
            tell((update + 1) / self.updates)


def _decisions_of(dataset: Dataset, act_steps: int) -> _Decisions:
    """Return a dataset's episodes as decisions of ``act_steps`` actions.

    What an episode's end leaves of a last chunk is filled with its last action.
    """
    longest = max(-(-len(episode) // act_steps) for episode in dataset.episodes)
    shape = len(dataset.episodes), longest
    reward, taken = np.zeros(shape, np.float32), np.zeros(shape, bool)
    obs, action, valid = [], [], []
    for number, episode in enumerate(dataset.episodes):
        steps = len(episode)
        first = np.arange(0, steps, act_steps)
        taken[number, : len(first)] = True
        reward[number, : len(first)] = np.add.reduceat(episode.rewards, first)
        obs.append(episode.observations[first])
        rows = first[:, None] + np.arange(act_steps)
        valid.append(rows < steps)
        action.append(episode.actions[np.minimum(rows, steps - 1)])
    ended = np.array([bool(episode.terminations[-1]) for episode in dataset.episodes])
    return _Decisions(
        torch.from_numpy(np.concatenate(obs)), torch.from_numpy(np.concatenate(action)),
        torch.from_numpy(np.concatenate(valid)), torch.from_numpy(reward),
        torch.from_numpy(taken), torch.from_numpy(ended),
    )  # fmt: skip


def _continued(batch: Batch, obs: Tensor, action: Tensor, act: Act) -> Tensor:
    """Return chunks in which the policy goes on where the data's episode was over.

    Its own chunks are whole, and would else be valued by none like them near an episode's end.
    """
    return torch.where(batch.valid[..., None], action, act(obs))


ESTIMATORS: dict[str, Callable[[OfflineJudge, Policy, bool, Told], Estimate]] = {
    "fitted_q": OfflineJudge.fitted_q,
    "importance": OfflineJudge.importance,
    "model": OfflineJudge.model,
}
"""Every estimator by its name."""
