"""What a run is made of, resolved once from its settings: task, base, data, method, identity."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.generator import Generator
from trimtab.algorithms.phases import Budget, Phase
from trimtab.benchmarks.core.memory import want_of_memory
from trimtab.benchmarks.training.base import base_identity, base_label, load_base, training
from trimtab.benchmarks.training.data.recipes import is_recipe_section
from trimtab.benchmarks.training.dataset import data_identity, load_dataset, load_expert
from trimtab.benchmarks.training.goals import goals_of
from trimtab.benchmarks.training.held_out import Split, split_of
from trimtab.benchmarks.training.identity import document_of, hash_of
from trimtab.benchmarks.training.random_states import random_states, set_random_states
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.shapes import made_up_statistics, observation_mode, spec_of
from trimtab.benchmarks.training.torch_state import start_torch
from trimtab.benchmarks.training.without_task import spec_of_data
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.sources.relabel import Goals
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import PolicyInputs
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import Bundle
from trimtab.types import Batch, BatchSpec, PolicySpec, Statistics

__all__ = ["InitialState", "Plan", "make_method", "method_of", "policy_maker"]


@dataclass(frozen=True)
class InitialState:
    """A run's method as its seed initialises it, and what belongs to it.

    Attributes:
        algorithm: the method.
        generator: makes the data that the method learns from; None if the dataset does.
        phases: the phases of the run, in order.
        random: states of the global random generators after initialisation; the run
            continues from them.
    """

    algorithm: Algorithm
    generator: Generator | None
    phases: tuple[Phase, ...]
    random: Mapping[str, Any]


class Plan:
    """The parts of one run, each opened or made at its first use.

    A recipe's data make statistics and method anew: the hash, which names the folder, needs a
    method before there are data.

    :mod:`trimtab.benchmarks.training.fits` checks that the parts fit one another.

    Attributes:
        config: settings of the run.

    Args:
        config: settings of the run.
        progress: called with the share of the dataset that is loaded or recorded.
    """

    def __init__(
        self, config: RunConfig, progress: Callable[[float], None] = lambda share: None
    ) -> None:
        self.config, self._progress = config, progress
        self._recorded_dataset: Dataset | None = None

    @functools.cached_property
    def method(self) -> type[Algorithm]:
        """The class of the run's method."""
        return method_of(self.config)

    @functools.cached_property
    def _task(self) -> tuple[EnvSpec, Mapping[str, Any]]:
        if self.config["env"] is None:
            assert self._stored_dataset is not None
            return spec_of_data(self.config, self._stored_dataset)
        options = checked_names(self.config["env_options"] or {})
        return get_spec(self.config["env"], **options), {}

    @property
    def env(self) -> EnvSpec:
        """The run's task; without one, a specification derived from its dataset."""
        return self._task[0]

    @property
    def described(self) -> Mapping[str, Any]:
        """Names and units of observations and actions without a task; empty with one."""
        return self._task[1]

    @functools.cached_property
    def base(self) -> Bundle | None:
        """The policy that the run starts from."""
        return None if self.config["base"] is None else load_base(self.config["base"])

    @functools.cached_property
    def oracles(self) -> tuple[Bundle, ...]:
        """Policies that the method may imitate."""
        # Settings that an earlier version saved may lack it.
        return tuple(load_base(path) for path in self.config.settings.get("oracles") or ())

    @functools.cached_property
    def expert(self) -> Dataset | None:
        """Demonstrations that guide the method; None if the run names none."""
        return load_expert(self.config, self.env)

    @property
    def makes_data(self) -> bool:
        """Whether a recipe records the dataset; its identity is known before that."""
        return is_recipe_section(self.config["dataset"])

    @functools.cached_property
    def _stored_dataset(self) -> Dataset | None:
        """The dataset that is read from disk; None without one, or with a recipe."""
        if self.config["dataset"] is None or self.makes_data:
            return None
        env = None if self.config["env"] is None else self.env
        return load_dataset(self.config, env, self._progress)

    @property
    def dataset(self) -> Dataset | None:
        """The run's data; None if it has none, or a recipe has not recorded them yet."""
        return self._recorded_dataset if self.makes_data else self._stored_dataset

    def load_dataset(self) -> None:
        """Open a recipe's dataset, and record it if it is missing; do nothing for other data.

        Raises:
            TrimtabError: if they are missing, damaged or wrong, or cannot be recorded.
        """
        if self.makes_data and self._recorded_dataset is None:
            self._recorded_dataset = load_dataset(self.config, self.env, self._progress)
            # They were made without the data.
            parts: Any = (Plan.split, Plan.statistics, Plan._setup, Plan.initial_state)
            for part in parts:
                self.__dict__.pop(part.attrname, None)

    @functools.cached_property
    def split(self) -> Split:
        """The dataset's episodes, split into training and held-out ones."""
        return split_of(self.config, self.dataset)

    @functools.cached_property
    def act_steps(self) -> int:
        """Executed actions of a chunk: ``act_steps``, else the base's, else one."""
        if self.config["act_steps"] is not None:
            return int(self.config["act_steps"])
        return 1 if self.base is None else int(self.base.config["chunking"]["act_steps"])

    @functools.cached_property
    def _base_inputs(self) -> PolicyInputs:
        """What the base reads of an environment; the default without a base."""
        return PolicyInputs() if self.base is None else self.base.policy.inputs

    @property
    def observations(self) -> str:
        """How observations are given: ``flat`` or ``dict``."""
        return str(self.config["observations"] or observation_mode(self._base_inputs))

    @property
    def history(self) -> int:
        """How many of the last observations the policy reads."""
        return int(self.config["history"] or self._base_inputs.history)

    @functools.cached_property
    def spec(self) -> PolicySpec:
        """Shapes and limits of the run's policy."""
        shapes = spec_of(self.env, self.act_steps, self.observations)
        return shapes.with_history(self.history)

    @functools.cached_property
    def statistics(self) -> Statistics | None:
        """Statistics of the training data; placeholders until a recipe has recorded them."""
        if self.config["dataset"] is None:
            return None
        if self.split.training is None:
            found = made_up_statistics(self.env)
        else:
            only = self.method.needs.transitions_only
            found = self.split.training.statistics(transitions_only=only)
        return found.of_parts(self.env.obs_parts) if self.spec.parts else found

    @functools.cached_property
    def _setup(self) -> Setup:
        config = self.config
        return Setup(
            spec=self.spec,
            policy=policy_maker(config),
            base=self.base.policy if self.base is not None else None,
            oracles=tuple(oracle.policy for oracle in self.oracles),
            expert=None if self.expert is None else self._decisions_of(self.expert),
            statistics=self.statistics,
            num_envs=config["num_envs"],
            discount=config["discount"],
            device=config["device"],
        )

    def _decisions_of(self, dataset: Dataset) -> Batch:
        """Return every decision of a small dataset as one batch, in the run's format."""
        buffer = ReplayBuffer.from_dataset(
            dataset,
            window=self.act_steps,
            discount=self.config["discount"],
            chunked=True,
            device=self.config["device"],
            successors=False,
            parts=self.env.obs_parts if self.spec.parts else None,
            batch_spec=BatchSpec(history=self.history),
        )
        return buffer.whole()

    @functools.cached_property
    def initial_state(self) -> InitialState:
        """The method as the run's seed initialises it; the caller's random states stay."""
        config = self.config
        random_before = random_states(config["device"])
        threads_before = torch.get_num_threads()
        torch.set_num_threads(config["threads"])
        try:
            start_torch(config["seed"], config["threads"])
            algorithm = make_method(config, self.method, self._setup)
            generator = self._make_generator(algorithm)
            phases = algorithm.phases(Budget(config["offline_steps"], config["online_steps"]))
            return InitialState(algorithm, generator, phases, random_states(config["device"]))
        finally:
            torch.set_num_threads(threads_before)
            set_random_states(config["device"], random_before)

    def _make_generator(self, algorithm: Algorithm) -> Generator | None:
        section = self.config["source"]
        if section is None:
            return None
        construct: Callable[..., Generator] = class_of(section["_target_"], "source._target_")
        with _constructor_errors(f"source={self.config.source} cannot be made", "source.*"):
            return construct(self._setup, algorithm, **_keywords(section))

    @property
    def algorithm(self) -> Algorithm:
        """The run's method, initialised from its seed."""
        return self.initial_state.algorithm

    @functools.cached_property
    def goals(self) -> Goals | None:
        """The task's goals if the method relabels goals, else None."""
        if self.algorithm.batch_spec.goal is None:
            return None
        return goals_of(self.env, self.config.algorithm, self.act_steps)

    @property
    def base_hash(self) -> str | None:
        """The hash of the files of the base's policy."""
        return None if self.base is None else self.base.hash

    @property
    def base_label(self) -> str | None:
        """The base's name in result tables."""
        return None if self.base is None else base_label(self.base)

    @property
    def policy_label(self) -> str | None:
        """The policy's name in result tables, if the settings or the base give one."""
        return self.config.policy or (training(self.base).get("policy") if self.base else None)

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the run's numbers, as a JSON document."""
        config = self.config
        return document_of(
            config,
            self.env,
            self.algorithm.policy,
            act_steps=self.act_steps,
            observations=self.observations,
            history=self.history,
            dataset=data_identity(config, self.dataset),
            base=None if self.base is None else base_identity(config, self.base),
            oracles=[oracle.hash for oracle in self.oracles],
            expert=None if self.expert is None else self.expert.content_hash,
            described=self.described,
        )

    @functools.cached_property
    def config_hash(self) -> str:
        """The hash of ``identity``; it names the run's folder and is in its rows."""
        return hash_of(self.identity)


def method_of(config: RunConfig) -> type[Algorithm]:
    """Return the class of a run's method.

    Raises:
        TrimtabError: if it cannot be imported, or is no method.
    """
    target = config["algorithm"]["_target_"]
    method = class_of(target, "algorithm._target_")
    if not issubclass(method, Algorithm):
        raise TrimtabError(
            f"algorithm._target_={target}: must be a subclass of {Algorithm.__module__}."
            f"{Algorithm.__qualname__}"
        )
    return method


def policy_maker(config: RunConfig) -> Callable[..., Policy] | None:
    """Return a constructor of the chosen policy that takes its shapes, or None."""
    if config["policy"] is None:
        return None
    policy_class: Any = class_of(config["policy"]["_target_"], "policy._target_")
    return functools.partial(policy_class, **_keywords(config["policy"]))


def make_method(config: RunConfig, method: type[Algorithm], setup: Setup) -> Algorithm:
    """Construct a method and check its policy, pace and state."""
    construct: Callable[..., Algorithm] = method
    with _constructor_errors(f"{config.algorithm} cannot be made", "algorithm.* and policy.*"):
        made = construct(setup, **_keywords(config["algorithm"]))
    policy = getattr(made, "policy", None)
    if not isinstance(policy, Policy):
        raise TrimtabError(
            f"{config.algorithm}: its policy is of type {type(policy).__name__}; a method sets "
            "self.policy to the Policy that acts"
        )
    if not isinstance(getattr(made, "pace", None), Pace):
        raise TrimtabError(
            f"{config.algorithm}: it has no pace; a method sets self.pace = Pace(batch_size=…)"
        )
    state: Any = made.state()
    if not isinstance(state, Mapping):
        raise TrimtabError(
            f"{config.algorithm}: state() is of type {type(state).__name__}; return a dict of "
            "modules and optimisers"
        )
    for name, part in state.items():
        if not all(hasattr(part, function) for function in ("state_dict", "load_state_dict")):
            raise TrimtabError(
                f"{config.algorithm}: state() has {name} of type {type(part).__name__}; return a "
                "dict of modules and optimisers"
            )
    return made


def _keywords(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "_target_"}


@contextmanager
def _constructor_errors(what: str, where: str) -> Iterator[None]:
    """Turn an error of a constructor into a TrimtabError of one line."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, TrimtabError) or want_of_memory(error):
            raise
        line = " ".join(str(error).split())
        raise TrimtabError(f"{what} with these settings: {line}; check {where}") from error
