"""Bundles of finished runs, and of what other libraries saved.

A run's own ``policy/`` has no ONNX file. To write one takes seconds, and of the fifty runs of a
suite only one needs it.
"""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.benchmarks.artefacts.weights import export_weights
from trimtab.benchmarks.training.base import load_base, training
from trimtab.benchmarks.training.folder import read_result
from trimtab.benchmarks.training.record import results_of
from trimtab.errors import TrimtabError, nearest
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import adjusted_policy
from trimtab.policies.bundle.bundle import check_bundle, save_bundle
from trimtab.policies.bundle.files import described_in
from trimtab.policies.bundle.lerobot import write_lerobot
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.imports.weights import is_lerobot
from trimtab.policies.kinds.real_time_chunking import RealTimeChunkingPolicy
from trimtab.policies.kinds.real_time_iteration import RealTimeIterationPolicy

__all__ = ["CHUNKING", "export_black_box", "export_bundle", "export_policy", "policy_settings"]

CHUNKING: Mapping[str, Callable[[Policy], Policy]] = {
    "rtc": RealTimeChunkingPolicy,
    "rti": RealTimeIterationPolicy,
}
"""What a policy becomes that is to go on from the chunk that a robot is playing."""


logger = logging.getLogger(__name__)


def policy_settings(words: list[str]) -> dict[str, Any]:
    """Return the settings that words such as ``policy.sampling_steps=2`` give.

    Raises:
        TrimtabError: if a word has no value, or one that is no YAML.
    """
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value or not key.removeprefix("policy."):
            raise TrimtabError(f"{word}: write policy.<setting>=<value>")
    try:
        found = OmegaConf.to_container(
            OmegaConf.from_dotlist([word.removeprefix("policy.") for word in words]), resolve=True
        )
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise TrimtabError(f"{' '.join(words)}: {str(error).splitlines()[0]}") from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def export_policy(
    run: str,
    out: str,
    *,
    env: str = "",
    contract: str = "",
    weights: bool = True,
    chunking: str = "",
    settings: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    lerobot: bool = False,
) -> dict[str, float]:
    """Write the policy of a run, a bundle or a model as a bundle with ONNX, and check it.

    Args:
        run: a finished run, a bundle, or a weight file of another library.
        out: folder of the bundle; an older bundle there is replaced.
        env: task of a weight file.
        contract: file that says what a weight file does not.
        weights: False for a black box, the graph alone.
        chunking: as for :func:`export_bundle`.
        settings: of how the policy acts, that differ from its training (:func:`export_bundle`).
        limits: entries of :class:`Limits` for the robot's commands; None for those that a bundle
            states, or that the run's contract did.
        lerobot: whether the folder has the layout of LeRobot's policies, with the bundle in it.

    Returns:
        The largest difference of the golden rows for each backend.

    Raises:
        TrimtabError: if there is no such policy, or the bundle cannot be written or replayed.
    """
    source, target = Path(run), Path(out)
    if not out:
        raise TrimtabError("export: out= is empty; name the bundle's folder")
    bundle = source if (source / "config.json").is_file() else source / "policy"
    if bundle.resolve() in target.resolve().parents:
        raise TrimtabError(
            f"export: out={out} lies within {bundle}, a bundle; choose another place"
        )
    named = f"env={env}" if env else f"contract={contract}"
    foreign = bool(env or contract)
    if foreign and source.is_dir() and not is_lerobot(source):
        raise TrimtabError(
            f"export: {named}: {run} says that itself; leave {named.split('=')[0]}= out"
        )
    if chunking and chunking not in CHUNKING:
        raise TrimtabError(f"export: chunking={chunking}: {nearest(chunking, CHUNKING)}")
    if foreign and (settings or chunking):
        asked = [*(settings or {}), *(["chunking"] if chunking else [])]
        raise TrimtabError(
            f"export: {', '.join(asked)}: {run} has no settings of acting; leave them out"
        )
    if not foreign and source.is_file():
        raise TrimtabError(
            f"export: {run} does not say its task: add env=<a task>, or contract=<a file> with "
            "control_rate and the limits of actions"
        )
    write: Callable[[Path], dict[str, float]] = (
        functools.partial(export_weights, source, env, contract, limits=limits)
        if foreign or is_lerobot(source)
        else functools.partial(
            export_bundle, source, settings=settings, chunking=chunking, limits=limits
        )
    )
    if not weights:
        write = functools.partial(export_black_box, write)
    if not lerobot:
        return write(target)
    with tempfile.TemporaryDirectory() as folder:
        errors = write(Path(folder) / "bundle")
        write_lerobot(Path(folder) / "bundle", target)
    return errors


def export_bundle(
    run: Path,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    chunking: str = "",
    limits: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Write the policy of a run, or of a bundle, as a bundle with ONNX; return its replay errors.

    Args:
        run: folder of a run or a bundle.
        out: folder of the bundle.
        settings: of how the policy acts, that differ from its training, such as
            ``{"sampling_steps": 2}``; the contract's entry ``changed`` says them.
        chunking: a name of :data:`CHUNKING`, where the policy is to read what is being played.
        limits: as for :func:`export_policy`.

    Raises:
        TrimtabError: if ``run`` has no policy, a setting does not fit, or the bundle cannot be
            written or does not replay.
    """
    bundle = load_base(str(run))
    if "warning" in bundle.config:  # it is of this policy, as it acts
        logger.warning("%s: its warning is left out; calibrate the new bundle", run)
    if chunking:
        bundle = replace(bundle, policy=CHUNKING[chunking](bundle.policy))
    policy, changed = adjusted_policy(bundle, settings or {})
    env = bundle.config["env"]
    contract = {
        "env": env["id"],
        "env_options": env["options"],
        "env_horizon": env.get("horizon"),
        "fingerprint": env.get("fingerprint"),
        "control_rate": bundle.config["control_rate"],
        "act_steps": bundle.config["chunking"]["act_steps"],
        "training": training(bundle),
        "changed": changed,
        **described_in(bundle.config),
        **({} if limits is None else {"limits": limits}),
    }
    results = None
    if not changed and (run / "result.json").is_file():  # the run's results are of its own policy
        results = results_of(read_result(run))
    save_bundle(policy, out, contract=contract, results=results)
    return check_bundle(out)


def export_black_box(write: Callable[[Path], object], out: Path) -> dict[str, float]:
    """Write a bundle with ONNX and without weights; return the graph's replay error.

    Args:
        write: writes the whole bundle to a folder.
        out: folder of the bundle.

    Raises:
        TrimtabError: if the bundle cannot be written, or ``out`` exists.
    """
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "bundle"
        write(whole)
        withhold_weights(whole, out)
    return {"onnx": check_bundle(out)["onnx"]}  # torch has nothing of its own to replay
