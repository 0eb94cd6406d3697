"""Whether a policy, a dataset or a recipe is of a task: its shapes, its limits, the task itself."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping
from typing import Any

from trimtab.benchmarks.training.data.recipes import check_recipe
from trimtab.benchmarks.training.shapes import OBSERVATIONS, observation_mode, read_by
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.ogbench.rewards import REWARDS_OF, numbered
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import PolicyInputs
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.memory import state_parts
from trimtab.types import PolicySpec

__all__ = ["check_dataset_fits", "check_policy_fits", "check_recipe_fits", "check_same_task"]

logger = logging.getLogger(__name__)

_UNKNOWN = "unknown"  # environment of a dataset whose file does not say it


def check_policy_fits(
    bundle: Bundle, spec: PolicySpec, env: EnvSpec, *, called: str, states: bool = False
) -> None:
    """Check that a policy reads and commands what a task has.

    Args:
        bundle: the policy.
        spec: what the task asks of it.
        env: the task.
        called: what its user named it as: ``base`` or ``oracle`` of a run, or a ``policy`` that is
            judged.
        states: whether its user keeps the state that it hands on.

    Raises:
        TrimtabError: naming what differs.
    """
    have, where = bundle.policy.spec, f"{called} {bundle.folder}"
    theirs = observation_mode(bundle.policy.inputs)
    ours = observation_mode(PolicyInputs(parts=spec.parts))
    if called != "policy" and theirs != ours:
        raise TrimtabError(
            f"{where} reads {OBSERVATIONS[theirs]} (observations={theirs}), and this run gives "
            f"{OBSERVATIONS[ours]} (observations={ours}); write observations={theirs}, or give "
            f"another {called}"
        )
    kept = state_parts(have.parts) if states and 0 in bundle.policy.noise_shape else {}
    remembered = [n for n, part in have.parts.items() if part.remembered and n not in kept]
    if called != "policy" and remembered:
        raise TrimtabError(
            f"{where} reads {', '.join(remembered)} of its episode, which this method does not "
            "keep (residual keeps the state of a base without noise); judge it by trimtab "
            f"evaluate, or give another {called}"
        )
    if spec.history != have.history:
        raise TrimtabError(f"history={spec.history}: {where} reads {have.history}; leave it out")
    trained = int(bundle.config["chunking"]["act_steps"])
    if have.history > 1 and spec.horizon != trained:
        raise TrimtabError(
            f"act_steps={spec.horizon}: {where} reads observations of its last decisions, "
            f"{trained} steps apart; leave act_steps out"
        )
    for what, here, there in (
        ("observation length", read_by(spec), read_by(have)),
        ("action length", spec.action_dim, have.action_dim),
        ("action limits", (spec.action_low, spec.action_high), (have.action_low, have.action_high)),
    ):
        if here != there:
            raise TrimtabError(
                f"{where} does not fit {env.id}: {what} {there} against {here}; give another "
                f"{called}, trained on a task with the same spaces"
            )
    if spec.horizon > have.horizon:
        raise TrimtabError(f"act_steps={spec.horizon}: {where} gives chunks of {have.horizon}")


def check_recipe_fits(recipe: Mapping[str, Any], env: EnvSpec, *, other_task: bool) -> None:
    """Check that a recipe's dataset would be of a task; see :func:`check_dataset_fits`."""
    check_recipe(recipe)
    made_in = get_spec(recipe["env"], **(recipe.get("env_options") or {}))
    _check_shapes(recipe["id"], made_in.id, (made_in.obs_dim, made_in.action_dim), env)
    if not other_task:  # the warning comes once, with the dataset
        check_same_task(
            recipe["id"], made_in.id, made_in.options, made_in.fingerprint, env, allowed=False
        )


def check_dataset_fits(
    dataset: Dataset, env: EnvSpec, *, other_task: bool, named: str = "dataset"
) -> None:
    """Check that a dataset is of a task.

    Args:
        dataset: the data.
        env: the task.
        other_task: whether data of another task of the same shapes are only warned of.
        named: the setting that names the data.

    Raises:
        TrimtabError: naming what differs.
    """
    called = dataset.id if named == "dataset" else f"{dataset.id} ({named}=…)"
    _check_shapes(called, dataset.env, (dataset.obs_dim, dataset.action_dim), env)
    task = dataset.recipe.get(REWARDS_OF)
    if task is not None and task != numbered(env.id):
        raise TrimtabError(
            f"dataset {called} has the rewards of {task}, not of {env.id}; convert the file that "
            f"it comes from with env={env.id}"
        )
    check_same_task(
        called, dataset.env, dataset.env_options, dataset.fingerprint, env, allowed=other_task
    )


def _check_shapes(called: str, made_in: str, theirs: tuple[int, int], env: EnvSpec) -> None:
    ours = (env.obs_dim, env.action_dim)
    if ours != theirs:
        raise TrimtabError(
            f"dataset {called} does not fit {env.id}: observation and action lengths "
            f"{theirs} against {ours}; it was made in {made_in}"
        )


def check_same_task(
    called: str,
    made_in: str,
    options: Mapping[str, Any],
    fingerprint: str | None,
    env: EnvSpec,
    *,
    allowed: bool,
) -> None:
    """Check that a dataset is of the task itself, as far as it says what it is of.

    ``other_task`` is in no run's identity: it changes no number, and the identity already has the
    data, with its task.

    Args:
        called: the dataset.
        made_in: id of its task; a stranger's file may have the name without a family.
        options: its task's.
        fingerprint: of its physics, or None where it was not recorded here.
        env: task of the run.
        allowed: whether another task is only warned of (``other_task=true``).

    Raises:
        TrimtabError: naming both tasks.
    """
    # A file of others has Gymnasium's id, without the family or the package that registers it.
    name = env.id.rpartition(":")[2] if ":" in env.id else env.id.partition("/")[2]
    if fingerprint is None:
        same = made_in in {_UNKNOWN, env.id, name} or name.startswith(f"{made_in}-")
        theirs, ours = made_in, env.id
    else:
        same = fingerprint == env.fingerprint
        theirs = f"{made_in} with env_options {dict(options)} and physics {fingerprint}"
        ours = f"{env.id} with {dict(env.options)} and {env.fingerprint}"
    if same:
        if made_in == _UNKNOWN:
            logger.info(
                "dataset %s does not name its task; it is taken as one of %s", called, env.id
            )
        return
    differs = (
        f"dataset {called} is of {theirs}, this run is in {ours}: its rewards and ends may mean "
        "something else"
    )
    if not allowed:
        remedy = _options_of(options, env) if made_in == env.id else ""
        raise TrimtabError(
            f"{differs}; {remedy or 'choose a dataset of this task'}, or add other_task=true"
        )
    logger.warning("%s", differs)


def _options_of(options: Mapping[str, Any], env: EnvSpec) -> str:
    """Return the words that make a run's task the one that a dataset is of, as far as they do."""
    words = [
        shlex.quote(f"env_options.{name}={value if isinstance(value, str) else json.dumps(value)}")
        for name, value in options.items()
        if dict(env.options).get(name) != value
    ]
    more = [f"env_options.{name}" for name in dict(env.options) if name not in options]
    remedies = [f"give the run {' '.join(words)}"] if words else []
    return " and ".join([*remedies, *([f"leave out {' '.join(more)}"] if more else [])])
