"""The base policy that a run starts from: a finished run's, or a bundle."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.folder import RESULT, find_runs, is_run, named_runs
from trimtab.benchmarks.training.rows import STOPPED_EARLY
from trimtab.benchmarks.training.rundir import remedy
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.shapes import OBSERVATIONS, observation_mode, read_by
from trimtab.envs.core.spec import EnvSpec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import Reading
from trimtab.policies.bundle.bundle import Bundle, bundle_hash, open_bundle
from trimtab.types import PolicySpec

__all__ = [
    "base_identity",
    "base_label",
    "check_base",
    "check_base_fits",
    "check_has_weights",
    "load_base",
    "policy_folder",
    "oracles_of",
    "training",
]

logger = logging.getLogger(__name__)


def load_base(path: str) -> Bundle:
    """Open a run's policy or a bundle.

    Raises:
        TrimtabError: if there is none at ``path``, or it is damaged.
    """
    folder = policy_folder(path)
    try:
        return open_bundle(folder)
    except TrimtabError as error:
        if is_run(folder.parent):
            what = str(error).split("; ")[0]  # its advice is for a bundle that stands alone
            raise TrimtabError(f"{what}; {remedy(folder.parent)}") from error
        raise


def check_has_weights(base: Bundle, method: str) -> None:
    """Check that there is something in a base that a method can learn on from.

    Raises:
        TrimtabError: if it is a black box.
    """
    if next(base.policy.parameters(), None) is None:
        raise TrimtabError(
            f"base {base.folder} has no weights, and {method} tunes those of its base; steer it "
            "from outside, as dsrl_sac, dsrl_na and golden_ticket do"
        )


def policy_folder(path: str) -> Path:
    """Return the bundle's folder that ``path`` (a run or a bundle) names.

    Raises:
        TrimtabError: if ``path`` is neither.
    """
    folder = Path(path)
    if (folder / "policy" / "config.json").is_file():
        return folder / "policy"
    if (folder / RESULT).is_file() and is_run(folder):
        raise TrimtabError(f"{folder} is a run that has lost its policy; {remedy(folder)}")
    if is_run(folder):
        raise TrimtabError(
            f"{folder} is a run that has not finished; run it again to finish it (trimtab runs "
            f"{shlex.quote(str(folder))} shows the command)"
        )
    if not folder.exists():
        raise TrimtabError(f"{folder} does not exist; give the folder of a run or of a bundle")
    if folder.is_file():
        raise TrimtabError(
            f"{folder} is a file; give the folder of a run or of a bundle (trimtab export makes a "
            "bundle of a .zip of Stable-Baselines3)"
        )
    if not (folder / "config.json").exists() and (runs := find_runs(folder)):
        raise TrimtabError(f"{folder} holds runs; give the folder of one: {named_runs(runs)}")
    return folder


def oracles_of(config: RunConfig, spec: PolicySpec, env: EnvSpec) -> tuple[Bundle, ...]:
    """Open the policies that a run may imitate, and check that they are of its task.

    Args:
        config: settings of the run.
        spec: what the task asks of them.
        env: the task; with ``other_task`` they may be of one with the same spaces.

    Raises:
        TrimtabError: if one is missing, damaged, named twice, or does not fit.
    """
    found = tuple(load_base(path) for path in config.settings.get("oracles") or ())
    for number, oracle in enumerate(found):
        check_base_fits(oracle, spec, env, called="oracle")
        trained = oracle.config["env"]["id"]
        if trained != env.id and not config["other_task"]:
            raise TrimtabError(
                f"oracle {oracle.folder} was trained on {trained}, this run is on {env.id}; give "
                "one of this task, or other_task=true"
            )
        if any(bundle_hash(one.folder) == bundle_hash(oracle.folder) for one in found[:number]):
            raise TrimtabError(f"oracle {oracle.folder} is given twice; leave one out")
    return found


def training(base: Bundle) -> Mapping[str, Any]:
    """Return what a bundle says of how it was trained."""
    return dict(base.config.get("training") or {})


def base_label(base: Bundle) -> str:
    """Return what the ``base`` column of result rows calls a base: method, kind, configuration."""
    parts = [training(base).get(key) for key in ("algorithm", "policy", "config_hash")]
    known = [str(part) for part in parts if part]
    return "-".join(known) if known else bundle_hash(base.folder)[:10]


def base_identity(config: RunConfig, base: Bundle) -> str:
    """Return what a base is known by.

    A base that follows the seed is known by the configuration that trained it, so that the runs of
    one configuration share a hash; a single base, and one whose training a callback ended early, is
    known by its files.
    """
    said = training(base)
    known = config.base_follows_seed and said.get("config_hash") and STOPPED_EARLY not in said
    return str(said["config_hash"]) if known else bundle_hash(base.folder)


def check_base_fits(base: Bundle, spec: PolicySpec, env: EnvSpec, *, called: str = "base") -> None:
    """Check that a base policy reads and commands what the task has.

    Args:
        base: the policy.
        spec: what the task asks of it.
        env: the task.
        called: what its user named it as: a run its ``base`` or an ``oracle``, a judge its
            ``policy``.

    Raises:
        TrimtabError: naming what differs.
    """
    have = base.policy.spec
    theirs, ours = (
        observation_mode(base.policy.reading),
        observation_mode(Reading(parts=spec.parts)),
    )
    if called != "policy" and theirs != ours:
        raise TrimtabError(
            f"{called} {base.folder} reads {OBSERVATIONS[theirs]} (observations={theirs}), and "
            f"this run gives {OBSERVATIONS[ours]} (observations={ours}); write observations="
            f"{theirs}, or give another {called}"
        )
    remembered = [name for name, part in have.parts.items() if part.remembered]
    if called != "policy" and remembered:
        raise TrimtabError(
            f"{called} {base.folder} reads {', '.join(remembered)} of its episode, which methods "
            f"that learn do not keep; judge it by trimtab evaluate, or give another {called}"
        )
    if spec.history != have.history:
        raise TrimtabError(
            f"history={spec.history}: {called} {base.folder} reads {have.history}; leave it out"
        )
    trained = int(base.config["chunking"]["act_steps"])
    if have.history > 1 and spec.horizon != trained:
        raise TrimtabError(
            f"act_steps={spec.horizon}: {called} {base.folder} reads observations of its last "
            f"decisions, {trained} steps apart; leave act_steps out"
        )
    for what, here, there in (
        ("observation length", read_by(spec), read_by(have)),
        ("action length", spec.action_dim, have.action_dim),
        ("action limits", (spec.action_low, spec.action_high), (have.action_low, have.action_high)),
    ):
        if here != there:
            raise TrimtabError(
                f"{called} {base.folder} does not fit {env.id}: {what} {there} against {here}; "
                f"give another {called}, trained on a task with the same spaces"
            )
    if spec.horizon > have.horizon:
        raise TrimtabError(
            f"act_steps={spec.horizon}: {called} {base.folder} gives chunks of {have.horizon}"
        )


def check_base(base: Bundle, spec: PolicySpec, env: EnvSpec, starting: str | None) -> None:
    """Check that a base fits; ``starting`` is a method that goes on from its weights, or None."""
    check_base_fits(base, spec, env)
    if starting is not None:
        check_has_weights(base, starting)
    said = training(base)
    if said.get("reached") is False:
        raise TrimtabError(
            f"base {base.folder} was to stop at success {said.get('stop_at_success')} and never "
            "came to it; train it for more offline_steps, or lower its stop_at_success"
        )
    trained = base.config["env"]
    if trained["id"] == env.id and trained["options"] != dict(env.options):
        logger.warning(
            "base %s was trained with env_options %s, this run has %s",
            base.folder, trained["options"], dict(env.options),
        )  # fmt: skip
