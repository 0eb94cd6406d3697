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
from trimtab.algorithms.phases import Phase
from trimtab.benchmarks.core.memory import want_of_memory
from trimtab.benchmarks.training.base import base_identity, base_label, load_base, training
from trimtab.benchmarks.training.data.recipes import is_recipe_section
from trimtab.benchmarks.training.dataset import data_identity, load_dataset, load_expert
from trimtab.benchmarks.training.goals import goals_of
from trimtab.benchmarks.training.held_out import Split, split_of
from trimtab.benchmarks.training.identity import document_of, hash_of
from trimtab.benchmarks.training.random_states import random_states, set_random_states
from trimtab.benchmarks.training.result import budget_of
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
from trimtab.policies.agent import Reading
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import Bundle, bundle_hash
from trimtab.types import Batch, BatchSpec, PolicySpec, Statistics

__all__ = ["Learner", "Plan", "make_method", "method_of", "policy_maker"]


@dataclass(frozen=True)
class Learner:
    """What a run trains, as it is made from the run's seed.

    Attributes:
        algorithm: the method.
        generator: makes the data that it learns from; None where the dataset itself does.
        phases: what a run of the method goes through.
        random: states of the global generators after the making, where the run goes on.
    """

    algorithm: Algorithm
    generator: Generator | None
    phases: tuple[Phase, ...]
    random: Mapping[str, Any]


class Plan:
    """What one run is made of. Each part is opened or made when it is first asked for, and once.

    That the parts fit one another is checked by :mod:`trimtab.benchmarks.training.fits`.

    Attributes:
        config: settings of the run.
        dataset: its data; None where it has none, and before :meth:`load_dataset` where a recipe
            makes them.

    Args:
        config: settings of the run.
        progress: called with the share of the dataset that is there.
    """

    def __init__(
        self, config: RunConfig, progress: Callable[[float], None] = lambda share: None
    ) -> None:
        self.config, self._progress = config, progress
        self._recorded: Dataset | None = None

    @functools.cached_property
    def method(self) -> type[Algorithm]:
        """The class of the run's method."""
        return method_of(self.config)

    @functools.cached_property
    def _task(self) -> tuple[EnvSpec, Mapping[str, Any]]:
        if self.config["env"] is None:
            assert self._file is not None
            return spec_of_data(self.config, self._file)
        options = checked_names(self.config["env_options"] or {})
        return get_spec(self.config["env"], **options), {}

    @property
    def env(self) -> EnvSpec:
        """The run's task; without a task the data in its place."""
        return self._task[0]

    @property
    def described(self) -> Mapping[str, Any]:
        """Names and units of observations and actions of a run without a task."""
        return self._task[1]

    @functools.cached_property
    def base(self) -> Bundle | None:
        """The policy that the run starts from."""
        return None if self.config["base"] is None else load_base(self.config["base"])

    @functools.cached_property
    def oracles(self) -> tuple[Bundle, ...]:
        """Policies that the method may imitate."""
        # settings of an earlier version lack the later ones
        return tuple(load_base(path) for path in self.config.settings.get("oracles") or ())

    @functools.cached_property
    def expert(self) -> Dataset | None:
        """Episodes that guide the method."""
        return load_expert(self.config, self.env)

    @property
    def makes_data(self) -> bool:
        """Whether the dataset is a recipe's, so that the run is known before it is recorded."""
        return is_recipe_section(self.config["dataset"])

    @functools.cached_property
    def _file(self) -> Dataset | None:
        """Data that are read, not made: they are known by their content."""
        if self.config["dataset"] is None or self.makes_data:
            return None
        env = None if self.config["env"] is None else self.env
        return load_dataset(self.config, env, self._progress)

    @property
    def dataset(self) -> Dataset | None:
        """See the class."""
        return self._recorded if self.makes_data else self._file

    def load_dataset(self) -> None:
        """Open the run's data; where a recipe makes them and they are not there, record them.

        Raises:
            TrimtabError: if they are missing, damaged or wrong, or cannot be recorded.
        """
        if self.makes_data and self._recorded is None:
            self._recorded = load_dataset(self.config, self.env, self._progress)
            for part in (
                "split",
                "statistics",
                "_setup",
                "learner",
            ):  # made without the data so far
                self.__dict__.pop(part, None)

    @functools.cached_property
    def split(self) -> Split:
        """The episodes of the dataset that are learned from, and those that are not."""
        return split_of(self.config, self.dataset)

    @functools.cached_property
    def act_steps(self) -> int:
        """How many actions of a chunk are executed; without a word of it as many as the base's."""
        if self.config["act_steps"] is not None:
            return int(self.config["act_steps"])
        return 1 if self.base is None else int(self.base.config["chunking"]["act_steps"])

    @functools.cached_property
    def _reading(self) -> Reading:
        return Reading() if self.base is None else self.base.policy.reading

    @property
    def observations(self) -> str:
        """How observations are given: ``flat`` or ``dict``."""
        return str(self.config["observations"] or observation_mode(self._reading))

    @property
    def history(self) -> int:
        """Observations that the policy reads."""
        return int(self.config["history"] or self._reading.history)

    @functools.cached_property
    def spec(self) -> PolicySpec:
        """Shapes and limits of the run's policy."""
        shapes = spec_of(self.env, self.act_steps, self.observations)
        return shapes.with_history(self.history)

    @functools.cached_property
    def statistics(self) -> Statistics | None:
        """Those of what the method learns from; made up before the data are there."""
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
        """Return every decision of a small dataset, in the form of the run's own data."""
        buffer = ReplayBuffer.from_dataset(
            dataset,
            window=self.act_steps,
            discount=self.config["discount"],
            chunked=True,
            device=self.config["device"],
            successors=False,
            parts=self.env.obs_parts if self.spec.parts else None,
            wants=BatchSpec(history=self.history),
        )
        return buffer.whole()

    @functools.cached_property
    def learner(self) -> Learner:
        """What the run trains."""
        return self.make_learner()

    def make_learner(self) -> Learner:
        """Make what the run trains, from its seed; the caller's random states stay as they are."""
        config = self.config
        kept, threads = random_states(config["device"]), torch.get_num_threads()
        torch.set_num_threads(config["threads"])
        try:
            start_torch(config["seed"], config["threads"])
            algorithm = make_method(config, self.method, self._setup)
            generator = self._make_generator(algorithm)
            phases = algorithm.phases(budget_of(config))
            return Learner(algorithm, generator, phases, random_states(config["device"]))
        finally:
            torch.set_num_threads(threads)
            set_random_states(config["device"], kept)

    def _make_generator(self, algorithm: Algorithm) -> Generator | None:
        section = self.config["source"]
        if section is None:
            return None
        construct: Callable[..., Generator] = class_of(section["_target_"], "source._target_")
        with _one_line(f"source={self.config.source} cannot be made", "source.*"):
            return construct(self._setup, algorithm, **_keywords(section))

    @property
    def algorithm(self) -> Algorithm:
        """The run's method."""
        return self.learner.algorithm

    @functools.cached_property
    def goals(self) -> Goals | None:
        """The goals of the task, where the method relabels them."""
        if self.algorithm.wants.goal is None:
            return None
        return goals_of(self.env, self.config.algorithm, self.act_steps)

    @property
    def base_label(self) -> str | None:
        """What result tables call the base."""
        return None if self.base is None else base_label(self.base)

    @property
    def policy_label(self) -> str | None:
        """What result tables call the policy, as far as the settings or the base tell."""
        return self.config.policy or (training(self.base).get("policy") if self.base else None)

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """The document of all that decides the run's numbers."""
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
            oracles=[bundle_hash(oracle.folder) for oracle in self.oracles],
            expert=None if self.expert is None else self.expert.content_hash,
            described=self.described,
        )

    @property
    def config_hash(self) -> str:
        """The hash that the run's folder and rows are named by."""
        return hash_of(self.identity)

    @functools.cached_property
    def start(self) -> dict[str, str | None]:
        """What the run starts from, as hashes: its base's policy and its data's content."""
        return {
            "base": bundle_hash(self.base.folder) if self.base is not None else None,
            "dataset": self.dataset.content_hash if self.dataset is not None else None,
        }


def method_of(config: RunConfig) -> type[Algorithm]:
    """Return the class of a run's method.

    Raises:
        TrimtabError: if it cannot be imported, or is no method.
    """
    target = config["algorithm"]["_target_"]
    method = class_of(target, "algorithm._target_")
    if not issubclass(method, Algorithm):
        raise TrimtabError(
            f"algorithm._target_={target}: is no method: no child of {Algorithm.__qualname__} in "
            f"{Algorithm.__module__}"
        )
    return method


def policy_maker(config: RunConfig) -> Callable[..., Policy] | None:
    """Return what makes the policy that is chosen, given its shapes; None where none is."""
    if config["policy"] is None:
        return None
    made_by: Any = class_of(config["policy"]["_target_"], "policy._target_")
    return functools.partial(made_by, **_keywords(config["policy"]))


def make_method(config: RunConfig, method: type[Algorithm], setup: Setup) -> Algorithm:
    """Make a method; a size or a rate that it cannot have is one line."""
    construct: Callable[..., Algorithm] = method
    with _one_line(f"{config.algorithm} cannot be made", "algorithm.* and policy.*"):
        made = construct(setup, **_keywords(config["algorithm"]))
    acts, state = getattr(made, "policy", None), made.state()
    if not isinstance(acts, Policy):
        raise TrimtabError(
            f"{config.algorithm}: its policy is of type {type(acts).__name__}; a method sets "
            "self.policy to the Policy that acts"
        )
    if not isinstance(getattr(made, "pace", None), Pace):
        raise TrimtabError(
            f"{config.algorithm}: it has no pace; a method sets self.pace = Pace(batch_size=…)"
        )
    parts = state if isinstance(state, Mapping) else {"": state}
    for name, part in parts.items():
        if not all(hasattr(part, has) for has in ("state_dict", "load_state_dict")):
            raise TrimtabError(
                f"{config.algorithm}: state() has {name} of type {type(part).__name__}; it gives "
                "modules and optimisers by name"
            )
    return made


def _keywords(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "_target_"}


@contextmanager
def _one_line(what: str, where: str) -> Iterator[None]:
    """Say in one line what a constructor does not take."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, TrimtabError) or want_of_memory(error):
            raise
        raise TrimtabError(f"{what} with these settings: {error}; check {where}") from error
