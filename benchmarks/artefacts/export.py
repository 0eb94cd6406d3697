"""Bundles of finished runs, of weight files of other libraries, and of ONNX files of others.

A run's own ``policy/`` has no ONNX file. To write one takes seconds, and of the fifty runs of a
suite only one needs it.
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.benchmarks.artefacts.weights import export_weights
from trimtab.benchmarks.training.base import base_label, load_base, training
from trimtab.benchmarks.training.folder import POLICY, is_run, read_result
from trimtab.benchmarks.training.record import results_of
from trimtab.benchmarks.training.without_task import NO_TASK, has_task
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError, nearest
from trimtab.files import read_json, sha256_file
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import adjusted_policy, with_choices
from trimtab.policies.bundle.bundle import Bundle, check_bundle, save_bundle
from trimtab.policies.bundle.files import CONFIG, FORMAT, MODEL, ONNX, described_in
from trimtab.policies.bundle.lerobot import read_packed, write_lerobot
from trimtab.policies.bundle.program import write_program
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.imports.chunks import LEROBOT_MODEL
from trimtab.policies.imports.foreign import read_foreign, write_foreign
from trimtab.policies.imports.weights import is_lerobot
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.mixed import MixedPolicy
from trimtab.policies.kinds.real_time_chunking import RealTimeChunkingPolicy
from trimtab.policies.kinds.real_time_iteration import RealTimeIterationPolicy
from trimtab.policies.memory import state_parts

__all__ = [
    "CHUNKING", "check_beside", "export_black_box", "export_bundle", "export_onnx_file",
    "export_policy", "policy_settings",
]  # fmt: skip

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
    choices: Mapping[str, Any] | None = None,
    mix: str = "",
    limits: Mapping[str, Any] | None = None,
    lerobot: bool = False,
) -> dict[str, float]:
    """Write the policy of a run, a bundle or a model as a bundle with ONNX, and check it.

    Args:
        run: a finished run, a bundle, or a weight file or an ONNX file of others.
        out: folder of the bundle; an older bundle there is replaced if it is of the same run or
            file. A name that ends with ``.pt2`` is that of a program of ``torch.export``, a new
            file, in place of a bundle.
        env: task of a weight file.
        contract: YAML file that says what a file of others does not.
        weights: False for a black box, the graph alone.
        chunking: as for :func:`export_bundle`.
        settings: of how the policy acts, that differ from its training (:func:`export_bundle`).
        choices: settings that the user of the bundle chooses (:func:`export_bundle`).
        mix: a run or bundle whose policy is mixed with this one (:func:`export_bundle`).
        limits: entries of :class:`Limits` for the robot's commands; None for those that a bundle
            states, or that the run's contract did.
        lerobot: whether the folder has the layout of LeRobot's policies, with the bundle in it.

    Returns:
        The largest difference of the golden rows for each backend.

    Raises:
        TrimtabError: if there is no such policy, something else is at ``out``, or the bundle cannot
            be written or replayed.
    """
    source, target = Path(run), Path(out)
    if not out:
        raise TrimtabError("export: out= is empty; name the bundle's folder")
    bundle = source if (source / "config.json").is_file() else source / "policy"
    check_beside("export", bundle, target)
    if source.is_file() and (
        source.name == CONFIG or (source.name == LEROBOT_MODEL and is_lerobot(source.parent))
    ):
        raise TrimtabError(
            f"export: {run} is one file of a policy's folder; give the folder, run={source.parent}"
        )
    if (network := source.suffix == ".onnx") and (env or not contract):
        cure = (
            "leave env= out, and name it in the contract" if env else "add contract=<a YAML file>"
        )
        raise TrimtabError(f"export: {run} does not say what its numbers mean: {cure}")
    named = f"env={env}" if env else f"contract={contract}"
    foreign = bool(env or contract)
    if foreign and source.is_dir() and not is_lerobot(source):
        raise TrimtabError(
            f"export: {named}: {run} says that itself; leave {named.split('=')[0]}= out"
        )
    if chunking and chunking not in CHUNKING:
        raise TrimtabError(f"export: chunking={chunking}: {nearest(chunking, CHUNKING)}")
    later = {"chunking": chunking, "choices": choices, "mix": mix}
    asked = [word for word, value in later.items() if value not in ("", None)]
    if foreign and (asked or (settings and network)):
        asked = [*(settings or {}), *asked]
        cure = "has no settings of acting; leave them out"
        if not network:
            cure = "is no bundle yet; export it without them, and then its bundle with them"
        raise TrimtabError(f"export: {', '.join(asked)}: {run} {cure}")
    if not foreign and source.is_file():
        raise TrimtabError(
            f"export: {run} does not say its task: add env=<a task>, or contract=<a file> with "
            "control_rate and the limits of actions"
        )
    file = source / LEROBOT_MODEL if is_lerobot(source) else source
    _check_target(file if file.is_file() else bundle, target)
    if target.suffix == ".pt2":
        if foreign or not weights or lerobot or limits or asked:
            raise TrimtabError(f"export: out={out}: a program is made of a run or bundle alone")
        policy, _ = adjusted_policy(load_base(run), settings or {})
        return {"torch.export": write_program(policy, target)}
    write: Callable[[Path], dict[str, float]] = (
        functools.partial(export_onnx_file, source, Path(contract).expanduser(), limits=limits)
        if network
        else functools.partial(
            export_weights, source, env, contract, limits=limits, settings=settings
        )
        if foreign or is_lerobot(source)
        else functools.partial(
            export_bundle,
            source,
            settings=settings,
            choices=choices,
            mix=mix,
            chunking=chunking,
            limits=limits,
        )
    )
    if not weights and not network:  # which is a graph alone anyway
        write = functools.partial(export_black_box, write)
    if not lerobot:
        had = _stated(target) | (_stated(bundle) - {"a warning"})  # the source's own is told of
        errors = write(target)
        if lost := sorted(had - _stated(target)):
            logger.warning(
                "%s: what the bundle before stated is left out: %s; write it again if it has to "
                "hold", out, ", ".join(lost),
            )  # fmt: skip
        return errors
    with tempfile.TemporaryDirectory() as folder:
        errors = write(Path(folder) / "bundle")
        write_lerobot(Path(folder) / "bundle", target)
    return errors


def _stated(folder: Path) -> set[str]:
    """Return what a bundle says for its robot's safety: the names of its limits, and a warning."""
    try:
        config = read_json(folder / CONFIG, "export")
        return {f"limits.{name}" for name in config.get("limits") or {}} | (
            {"a warning"} if config.get("warning") else set()
        )
    except (TrimtabError, AttributeError, TypeError):
        return set()  # there is none, or it is damaged, which is told elsewhere


def check_beside(command: str, bundle: Path, target: Path) -> None:
    """Check that what a command writes is no part of a bundle, and not the policy of a run.

    A bundle's folder holds nothing else, or it could not be replaced any more; a run's rows are of
    the policy that it holds.

    Raises:
        TrimtabError: if ``target`` is one; ``command`` names the command.
    """
    if bundle.resolve() in target.resolve().parents:
        raise TrimtabError(
            f"{command}: out={target} lies within {bundle}, a bundle; choose another place"
        )
    run = target.resolve().parent
    if target.resolve() == run / POLICY and is_run(run):
        raise TrimtabError(
            f"{command}: out={target} is the policy of the run {run}; choose another place"
        )


def _check_target(source: Path, target: Path) -> None:
    """Check that an export replaces nothing but a bundle of the same run or file.

    Raises:
        TrimtabError: if another bundle is there, or what is to be a file.
    """
    if not os.path.lexists(target):
        return
    if target.suffix == ".pt2":
        raise TrimtabError(f"export: out={target}: is there already; name a new file, or remove it")
    if not ((target / CONFIG).is_file() and (source.is_file() or (source / CONFIG).is_file())):
        return  # what else is there, or is missing, is told later
    there = _origin(target)
    ours = {f"file {sha256_file(source)}"} if source.is_file() else _origin(source)
    if not there & ours:
        raise TrimtabError(
            f"export: out={target}: another bundle is there already; name a new folder, or remove "
            "that one"
        )


def _origin(folder: Path) -> set[str]:
    """Return what the policy of a bundle is known by: its run, a file of others, its weights.

    A bundle that was damaged is known too, so that it can be exported again.
    """
    try:
        config = read_json(folder / CONFIG, "export")
        if config.get("format") != FORMAT:
            config = read_packed(folder / MODEL).config  # LeRobot's layout has the bundle inside
        said, hashes = config["training"], config["files"]
        known = {
            "file": said.get("file_sha256"),
            "weights": hashes.get(MODEL, hashes.get(ONNX)),
            "run": said.get("config_hash") and (said["config_hash"], said.get("seed")),
        }
    except (TrimtabError, AttributeError, KeyError, TypeError):
        return set()
    return {f"{kind} {value}" for kind, value in known.items() if value}


def export_bundle(
    run: Path,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    chunking: str = "",
    limits: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
    mix: str = "",
) -> dict[str, float]:
    """Write the policy of a run, or of a bundle, as a bundle with ONNX; return its replay errors.

    Args:
        run: folder of a run or a bundle.
        out: folder of the bundle.
        settings: of how the policy acts, that differ from its training, such as
            ``{"sampling_steps": 2}``; the contract's entry ``changed`` says them.
        chunking: a name of :data:`CHUNKING`, where the policy is to read what is being played.
        limits: as for :func:`export_policy`.
        choices: of some settings, what the user of the bundle can choose while it runs, the default
            first, such as ``{"sampling_steps": [10, 5, 2]}``.
        mix: a run or bundle whose predictions are mixed with those of this one, by the weight that
            the user of the bundle chooses (:class:`MixedPolicy`).

    Raises:
        TrimtabError: if ``run`` has no policy, a setting does not fit, or the bundle cannot be
            written or does not replay.
    """
    bundle, lists = load_base(str(run)), {} if choices is None else _parse_choices(choices)
    for name in lists.keys() & (settings or {}).keys():
        raise TrimtabError(
            f"export: policy.{name}: is among choices= too, whose first one is the default"
        )
    if "warning" in bundle.config:  # it is of this policy, as it acts
        logger.warning("%s: its warning is left out; calibrate the new bundle", run)
    said = dict(training(bundle))
    if mix:
        second = load_base(mix)
        _check_same_meaning(bundle, second)
        bundle = replace(bundle, policy=MixedPolicy(bundle.policy, second.policy))
        said.pop("config_hash", None)  # it is no run's own policy any more
        said |= {"policy": bundle.policy.label, "mixed_with": base_label(second)}
    if chunking:
        bundle = replace(bundle, policy=CHUNKING[chunking](bundle.policy))
    policy, changed = adjusted_policy(
        bundle, {**(settings or {}), **{name: values[0] for name, values in lists.items()}}
    )
    if lists:
        policy = with_choices(policy, lists)
    if isinstance(policy, BlackBoxPolicy) and state_parts(policy.spec.parts):
        # What its graph hands on is a second output, which only the graph itself has.
        withhold_weights(bundle.folder, out, limits)
        return check_bundle(out)
    env = bundle.config["env"]
    contract = {
        "env": env["id"],
        "env_options": env["options"],
        "env_horizon": env.get("horizon"),
        "fingerprint": env.get("fingerprint"),
        "control_rate": bundle.config["control_rate"],
        "act_steps": bundle.config["chunking"]["act_steps"],
        "training": said,
        "changed": changed,
        **described_in(bundle.config),
        **({} if limits is None else {"limits": limits}),
    }
    results = None  # those of a run are of its own policy
    if not (changed or mix) and (run / "result.json").is_file():
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


def export_onnx_file(
    network: Path, contract: Path, out: Path, limits: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Write an ONNX file of others as a bundle without weights; return its replay error.

    Args:
        network: the file.
        contract: what its numbers mean.
        out: folder of the bundle; an older bundle there is replaced.
        limits: of a robot's commands; None for those of the contract.

    Raises:
        TrimtabError: if the two do not fit one another, or the task that the contract names.
    """
    foreign = read_foreign(network, contract)
    given = {} if limits is None else {"limits": limits}
    if not foreign.contract.task:
        return write_foreign(foreign, out, {"env": f"{NO_TASK}:{network.stem}", **given})
    task = get_spec(foreign.contract.task)
    where, said = foreign.contract.where, foreign.contract
    for what, ours, theirs in (
        ("numbers that are observed", foreign.obs_dim, task.obs_dim),
        ("numbers of an action", foreign.network.actions, task.action_dim),
        ("control_rate", said.control_rate, task.control_rate),
        ("action.low", said.low or task.action_low, task.action_low),
        ("action.high", said.high or task.action_high, task.action_high),
    ):
        if ours is not theirs and not _close(ours, theirs):
            raise TrimtabError(
                f"{where}: {what}: {_told(ours)}, and {task.id} has {_told(theirs)}; correct it, "
                "or leave the task out"
            )
    return write_foreign(
        foreign,
        out,
        {
            "env": task.id,
            "env_horizon": task.horizon,
            "env_options": dict(task.options),
            "fingerprint": task.fingerprint,
            "low": task.action_low,
            "high": task.action_high,
            **given,
        },
    )


def _check_same_meaning(first: Bundle, second: Bundle) -> None:
    """Check that numbers mean the same to two policies that are to be mixed.

    Raises:
        TrimtabError: naming what differs.
    """
    one, other = first.config, second.config
    tasks = one["env"]["id"], other["env"]["id"]
    for what, ours, theirs in (
        ("the task", *(tasks if all(map(has_task, tasks)) else ("", ""))),
        ("the control rate", one["control_rate"], other["control_rate"]),
        *(
            (f"{side}: {name}", one[side][name].get(entry), other[side][name].get(entry))
            for side in ("inputs", "outputs")
            for name in sorted(one[side].keys() & other[side].keys())
            for entry in ("order", "units")
        ),
    ):
        if ours != theirs:
            raise TrimtabError(
                f"mix: {what} is {ours!s:.80} of {first.folder}, and {theirs!s:.80} of "
                f"{second.folder}; give two policies of one task, whose numbers mean the same"
            )


def _parse_choices(choices: Any) -> dict[str, list[Any]]:
    """Return what can be chosen of each setting; ``none`` is no scheduler, or no temperature.

    Raises:
        TrimtabError: if it is no mapping of lists.
    """
    if (
        not choices
        or not isinstance(choices, Mapping)
        or not all(
            isinstance(name, str) and isinstance(values, list | tuple) and values
            for name, values in choices.items()
        )
    ):
        raise TrimtabError(
            f"export: choices={choices}: give lists, such as {{sampling_steps: [10, 5, 2]}}"
        )
    return {
        name: [None if value == "none" else value for value in values]
        for name, values in choices.items()
    }


def _close(ours: Any, theirs: Any) -> bool:
    """Return whether numbers are those of a task, which has them in float32."""
    return None not in (ours, theirs) and np.allclose(ours, theirs, rtol=1e-6)


def _told(value: Any) -> str:
    return f"{str(value)[:60]}…" if len(str(value)) > 60 else str(value)
