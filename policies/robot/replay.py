"""Play a log again through its bundle, and compare every action."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.limits import Limits
from trimtab.policies.bundle.onnx_policy import OnnxPolicy, PolicyFiles, read_policy
from trimtab.policies.robot.fallback import FALLBACKS
from trimtab.policies.robot.inference import InLine
from trimtab.policies.robot.log import Log, Played, Repeated, Reset, described, read_log
from trimtab.policies.robot.modes import MODES
from trimtab.policies.robot.plan import Array
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.policies.robot.warning import detector_of
from trimtab.processor import array_kind

__all__ = ["Replay", "logged_settings", "replay"]


@dataclass(frozen=True)
class Replay:
    """What playing a log again has found.

    Attributes:
        ticks: how many were compared.
        equal: whether every action has the same bits.
        worst: largest difference of an action, raw units.
        differs: the first tick that differs, in words, with the error that it raised here; empty if
            none does.
        same_processor: whether the log was written on this kind of processor, with this
            onnxruntime: then equal bits are promised.
        tolerance: the difference that is allowed on another one, raw units.
        cut: whether the log ends within a record.
        rate: ticks a second, the median; None for fewer than two ticks in a row.
        longest: longest time between two ticks in a row, in seconds; None likewise.
        warned: ticks with a warning.
        outside: where the robot has first left its workspace, in words; empty if it never has.
    """

    ticks: int
    equal: bool
    worst: float
    differs: str
    same_processor: bool
    tolerance: float
    cut: bool
    rate: float | None
    longest: float | None
    warned: int
    outside: str

    @property
    def passed(self) -> bool:
        """Whether the log and the bundle agree as far as is promised here."""
        return self.equal or (not self.same_processor and self.worst <= self.tolerance)


def logged_settings(
    folder: str | Path,
    files: PolicyFiles,
    deterministic: bool | None,
    *parts: Any,
) -> dict[str, Any]:
    """Return what a log needs to say of a run, so that it can be played again.

    Args:
        folder: of the bundle.
        files: what was read of it.
        deterministic: as of ``load_policy``.
        parts: the mode, the fallback and the limits; each may be None.
    """
    mode, fallback, limits = (None if part is None else described(part) for part in parts)
    return {
        "bundle": str(Path(folder).absolute()),
        "sha256": files.sha256,
        "deterministic": deterministic,
        "mode": mode,
        "fallback": fallback,
        "limits": limits,
        **_here(),
    }


def _here() -> dict[str, str]:
    return {"processor": array_kind(), "onnxruntime": onnxruntime.__version__}


def replay(path: str | Path, bundle: str | Path | None = None) -> Replay:
    """Play a log again.

    Args:
        path: the log.
        bundle: folder of its bundle, if that was moved.

    Raises:
        TrimtabError: if the log was changed or has no tick, or if the bundle is not there, or is
            another one than the log was written with.
    """
    log = read_log(path)
    folder = bundle or log.settings.get("bundle")
    if not isinstance(folder, str | Path):
        raise TrimtabError(f"{log.where}: names no bundle; give bundle=…")
    if not Path(folder).is_dir():
        raise TrimtabError(f"{log.where}: its bundle {folder} is not there; give bundle=…")
    files = read_policy(folder)
    if files.sha256 != (written := str(log.settings.get("sha256"))):
        place = log.settings.get("bundle")
        raise TrimtabError(
            f"{log.where}: was written with the bundle {written[:10]} at {place}; at {folder} is "
            f"the bundle {files.sha256[:10]}: name a copy of the first by bundle="
        )
    runner, repeated = _runner(log, files, f"bundle {folder}")
    worst, count, differs, equal = 0.0, 0, "", True
    resets, warned, gaps, outside = 0, 0, [], ""
    before: Played | None = None
    for step in log.steps(files.contract):
        if isinstance(step, Reset):
            runner.reset(step.seed, action=step.action, **dict(step.inputs))
            resets, before = resets + 1, None
            continue
        repeated.events.begin(step.events)
        played: Array | None
        raised = ""
        try:
            played = runner.step(step.obs, step.reward, tick=step.tick)
        except TrimtabError as error:
            played, raised = None, str(error)
        count, warned = count + 1, warned + (runner.warning is not None)
        place = f"tick {step.tick} after reset {resets}"
        if runner.outside and not outside:
            outside = f"{place}: {runner.outside}"
        if played is None or step.action is None:  # an error that was raised is raised again
            same = played is None and step.action is None
            distance = 0.0 if same else np.inf
        else:
            same = played.tobytes() == step.action.tobytes()
            distance = float(np.abs(played.astype(np.float64) - step.action).max())
        same = same and bool(runner.outside) == step.outside
        if not same and equal:
            differs = f"{place} ({raised})" if raised else place
        equal, worst = equal and same, max(worst, distance)
        if before is not None and step.tick == before.tick + 1:
            gaps.append(step.time - before.time)
        before = step
    if not count:
        raise TrimtabError(f"{log.where}: has no tick that could be compared")
    middle = float(np.median(gaps)) if gaps else 0.0
    return Replay(
        ticks=count,
        equal=equal,
        worst=worst,
        differs=differs,
        same_processor=all(log.settings.get(name) == value for name, value in _here().items()),
        tolerance=files.contract.tolerance,
        cut=log.cut,
        rate=1.0 / middle if middle > 0 else None,
        longest=max(gaps, default=None),
        warned=warned,
        outside=outside,
    )


def _runner(log: Log, files: PolicyFiles, where: str) -> tuple[PolicyRunner, Repeated]:
    """Return a runner with the settings of a log, and what its inference repeats."""
    contract, model = files.contract, files.model
    repeated = Repeated(InLine(OnnxPolicy(contract, model, where).infer))
    try:
        runner = PolicyRunner(
            contract, model, where,
            deterministic=log.settings["deterministic"],
            mode=_made(log.settings["mode"], MODES),
            fallback=_made(log.settings["fallback"], FALLBACKS),
            limits=_made(log.settings["limits"], {"Limits": Limits}),
            inference=repeated,
            detector=detector_of(files, where),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError) as error:
        raise TrimtabError(
            f"{log.where}: was written with a mode, a fallback or limits that this Trimtab does "
            f"not have ({error})"
        ) from error
    return runner, repeated


def _made(told: Any, known: Any) -> Any:
    """Return what :func:`described` has described; None for None."""
    if told is None:
        return None
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
    }
    return known[settings.pop("name")](**settings)
