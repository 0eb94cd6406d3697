"""Run a bundle on a robot: numpy and onnxruntime, no torch.

    runner = load_policy("my-bundle")
    runner.reset(action=positions)  # the command in force: limits of rates begin there
    action = runner.step(obs)  # once a control tick

Before a bundle is used, the hashes of its files are checked and its golden rows are replayed. At
run time an observation that is not what the policy was trained on raises; it never becomes an
action. A robot that must go on all the same is given a fallback.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.limits import NO_LIMITS, Limits
from trimtab.policies.bundle.onnx_policy import read_policy
from trimtab.policies.bundle.workspace import Workspace
from trimtab.policies.robot.fallback import Damp, Fallback, Hold, PlayOut, SafeAction
from trimtab.policies.robot.inference import Worker
from trimtab.policies.robot.limits import check_limited
from trimtab.policies.robot.log import TickLog
from trimtab.policies.robot.loop import control_loop
from trimtab.policies.robot.modes import (
    Blended,
    Mode,
    RealTimeChunking,
    RealTimeIteration,
    RecedingHorizon,
    TemporalEnsemble,
)
from trimtab.policies.robot.plan import Chunk
from trimtab.policies.robot.replay import logged_settings
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.policies.robot.warning import Unfamiliar, detector_of
from trimtab.policies.robot.watchdog import CommandWatchdog

__all__ = [
    "NO_LIMITS", "Blended", "Chunk", "CommandWatchdog", "Damp", "Fallback", "Hold", "Limits",
    "Mode", "PlayOut", "PolicyRunner", "RealTimeChunking", "RealTimeIteration", "RecedingHorizon",
    "SafeAction", "TemporalEnsemble", "Unfamiliar", "Workspace", "control_loop", "load_policy",
]  # fmt: skip


def load_policy(
    folder: str | Path,
    *,
    seed: int = 0,
    deterministic: bool | None = None,
    mode: Mode | None = None,
    fallback: Fallback | None = None,
    limits: Limits | None = None,
    apart: bool = False,
    timeout: float = 5.0,
    log: str | Path | None = None,
) -> PolicyRunner:
    """Open a bundle, check all of it, and return its policy ready to run.

    Args:
        folder: the bundle's folder.
        seed: seed of the noise.
        deterministic: zero noise if True, sampled if False; None takes the
            setting with which the policy is judged (``evaluate_deterministic`` in its contract).
        mode: which entries of which chunks are played; None: ``act_steps`` of each, as in training.
        fallback: what is played without an observation, a plan or a finite action; None: such a
            tick raises. With its ``patience``, the plan is played on for some ticks first; without,
            one missing observation drops it.
        limits: of the commands and of their rates, tighter than those that the bundle states;
            None: those of the bundle. One that states none needs ``Limits(…)``, or ``NO_LIMITS``
            where something else limits the robot, such as its controller or a simulator.
        apart: whether the policy computes in another process, while the plan is played on; for
            decisions that take longer than a control tick. It needs a fallback. Call ``close`` at
            the end.
        timeout: seconds that a decision in the other process may take. After them, the process is
            killed and started anew; meanwhile the plan is played out, and then the fallback.
        log: a new file, to which every reset and tick is written; ``trimtab replay`` plays it again
            and compares.

    Raises:
        TrimtabError: if a file is missing or was changed, if onnxruntime does not give the
            golden actions within 1e-4, if one of the settings does not fit the policy, or if
            nobody states limits.
    """
    for name, value, kind, such in (
        ("mode", mode, Mode, "RecedingHorizon(2)"),
        ("fallback", fallback, Fallback, "Hold()"),
        ("limits", limits, Limits, "Limits(velocity=1.0)"),
    ):
        if value is not None and not isinstance(value, kind):
            raise TrimtabError(f"load_policy: {name}={value!r}: give an object, such as {such}")
    files = read_policy(folder)
    # Here, and nowhere below: this function opens a bundle to drive a robot. What judges, serves or
    # times one asks it for answers alone, and simulators limit their commands themselves.
    check_limited(files.contract, limits, f"bundle {folder}")
    if apart and fallback is None:
        raise TrimtabError(
            "load_policy: apart=True needs a fallback, which is played until the first answer comes"
        )
    worker = Worker(folder, files.contract, timeout) if apart else None
    ticks = None
    try:
        if log is not None:
            settings = logged_settings(folder, files, deterministic, mode, fallback, limits)
            ticks = TickLog(log, files.contract, settings)
        runner = PolicyRunner(
            files.contract, files.model, f"bundle {folder}", seed=seed, deterministic=deterministic,
            mode=mode, fallback=fallback, limits=limits, inference=worker, log=ticks,
            detector=detector_of(files, f"bundle {folder}"),
        )  # fmt: skip
        runner.check(files.golden)
    except BaseException:
        if worker is not None:
            worker.close()
        if ticks is not None:
            ticks.close()
            Path(log).unlink()  # type: ignore[arg-type]
        raise
    return runner
