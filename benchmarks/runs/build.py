"""Make what a run is made of: its data, its base policy, its method."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.benchmarks.data.offline_data import dataset_of_runs, file_hints, is_run, open_dataset
from trimtab.benchmarks.data.recipes import (
    check_recipe,
    is_recipe_section,
    recipe_identity,
    record_recipe,
)
from trimtab.benchmarks.runs.identity import document_of, hash_of
from trimtab.benchmarks.settings.config import RunConfig, class_of
from trimtab.datasets.catalog import find_external
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.ogbench.rewards import REWARDS_OF, numbered
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import checked_names, get_spec
from trimtab.files import read_json, sha256_file
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import (
    Bundle,
    bundle_hash,
    check_bundle,
    load_bundle,
    save_bundle,
)
from trimtab.policies.imports.sb3 import policy_from_sb3
from trimtab.types import PolicySpec, TrimtabError

logger = logging.getLogger(__name__)

_UNKNOWN = "unknown"  # environment of a dataset whose file does not say it


@dataclass(frozen=True)
class Components:
    """What a run is made of; ``identify`` knows all that decides its numbers, given its policy."""

    env: EnvSpec
    act_steps: int
    dataset: Dataset | None
    base: Bundle | None
    base_label: str | None
    policy_label: str | None
    make_algorithm: Callable[[], Algorithm]
    identify: Callable[[Policy], Mapping[str, Any]]

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """The document of all that decides the run's numbers; the method is made once for it."""
        return self.identify(self.make_algorithm().policy)

    @property
    def config_hash(self) -> str:
        """The hash that the run's folder and rows are named by."""
        return hash_of(self.identity)


def components(
    config: RunConfig, progress: Callable[[float], None] = lambda share: None
) -> Components:
    """Check and load all that ``config`` names, without making the algorithm yet.

    Args:
        config: settings of the run.
        progress: called with the share of the dataset that is there.

    Raises:
        TrimtabError: if anything is missing, unknown, or does not fit the task.
    """
    env = get_spec(config["env"], **checked_names(config["env_options"] or {}))
    target = config["algorithm"]["_target_"]
    algorithm: Any = class_of(target, "algorithm._target_")
    if not issubclass(algorithm, Algorithm):
        raise TrimtabError(
            f"algorithm._target_={target}: is no method: no child of {Algorithm.__qualname__} in "
            f"{Algorithm.__module__}"
        )
    from_data = config["offline_steps"] or config["offline_share"]
    used = algorithm.uses | ({"dataset"} if from_data else set())
    for given in ("base", "dataset", "policy"):
        if given in algorithm.uses and config[given] is None:
            raise TrimtabError(_missing(config, given))
        if given not in used and config[given] is not None:
            raise TrimtabError(f"{given}=…: {config.algorithm} makes no use of it; leave it out")
    if config["online_steps"] and algorithm.explore is Algorithm.explore:
        raise TrimtabError(
            f"online_steps={config['online_steps']}: {config.algorithm} does not learn from "
            "interaction; set online_steps=0"
        )
    dataset = None
    if config["dataset"] is not None:
        if "env" in config["dataset"]:  # known before anything is recorded
            check_recipe_fits(config["dataset"], env, other_task=config["other_task"])
        dataset = resolve_dataset(config, env, progress)
        check_dataset_fits(dataset.id, dataset.env, dataset.obs_dim, dataset.action_dim, env)
        check_rewards_fit(dataset, env)
        check_same_task(
            dataset.id, dataset.env, dataset.env_options, dataset.fingerprint, env,
            allowed=config["other_task"],
        )  # fmt: skip
    base = load_base(config["base"]) if config["base"] is not None else None
    for given in ("offline_steps", "offline_share", "dataset_weighting"):
        if config[given] and dataset is None:
            raise TrimtabError(f"{given}={config[given]}: {_missing(config, 'dataset')}")
    bases_steps = int(base.config["chunking"]["act_steps"]) if base is not None else 1
    act_steps = config["act_steps"] or bases_steps
    spec = PolicySpec(env.obs_dim, act_steps, env.action_dim, env.action_low, env.action_high)
    if base is not None:
        check_base_fits(base, spec, env)
        trained = base.config["env"]
        if trained["id"] == env.id and trained["options"] != dict(env.options):
            logger.warning(
                "base %s was trained with env_options %s, this run has %s",
                base.folder, trained["options"], dict(env.options),
            )  # fmt: skip

    policy = None
    if config["policy"] is not None:
        kind = dict(config["policy"])
        made_by: Any = class_of(kind.pop("_target_"), "policy._target_")
        policy = functools.partial(made_by, **kind)

    def make_algorithm() -> Algorithm:
        setup = Setup(
            spec=spec,
            policy=policy,
            base=base.policy if base is not None else None,
            statistics=(
                dataset.statistics(transitions_only=algorithm.statistics_of_transitions)
                if dataset is not None
                else None
            ),
            num_envs=config["num_envs"],
            discount=config["discount"],
            device=config["device"],
        )
        keywords = {k: v for k, v in config["algorithm"].items() if k != "_target_"}
        try:
            made: Algorithm = algorithm(setup, **keywords)
        except (
            TypeError,
            ValueError,
            RuntimeError,
            IndexError,
        ) as error:  # a size or rate out of range
            if isinstance(error, TrimtabError):
                raise
            raise TrimtabError(
                f"{config.algorithm} cannot be made with these settings: {error}; "
                "check algorithm.* and policy.*"
            ) from error
        return made

    base_policy = training(base).get("policy") if base is not None else None
    return Components(
        env=env,
        act_steps=act_steps,
        dataset=dataset,
        base=base,
        base_label=base_label(base) if base is not None else None,
        policy_label=config.policy or base_policy,
        make_algorithm=make_algorithm,
        identify=lambda policy: document_of(
            config,
            env,
            policy,
            act_steps=act_steps,
            dataset=data_identity(config, dataset) if dataset is not None else None,
            base=base_identity(config, base) if base is not None else None,
        ),
    )


def _missing(config: RunConfig, need: str) -> str:
    if need == "base":
        return f"{config.algorithm} starts from a base policy: add base=<a run or a bundle>"
    return f"{config.algorithm} needs {need}=…; trimtab list {need} shows what there is"


def data_identity(config: RunConfig, dataset: Dataset) -> dict[str, str]:
    """Return what a run's data is known by.

    A recipe is known by what defines it, so that the same recipe on another kind of processor,
    where last bits differ, is the same data. Everything else is known by its content.
    """
    recipe = config["dataset"]
    if is_recipe_section(recipe):
        return {"recipe": recipe_identity(recipe, Path(config["out"]))}
    return {"content": dataset.content_hash}


def base_identity(config: RunConfig, base: Bundle) -> str:
    """Return what a base is known by.

    A base that follows the seed is known by the configuration that trained it, so that the runs of
    one configuration share a hash; a single base is known by its files.
    """
    trained = training(base).get("config_hash")
    return str(trained) if config.base_follows_seed and trained else bundle_hash(base.folder)


def base_label(base: Bundle) -> str:
    """Return what the ``base`` column of result rows calls a base: method, kind, configuration."""
    parts = [training(base).get(key) for key in ("algorithm", "policy", "config_hash")]
    known = [str(part) for part in parts if part]
    return "-".join(known) if known else bundle_hash(base.folder)[:10]


def training(base: Bundle) -> Mapping[str, Any]:
    """Return what a bundle says of how it was trained."""
    return dict(base.config.get("training") or {})


def load_base(path: str) -> Bundle:
    """Open a run's policy or a bundle.

    Raises:
        TrimtabError: if there is none at ``path``, or it is damaged.
    """
    return load_bundle(policy_folder(path))


def export_bundle(run: Path, out: Path) -> dict[str, float]:
    """Write the policy of a run, or of a bundle, as a bundle with ONNX; return its replay errors.

    Raises:
        TrimtabError: if ``run`` has no policy, or the bundle cannot be written or does not replay.
    """
    bundle = load_base(str(run))
    env = bundle.config["env"]
    contract = {
        "env": env["id"],
        "env_options": env["options"],
        "env_horizon": env["horizon"],
        "fingerprint": env["fingerprint"],
        "control_rate": bundle.config["control_rate"],
        "act_steps": bundle.config["chunking"]["act_steps"],
        "training": training(bundle),
    }
    results = None
    if (run / "result.json").is_file():
        summary = read_json(run / "result.json", "result")
        results = {key: summary[key] for key in ("env", "episodes", "return", "success")}
    save_bundle(bundle.policy, out, contract=contract, results=results)
    return check_bundle(out)


def export_sb3(model: Path, env: str, out: Path) -> dict[str, float]:
    """Write a model that Stable-Baselines3 saved as a bundle with ONNX; return its replay errors.

    Args:
        model: the ``.zip``.
        env: the task that it was trained on.
        out: folder of the bundle.

    Raises:
        TrimtabError: if the model cannot be read or does not fit the task, or the bundle cannot be
            written.
    """
    task = get_spec(env)
    spec = PolicySpec(task.obs_dim, 1, task.action_dim, task.action_low, task.action_high)
    policy = policy_from_sb3(model, spec)
    contract = {
        "env": task.id,
        "env_horizon": task.horizon,
        "env_options": dict(task.options),
        "fingerprint": task.fingerprint,
        "control_rate": task.control_rate,
        "act_steps": 1,
        "training": {
            "algorithm": "stable_baselines3",
            "policy": policy.label,
            "file_sha256": sha256_file(model),
        },
    }
    save_bundle(policy, out, contract=contract)
    return check_bundle(out)


def policy_folder(path: str) -> Path:
    """Return the bundle's folder that ``path`` (a run or a bundle) names.

    Raises:
        TrimtabError: if ``path`` is neither.
    """
    folder = Path(path)
    if (folder / "policy" / "config.json").is_file():
        return folder / "policy"
    if (folder / "provenance.json").is_file():
        raise TrimtabError(f"{folder} is a run that has not finished; run it again to finish it")
    if not folder.exists():
        raise TrimtabError(f"{folder} does not exist; give the folder of a run or of a bundle")
    if folder.is_file():
        raise TrimtabError(
            f"{folder} is a file; give the folder of a run or of a bundle (trimtab export makes a "
            "bundle of a .zip of Stable-Baselines3)"
        )
    return folder


def check_base_fits(base: Bundle, spec: PolicySpec, env: EnvSpec) -> None:
    """Check that a base policy reads and commands what the task has.

    Raises:
        TrimtabError: naming what differs.
    """
    have = base.policy.spec
    for what, ours, theirs in (
        ("observation length", spec.obs_dim, have.obs_dim),
        ("action length", spec.action_dim, have.action_dim),
        ("action limits", (spec.action_low, spec.action_high), (have.action_low, have.action_high)),
    ):
        if ours != theirs:
            raise TrimtabError(
                f"base {base.folder} does not fit {env.id}: {what} {theirs} against {ours}; "
                "choose a base that was trained on a task with the same spaces"
            )
    if spec.horizon > have.horizon:
        raise TrimtabError(
            f"act_steps={spec.horizon}: base {base.folder} gives chunks of {have.horizon}"
        )


def check_dataset_fits(id: str, made_in: str, obs_dim: int, action_dim: int, env: EnvSpec) -> None:
    """Check that a dataset's shapes are those of the task.

    Raises:
        TrimtabError: naming what differs.
    """
    ours, theirs = (env.obs_dim, env.action_dim), (obs_dim, action_dim)
    if ours != theirs:
        raise TrimtabError(
            f"dataset {id} does not fit {env.id}: observation and action lengths "
            f"{theirs} against {ours}; it was made in {made_in}"
        )


def check_same_task(
    id: str,
    made_in: str,
    options: Mapping[str, Any],
    fingerprint: str | None,
    env: EnvSpec,
    *,
    allowed: bool,
) -> None:
    """Check that a dataset is of the task itself, as far as it says what it is of.

    Args:
        id: the dataset's.
        made_in: id of its task; a stranger's file may have the name without a family.
        options: its task's.
        fingerprint: of its physics, or None where it was not recorded here.
        env: task of the run.
        allowed: whether another task is only warned of (``other_task=true``).

    Raises:
        TrimtabError: naming both tasks.
    """
    name = env.id.partition("/")[2]
    if fingerprint is None:
        same = made_in in {_UNKNOWN, env.id, name} or name.startswith(f"{made_in}-")
        theirs, ours = made_in, env.id
    else:
        same = fingerprint == env.fingerprint
        theirs = f"{made_in} with env_options {dict(options)} and physics {fingerprint}"
        ours = f"{env.id} with {dict(env.options)} and {env.fingerprint}"
    if same:
        return
    differs = (
        f"dataset {id} is of {theirs}, this run is in {ours}: its rewards and ends may mean "
        "something else"
    )
    if not allowed:
        raise TrimtabError(f"{differs}; choose a dataset of this task, or add other_task=true")
    logger.warning("%s", differs)


def check_rewards_fit(dataset: Dataset, env: EnvSpec) -> None:
    """Check that rewards which were told from states for one task are used for that task.

    Raises:
        TrimtabError: naming both tasks.
    """
    task = dataset.recipe.get(REWARDS_OF)
    if task is not None and task != numbered(env.id):
        raise TrimtabError(
            f"dataset {dataset.id} has the rewards of {task}, not of {env.id}; convert the file "
            f"that it comes from with env={env.id}"
        )


def check_recipe_fits(recipe: Mapping[str, Any], env: EnvSpec, *, other_task: bool) -> None:
    """Check that a recipe's dataset would be of the task, before it is made.

    Args:
        recipe: the dataset's.
        env: task of the run.
        other_task: whether another task of the same shapes is allowed.

    Raises:
        TrimtabError: naming what differs, or what is wrong with the recipe's own task.
    """
    check_recipe(recipe)
    made_in = get_spec(recipe["env"], **(recipe.get("env_options") or {}))
    check_dataset_fits(recipe["id"], made_in.id, made_in.obs_dim, made_in.action_dim, env)
    if not other_task:  # the warning comes once, with the dataset
        check_same_task(
            recipe["id"], made_in.id, made_in.options, made_in.fingerprint, env, allowed=False
        )


def resolve_dataset(
    config: RunConfig, env: EnvSpec, progress: Callable[[float], None] = lambda share: None
) -> Dataset:
    """Load the dataset that ``config`` names; a recipe is made first where it is not on disk.

    Args:
        config: settings of the run.
        env: its task, which runs whose replay buffers are the dataset must share.
        progress: called with the share that is done.

    Raises:
        TrimtabError: if the file is missing, damaged or wrong, or the recipe fails.
    """
    recipe, out = config["dataset"], Path(config["out"])
    if "runs" in recipe:
        return dataset_of_runs(recipe["runs"], env)
    if "name" in recipe:
        path, hints = find_external(recipe["name"], env.id)
        return open_dataset(path, out, config["stream_above"], progress, **hints)
    if "path" in recipe and is_run(Path(recipe["path"])):
        return dataset_of_runs([recipe["path"]], env)
    if "path" not in recipe:
        folder = record_recipe(recipe, out, progress)
        return open_dataset(folder, out, config["stream_above"], progress)
    hints = file_hints(Path(recipe["path"]), recipe)
    hints["task"] = env.id
    return open_dataset(Path(recipe["path"]), out, config["stream_above"], progress, **hints)
