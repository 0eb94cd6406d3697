"""The contract of every algorithm, and what the harness hands to one when it is made.

An algorithm knows policies and batches. It knows no environment, file, logger or configuration
system: the harness (``trimtab.benchmarks.training.train``) owns those.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from trimtab.algorithms.phases import Budget, Phase, usual_phases
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.settings import CheckedSettings
from trimtab.types import Batch, BatchSpec, Metrics, Obs, PolicySpec, Statistics


@runtime_checkable
class Stateful(Protocol):
    """A module or an optimiser, as checkpoints see it."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return its tensors and numbers, by name."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Take on what ``state_dict`` returned."""
        ...


class PolicyFactory(Protocol):
    """Builds the configured policy for given shapes."""

    def __call__(self, spec: PolicySpec) -> Policy:
        """Return a policy with fresh weights."""
        ...


@dataclass(frozen=True)
class Setup:
    """What a run gives to its algorithm.

    Attributes:
        spec: shapes and limits of the task at the chosen chunk length.
        policy: builds the policy that the run configured, or None where ``policy=`` was not given.
        base: the policy that the run starts from or steers, or None where ``base=`` was not given.
        oracles: policies of the same task that a method may imitate, or none.
        expert: every decision of a few good episodes that guide a method, chunks of ``act_steps``
            actions on the device, or None where ``expert=`` was not given.
        statistics: those of the run's dataset, or None where ``dataset=`` was not given.
        num_envs: environments that gather data side by side.
        discount: gamma of each decision; it is already in what a learner is given.
        device: where tensors live.
    """

    spec: PolicySpec
    policy: PolicyFactory | None = None
    base: Policy | None = None
    oracles: tuple[Policy, ...] = ()
    expert: Batch | None = None
    statistics: Statistics | None = None
    num_envs: int = 1
    discount: float = 0.99
    device: str = "cpu"

    def start(self) -> Policy:
        """Return a policy to learn on from: a copy of ``base``, or a fresh one of ``policy``.

        A fresh policy's normaliser is fitted to the dataset. The weights of both can be trained.
        """
        if self.base is not None:
            return copy.deepcopy(self.base).to(self.device).requires_grad_(True)
        assert self.policy is not None and self.statistics is not None
        policy = self.policy(self.spec).to(self.device)
        policy.fit_normalizer(self.statistics)
        return policy


@dataclass(frozen=True)
class Needs:
    """What a method needs of a run, and what it looks at in a dataset.

    Attributes:
        parts: which of ``policy``, ``dataset``, ``base`` and ``oracles`` it needs; the harness says
            in one line which is missing. ``start`` stands for a base, or for a policy with a
            dataset, whichever is given: ``Setup.start`` then returns what the method learns on
            from.
        options: what it can do without, and uses where a run gives it: names of ``parts``, or
            ``expert``.
        base_kind: the one kind of policy that it can start from; empty: any kind.
        next_observations: whether it looks at next observations. A method that does not is also
            given the steps of a dataset whose next observation was not recorded.
        rewards: whether it learns from the rewards of a dataset; a run of such a method that only
            has a dataset is refused where its rewards tell nothing.
        transitions_only: whether ``setup.statistics`` counts the observations of transitions alone,
            as loaders of transitions do, and not the last one of each episode.
    """

    parts: Set[str] = frozenset()
    options: Set[str] = frozenset()
    base_kind: str = ""
    next_observations: bool = True
    rewards: bool = True
    transitions_only: bool = False


@dataclass(frozen=True)
class Pace:
    """How much a method learns from at once, and how often.

    Attributes:
        batch_size: transitions in one gradient step.
        warmup_steps: environment steps gathered before the first online update.
        updates_per_decision: online updates for each action chunk that was executed.
        rollout_steps: decisions of every environment in one ``Rollout``; each is learned from once,
            at once. 0 means that ``update`` takes batches from a replay buffer or dataset.
        acts_once_taught: whether it acts as after the warm-up from its first step online on, if
            offline updates came before; the online updates wait for ``warmup_steps`` in any case.
    """

    batch_size: int
    warmup_steps: int = 0
    updates_per_decision: float = 0.0
    rollout_steps: int = 0
    acts_once_taught: bool = False


class Algorithm(metaclass=CheckedSettings):
    """A learner: acts with :meth:`explore`, learns with :meth:`update`, is judged by ``policy``.

    A variant of a method is a subclass that overrides one of its Python methods, such as
    ``policy_loss``, and passes ``**keywords`` to its parent, so that no setting is written twice.

    Attributes:
        section: what errors call its settings.
        revision: raised by one whenever the method's mathematics change, on the class that they
            change in; results of different revisions never share a table or a run's folder.
        neutral: keywords that a class got after results were published, with the values that leave
            its results unchanged; runs with these values keep their names.
        needs: what it is given, and what it looks at in a dataset.
        without: settings of a parent that have no effect on it; the harness refuses them.
        unsaved: attributes that are in no state, because they never change, decide no number or are
            set anew before they are read, such as ``optimizer.learning_rates`` of a schedule; every
            other one that changes has to be saved. Names of parents are added.
        learns: whether it has something to learn; a run that gives such a method no steps and no
            updates is refused.
        success_reward: least reward of a decision that it takes for a success; where it is a
            number, a dataset has to have successes and others. None where it takes none for one.
        wants: extra fields of its batches; a keyword of its constructor may decide it.
        aux_shapes: name and shape of what :meth:`explore` asks to have back in ``Batch.aux``.
        pace: how much it learns from at once, and how often.
        updates: calls of ``update`` so far, for schedules; a method that has one counts them.
        kept_metrics: the last metrics of a part that is not updated in every update.
        policy: what is evaluated and exported.
        faithful: whether it follows its paper or the paper's code, except for what its
            docstring lists as deviations; False for an adaptation, which says there why.
    """

    section: ClassVar[str] = "algorithm"
    revision: ClassVar[int] = 1
    neutral: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    needs: ClassVar[Needs] = Needs()
    without: ClassVar[frozenset[str]] = frozenset()
    faithful: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    unsaved: ClassVar[frozenset[str]] = frozenset()
    success_reward: float | None = None
    wants: BatchSpec = BatchSpec()
    pace: Pace
    updates: int = 0
    kept_metrics: Mapping[str, float | Tensor] = MappingProxyType({})
    policy: Policy

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes, without the batch dimension, of what :meth:`explore` wants to be stored."""
        return {}

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return raw actions ``[N, H, A]`` to try, and named tensors to store with them.

        Args:
            obs: raw observations ``[N, O]``, or parts.
            warmup: whether the first update online is still to come; with
                ``pace.acts_once_taught``, whether the first of all updates is. What acts until then
                is a part of the method and not of the harness: uniform actions in SAC, the base
                itself in DSRL.
        """
        raise TrimtabError(
            f"{type(self).__name__} learns from a dataset only; set online_steps=0 and give "
            "offline_steps"
        )

    @torch.no_grad()
    def continued_action(self, data: Batch) -> Tensor:
        """Return a batch's action chunks ``[B, H, A]``, continued where their episode cut them.

        What stands after the last executed action has no effect if the episode ended there, so any
        actions there describe the same decision. (After a time limit that is nearly so: the task
        without its limit would go on with them.) A critic is asked about whole plans of its actor,
        and learns their worth only if it sees such plans: gathered and recorded chunks alike go on
        as the learner would act now. Any other rule (such as repeating the last action) leaves the
        values of the actor's own plans near an episode's end to chance.
        """
        if data.action.shape[1] == 1 or data.whole:
            return data.action
        planned, _ = self.explore(data.obs, warmup=False)
        return torch.where(data.valid[..., None], data.action, planned)

    def ended(self, rows: Sequence[int]) -> None:
        """Hear in which of the environments that gather an episode has just ended; here nothing.

        The observations that these rows of :meth:`explore` see next begin new episodes.

        Args:
            rows: numbers of the environments, below ``setup.num_envs``.
        """
        return None

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Return what a run of this method goes through, one after another.

        By default: ``update`` on the dataset for ``offline_steps`` updates, then ``update`` on what
        is gathered for ``online_steps`` environment steps. The harness calls this once a run, after
        it has made the method, and again where a run is resumed; the answer must be the same.

        Args:
            budget: what the run may spend.
        """
        return usual_phases(budget, self.update, self.update)

    @abstractmethod
    def update(self, data: Any) -> Metrics:
        """Learn from one ``Batch``, or from one ``Rollout`` where ``pace.rollout_steps`` is not 0.

        Returns:
            Named scalars, of the same names every time; tensors without gradients, or numbers.
        """

    def state(self) -> Mapping[str, Stateful]:
        """Return every module and optimiser that changes while learning, by name.

        By default these are all that are attributes, but for those in ``unsaved``; each is there
        once.
        """
        unsaved = {name for kind in type(self).__mro__ for name in vars(kind).get("unsaved", ())}
        found: dict[str, Stateful] = {}
        for name, value in vars(self).items():
            held = any(value is other for other in found.values())
            part = isinstance(value, Stateful) and not isinstance(value, Algorithm | type)
            if part and name not in unsaved and not held:
                found[name] = value
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly here (nested, of tensors and numbers)."""
        parts = {name: part.state_dict() for name, part in self.state().items()}
        return {**parts, "updates": self.updates, "kept_metrics": dict(self.kept_metrics)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``, so that learning continues exactly from it."""
        for name, part in self.state().items():
            part.load_state_dict(state[name])
        self.updates = int(state["updates"])
        self.kept_metrics = dict(state["kept_metrics"])
