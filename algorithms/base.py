"""The interface of every algorithm, and the inputs that its constructor gets from the harness.

An algorithm depends on policies and batches alone. Environments, files, loggers and configuration
belong to the harness (``trimtab.benchmarks.training.train``).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from trimtab.algorithms.phases import Budget, Phase, default_phases
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.settings import CheckedSettings
from trimtab.types import Batch, BatchSpec, Metrics, Obs, PolicySpec, Statistics


@runtime_checkable
class Stateful(Protocol):
    """Anything that a checkpoint saves: a module or an optimiser."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors and numbers to save, by name."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Restore what ``state_dict`` returned."""
        ...


class PolicyFactory(Protocol):
    """Builds the configured policy for given shapes."""

    def __call__(self, spec: PolicySpec) -> Policy:
        """Return a policy with fresh weights."""
        ...


@dataclass(frozen=True)
class Setup:
    """The inputs that a run passes to the constructor of its algorithm.

    Attributes:
        spec: shapes and action limits of the task. ``spec.horizon`` is the number of actions that
            are executed for each decision; a policy may plan more.
        policy: builds the policy that the run configured, or None where ``policy=`` was not given.
        base: the policy that the run starts from or steers, or None where ``base=`` was not given.
        oracles: policies for the same task that the method may imitate; may be empty.
        expert: all decisions of a few good episodes, as chunks of ``act_steps`` actions on
            ``device``, or None where ``expert=`` was not given.
        statistics: statistics of the run's dataset, or None where ``dataset=`` was not given.
        num_envs: number of environments that are stepped in parallel.
        discount: gamma for one decision. ``Batch.discount`` contains it already: a method must not
            apply it again.
        device: device of all tensors.
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
        """Return the policy that training starts from: a copy of ``base``, or else a new policy.

        The normaliser of a new policy is fitted to the dataset, if there is one. All weights are
        trainable.
        """
        if self.base is not None:
            return copy.deepcopy(self.base).to(self.device).requires_grad_(True)
        assert self.policy is not None
        policy = self.policy(self.spec).to(self.device)
        if self.statistics is not None:
            policy.fit_normalizer(self.statistics)
        return policy

    @property
    def from_nothing(self) -> bool:
        """Whether training starts from a new policy, and without a dataset."""
        return self.base is None and self.statistics is None


@dataclass(frozen=True)
class Needs:
    """The inputs that a method requires of a run, and the fields of a dataset that it reads.

    Attributes:
        required: inputs, any of ``policy``, ``dataset``, ``base`` and ``oracles``. ``start``
            means a base, or a policy together with a dataset; ``Setup.start`` returns the policy
            that training then starts from. The harness names a missing input in one line.
        optional: inputs that the method uses if they are given: names as in ``required``, or
            ``expert``.
        base_kind: the only kind of policy that it can start from; empty: any kind.
        next_observations: whether it reads next observations. If not, it also gets those steps of a
            dataset whose next observation was not recorded.
        rewards: whether it learns from the rewards of a dataset. If so, a run without online steps
            is refused if the rewards of its dataset carry no information.
        transitions_only: whether ``setup.statistics`` leaves out the last observation of each
            episode, from which no transition starts.
        from_nothing: whether a ``start`` may also be a policy alone, whose observations the method
            then normalises by what it gathers.
        own_statistics: whether it scales rewards or observations by statistics of what it gathers,
            to which a dataset adds nothing; so it is refused one.
        base_state: whether its base may hand a state on from one decision to the next (a recurrent
            network). The state of a decision is then stored beside what was observed.
    """

    required: Set[str] = frozenset()
    optional: Set[str] = frozenset()
    base_kind: str = ""
    next_observations: bool = True
    rewards: bool = True
    transitions_only: bool = False
    from_nothing: bool = False
    own_statistics: bool = False
    base_state: bool = False


@dataclass(frozen=True)
class Pace:
    """The batch size of a method, and its ratio of updates to gathered steps.

    Attributes:
        batch_size: transitions in one gradient step.
        warmup_steps: environment steps before the first online update.
        updates_per_decision: online updates for each executed action chunk.
        rollout_steps: decisions of each environment in one ``Rollout``, which is passed to
            ``update`` once and then discarded. 0: ``update`` gets batches from a replay buffer or a
            dataset.
        skip_warmup_after_offline: whether warm-up actions are left out if offline updates came
            first. Online updates start after ``warmup_steps`` in either case.
    """

    batch_size: int
    warmup_steps: int = 0
    updates_per_decision: float = 0.0
    rollout_steps: int = 0
    skip_warmup_after_offline: bool = False


class Algorithm(metaclass=CheckedSettings):
    """A learner: :meth:`explore` acts, :meth:`update` learns, and ``policy`` is evaluated.

    A variant of a method is a subclass that overrides one of its methods, such as ``policy_loss``,
    and passes ``**keywords`` to its parent, so that no setting is written twice.

    Attributes:
        needs: the inputs that it requires, and the fields of a dataset that it reads.
        batch_spec: optional fields that its batches need; the constructor may set it.
        success_reward: a decision with at least this reward counts as a success, and the dataset
            must have successes and failures. None: the method does not look for successes.
        learns: whether there is anything to train. If so, a run with neither steps nor updates is
            refused.
        pace: the batch size, and the ratio of updates to gathered steps; the constructor sets it.
        updates: number of calls of ``update`` so far; methods with a schedule increment it at the
            end of the update.
        actor_every: updates for each step of the actor.
        last_metrics: the latest metrics of a part that only some updates train.
        policy: the policy that is evaluated and exported; the constructor sets it.
        unsaved: attributes that :meth:`state` leaves out, because they never change, affect no
            number, or are set again before they are read. Names of parent classes are added.
            Every other attribute that changes must be saved.
        revision: version of the method's mathematics. A change raises it by one, in the class that
            changes. Results of different revisions never share a table or a run's folder.
        capturable: whether a GPU can replay its updates: they read no number back, and change
            tensors alone. A child has to say so for itself: it may compute with numbers of
            Python's. ``trimtab check algorithm`` tests a method that says so.
        minibatch_updates: names of those of its methods that take a step on a minibatch of a
            rollout and return scalars; a GPU replays them, too.
        neutral: settings added after results were published, each with the value that reproduces
            those results. Runs with these values keep their identity.
        faithful: whether it follows its paper or the paper's code, apart from the deviations in its
            docstring. False for an adaptation, whose docstring says why.
        section: prefix of its settings in error messages.
        unused_settings: settings of a parent that have no effect here; giving one is an error.
    """

    # What it needs.
    needs: ClassVar[Needs] = Needs()
    batch_spec: BatchSpec = BatchSpec()
    success_reward: float | None = None
    learns: ClassVar[bool] = True
    # How it goes on.
    pace: Pace
    updates: int = 0
    actor_every: int = 1
    last_metrics: Mapping[str, float | Tensor] = MappingProxyType({})
    policy: Policy
    unsaved: ClassVar[frozenset[str]] = frozenset()
    # What identifies it, and its settings.
    revision: ClassVar[int] = 1
    neutral: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    capturable: ClassVar[bool] = False
    minibatch_updates: ClassVar[tuple[str, ...]] = ()
    faithful: ClassVar[bool] = True
    section: ClassVar[str] = "algorithm"
    unused_settings: ClassVar[frozenset[str]] = frozenset()

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes, without the batch dimension, of the tensors that :meth:`explore` stores.

        They come back in ``Batch.aux``.
        """
        return {}

    @property
    def actor_due(self) -> bool:
        """Whether the next update has a step of the actor."""
        return (self.updates + 1) % self.actor_every == 0

    @property
    def branch(self) -> Hashable:
        """What Python decides the next update by: where it is equal, updates do the same.

        A GPU captures the kernels of one update of each branch, and replays them for the others.
        A value that only changes numbers, such as a learning rate that falls, does not belong here:
        compute it from a tensor (``common.schedules.UpdateCount``). None: the next update is not
        captured, as it is rare or differs each time.
        """
        return self.actor_due

    @property
    def paced(self) -> bool:
        """Whether the next online update is one of those that ``pace`` counts.

        One that is not comes on top: no decision pays for it (``off_policy/mr_q.py``).
        """
        return True

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return raw actions ``[N, H, A]`` to execute, and tensors to store with them, by name.

        Args:
            obs: raw observations ``[N, O]``, or named parts.
            warmup: whether the run has taken fewer than ``pace.warmup_steps`` steps and, with
                ``pace.skip_warmup_after_offline``, has made no update at all. The method chooses
                its warm-up actions: SAC draws uniform ones, DSRL lets the base act.
        """
        raise TrimtabError(
            f"{type(self).__name__} learns from a dataset only; set online_steps=0 and give "
            "offline_steps"
        )

    @torch.no_grad()
    def continue_chunks(self, data: Batch) -> Tensor:
        """Return a batch's action chunks ``[B, H, A]``, completed where an episode cut them.

        Actions after the last executed one had no effect if the episode ended there. (After a time
        limit this is an approximation: without the limit the task would continue with them.) The
        actor queries its critic with complete chunks, so the critic must be trained on complete
        chunks: here the rest is what :meth:`explore` would do now, in gathered and recorded chunks
        alike. With a fixed rule, such as repeating the last action, the values of the actor's own
        chunks near the end of an episode would never be trained.
        """
        if data.action.shape[1] == 1 or data.whole:  # no chunk was cut
            return data.action
        planned, _ = self.explore(data.obs, warmup=False)
        return torch.where(data.valid[..., None], data.action, planned)

    def on_episode_end(self, rows: Sequence[int]) -> None:
        """Handle the end of episodes. By default nothing is done.

        In the next call of :meth:`explore` these rows hold first observations of new episodes.

        Simulations on a GPU that are started again because they are no longer finite are not named.

        Args:
            rows: indices of the environments whose episode has just ended.
        """
        return None

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Look at what each executed chunk earned, in the order of acting. By default do nothing.

        For statistics of rewards: those of sampled batches would depend on the number of updates.
        The transitions are stored by now, and the updates that they make due come after.

        Args:
            reward: ``[N]`` float32 reward of the chunk, of each environment.
            terminated: ``[N]`` bool, whether its episode has ended without a time limit.
            ended: ``[N]`` bool, whether it has ended, for any reason.
        """
        return None

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Return the phases of a run of this method, in order.

        By default ``update`` gets the dataset for ``offline_steps`` updates, and then gathered data
        for ``online_steps`` environment steps. The harness asks after it has constructed the
        method, and again when a run resumes; the answer must be the same.

        Args:
            budget: the updates and steps that the run may make.
        """
        return default_phases(budget, self.update, self.update)

    @abstractmethod
    def update(self, data: Any) -> Metrics:
        """Learn from one ``Batch``, or from one ``Rollout`` where ``pace.rollout_steps`` is not 0.

        Returns:
            Scalars by name, with the same names in every call: detached tensors, or numbers.
        """

    def state(self) -> Mapping[str, Stateful]:
        """Return every module and optimiser that changes during training, by attribute name.

        By default these are the attributes that have a ``state_dict``, except those in ``unsaved``.
        An object with two names is returned once. Objects inside a list or a dictionary are not
        found: a method that has some overrides this.
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
        """Return everything needed to continue exactly: nested tensors and numbers."""
        parts = {name: part.state_dict() for name, part in self.state().items()}
        return {**parts, "updates": self.updates, "last_metrics": dict(self.last_metrics)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``, so that learning continues exactly from it."""
        for name, part in self.state().items():
            part.load_state_dict(state[name])
        self.updates = int(state["updates"])
        self.last_metrics = dict(state["last_metrics"])
