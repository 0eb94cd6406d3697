"""Make what a run is made of: its data, its base policy, its method."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.generator import Generator
from trimtab.benchmarks.core.memory import want_of_memory
from trimtab.benchmarks.training.base import (
    base_identity,
    base_label,
    check_base,
    load_base,
    oracles_of,
    training,
)
from trimtab.benchmarks.training.data.recipes import is_recipe_section
from trimtab.benchmarks.training.dataset import (
    check_recipe_fits,
    data_identity,
    data_without_task,
    expert_of,
    fitting_dataset,
    is_there,
)
from trimtab.benchmarks.training.held_out import Split, split_of
from trimtab.benchmarks.training.identity import document_of, hash_of
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.shapes import made_up_statistics, observation_mode, spec_of
from trimtab.benchmarks.training.without_task import spec_of_data
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import Reading
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import Bundle, bundle_hash
from trimtab.types import Batch, BatchSpec, PolicySpec, Statistics

__all__ = [
    "Components",
    "check_uses",
    "components",
    "make_method",
    "method_of",
    "policy_maker",
    "without_data",
]


@dataclass(frozen=True)
class Components:
    """What a run is made of; ``identify`` knows all that decides its numbers, given its policy.

    ``env`` is the data in the place of a task where there is none; ``described`` has the names and
    units of its observations and actions then. ``split`` has the episodes of ``dataset`` that are
    learned from, and those that are not.
    """

    env: EnvSpec
    described: Mapping[str, Any]
    act_steps: int
    observations: str
    dataset: Dataset | None
    split: Split
    base: Bundle | None
    base_label: str | None
    policy_label: str | None
    make_algorithm: Callable[[], Algorithm]
    make_generator: Callable[[Algorithm], Generator] | None
    identify: Callable[[Policy], Mapping[str, Any]]

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """The document of all that decides the run's numbers; the method is made once for it."""
        return self.identify(self.make_algorithm().policy)

    @functools.cached_property
    def start(self) -> dict[str, str | None]:
        """What the run starts from, as hashes: its base's policy and its data's content."""
        return {
            "base": bundle_hash(self.base.folder) if self.base is not None else None,
            "dataset": self.dataset.content_hash if self.dataset is not None else None,
        }

    @property
    def config_hash(self) -> str:
        """The hash that the run's folder and rows are named by."""
        return hash_of(self.identity)


def components(
    config: RunConfig,
    progress: Callable[[float], None] = lambda share: None,
    rehearse: Callable[[Components], None] = lambda parts: None,
) -> Components:
    """Check and load all that ``config`` names, without making the algorithm yet.

    Args:
        config: settings of the run.
        progress: called with the share of the dataset that is there.
        rehearse: called before a dataset is recorded, with all but that dataset, so that what would
            fail afterwards fails at once: statistics are made up, and hashes mean nothing.

    Raises:
        TrimtabError: if anything is missing, unknown, or does not fit the task.
    """
    if config["env"] is None:
        check_uses(config)
        data = data_without_task(config, progress)
        env, described = spec_of_data(config, data)
        return _assembled(config, env, _base_of(config), data, described)
    env, base = _task_and_base(config)
    if config["dataset"] is None or is_there(config, env):
        dataset = None if config["dataset"] is None else fitting_dataset(config, env, progress)
        return _assembled(config, env, base, dataset)
    rehearse(_assembled(config, env, base, None))
    return _assembled(config, env, base, fitting_dataset(config, env, progress))


def without_data(config: RunConfig) -> Components | None:
    """Return what a run is made of without its dataset, if that is a recipe's; else None.

    A recipe is known before it is recorded, so the run's identity is right; statistics are made up.

    Raises:
        TrimtabError: as :func:`components`.
    """
    if config["dataset"] is None or not is_recipe_section(config["dataset"]):
        return None
    env, base = _task_and_base(config)
    check_recipe_fits(config["dataset"], env, other_task=config["other_task"])
    return _assembled(config, env, base, None)


def _task_and_base(config: RunConfig) -> tuple[EnvSpec, Bundle | None]:
    """Return a run's task and base; all that it names is of use to its method."""
    env = get_spec(config["env"], **checked_names(config["env_options"] or {}))
    check_uses(config)
    if config["dataset"] is None:
        _check_nothing_is_of_data(config)
    return env, _base_of(config)


def _base_of(config: RunConfig) -> Bundle | None:
    return None if config["base"] is None else load_base(config["base"])


def _act_steps(config: RunConfig, env: EnvSpec, base: Bundle | None) -> int:
    """Return how many actions of a chunk are executed; without a word of it as many as the base's.

    Raises:
        TrimtabError: if an episode has fewer.
    """
    bases = int(base.config["chunking"]["act_steps"]) if base is not None else 1
    chosen: int = config["act_steps"] or bases
    if chosen > env.horizon:
        raise TrimtabError(
            f"act_steps={chosen}: an episode of {env.id} has {env.horizon} steps; give fewer"
        )
    return chosen


def _assembled(
    config: RunConfig,
    env: EnvSpec,
    base: Bundle | None,
    dataset: Dataset | None,
    described: Mapping[str, Any] = MappingProxyType({}),
) -> Components:
    """Put together what a run is made of; a dataset that it names may still be missing."""
    method = method_of(config)
    act_steps = _act_steps(config, env, base)
    reading = Reading() if base is None else base.policy.reading
    observations = config["observations"] or observation_mode(reading)
    history = config["history"] or reading.history
    spec = spec_of(env, act_steps, observations).with_history(history)
    if base is not None:
        check_base(base, spec, env, config.algorithm if "start" in method.needs.parts else None)
    oracles = oracles_of(config, spec, env)
    expert = expert_of(config, env)
    rows = None if expert is None else _decisions_of(expert, config, spec, env)
    policy = policy_maker(config)
    split = split_of(config, dataset)

    @functools.cache  # the method is made more than once: for its identity, and to learn
    def statistics() -> Statistics | None:
        return None if config["dataset"] is None else _statistics(split, method, spec, env)

    def setup() -> Setup:
        return Setup(
            spec=spec,
            policy=policy,
            base=base.policy if base is not None else None,
            oracles=tuple(oracle.policy for oracle in oracles),
            expert=rows,
            statistics=statistics(),
            num_envs=config["num_envs"],
            discount=config["discount"],
            device=config["device"],
        )

    return Components(
        env=env,
        described=described,
        act_steps=act_steps,
        observations=observations,
        dataset=dataset,
        split=split,
        base=base,
        base_label=base_label(base) if base is not None else None,
        policy_label=config.policy or (training(base).get("policy") if base else None),
        make_algorithm=lambda: make_method(config, method, setup()),
        make_generator=_generator_maker(config, setup),
        identify=lambda policy: document_of(
            config,
            env,
            policy,
            act_steps=act_steps,
            observations=observations,
            history=history,
            dataset=data_identity(config, dataset),
            base=base_identity(config, base) if base is not None else None,
            oracles=[bundle_hash(oracle.folder) for oracle in oracles],
            expert=None if expert is None else expert.content_hash,
            described=described,
        ),
    )


def _statistics(
    split: Split, method: type[Algorithm], spec: PolicySpec, env: EnvSpec
) -> Statistics:
    """Return the statistics of what a method learns from; made up ones before that is there."""
    if split.training is None:
        found = made_up_statistics(env)
    else:
        found = split.training.statistics(transitions_only=method.needs.transitions_only)
    return found.of_parts(env.obs_parts) if spec.parts else found


def _decisions_of(dataset: Dataset, config: RunConfig, spec: PolicySpec, env: EnvSpec) -> Batch:
    """Return every decision of a small dataset, as the run's own data is given to its method."""
    buffer = ReplayBuffer.from_dataset(
        dataset,
        window=spec.horizon,
        discount=config["discount"],
        chunked=True,
        device=config["device"],
        successors=False,
        parts=env.obs_parts if spec.parts else None,
        wants=BatchSpec(history=spec.history),
    )
    return buffer.whole()


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


def check_uses(config: RunConfig) -> None:
    """Check that a run's method has what it uses, and is given nothing else.

    Raises:
        TrimtabError: naming the setting that it lacks, or makes no use of.
    """
    method = method_of(config)
    from_data = config["offline_steps"] or config["offline_share"]
    needed = method.needs.parts - {"start"} | (
        _start_of(config) if "start" in method.needs.parts else set()
    )
    used = needed | method.needs.options | ({"dataset"} if from_data else set())
    for given in ("base", "dataset", "policy", "oracles", "expert"):
        value = config.settings.get(given)  # settings of an earlier version lack the later ones
        if given in needed and value is None:
            raise TrimtabError(_missing(config, given))
        if given not in used and value is not None:
            hint = ", or add offline_steps=… or offline_share=…" if given == "dataset" else ""
            raise TrimtabError(
                f"{given}=…: {config.algorithm} makes no use of it; leave it out{hint}"
            )
    for given in ("offline_steps", "offline_share", "dataset_weighting"):
        if config[given] and config["dataset"] is None:
            raise TrimtabError(f"{given}={config[given]}: {_missing(config, 'dataset')}")


def _check_nothing_is_of_data(config: RunConfig) -> None:
    """Check that a run without a dataset has no setting that is about one."""
    about = ("offline_steps", "offline_share", "dataset_weighting", "holdout")
    asked = {key: config[key] for key in about}
    for name, value in {**asked, "source": config.source}.items():
        if value:
            raise TrimtabError(f"{name}={value}: {_missing(config, 'dataset')}")


def _start_of(config: RunConfig) -> set[str]:
    """Return what a method learns on from, for one that takes a base or a policy of its own."""
    if config["base"] is None and config["policy"] is None:
        raise TrimtabError(
            f"{config.algorithm} starts from a base policy, or from a new one with a dataset: add "
            "base=<a run or a bundle>, or policy=… dataset=…"
        )
    if config["base"] is not None and config["policy"] is not None:
        raise TrimtabError(
            f"base=… policy=…: {config.algorithm} starts from one of the two; leave the other out"
        )
    return {"base"} if config["base"] is not None else {"policy", "dataset"}


def policy_maker(config: RunConfig) -> Callable[..., Policy] | None:
    """Return what makes the policy that is chosen, given its shapes; None where none is."""
    if config["policy"] is None:
        return None
    keywords = dict(config["policy"])
    made_by: Any = class_of(keywords.pop("_target_"), "policy._target_")
    return functools.partial(made_by, **keywords)


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


def _generator_maker(
    config: RunConfig, setup: Callable[[], Setup]
) -> Callable[[Algorithm], Generator] | None:
    """Return what makes the generator that is chosen, given the method; None where none is."""
    section = config["source"]
    if section is None:
        return None
    construct: Callable[..., Generator] = class_of(section["_target_"], "source._target_")

    def make(learner: Algorithm) -> Generator:
        with _one_line(f"source={config.source} cannot be made", "source.*"):
            return construct(setup(), learner, **_keywords(section))

    return make


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


def _missing(config: RunConfig, need: str) -> str:
    if need == "oracles":
        return f"{config.algorithm} imitates others: add oracles=[<a run or a bundle>,…]"
    if need == "base":
        return f"{config.algorithm} starts from a base policy: add base=<a run or a bundle>"
    return f"{config.algorithm} needs {need}=…; trimtab list {need} shows what there is"
