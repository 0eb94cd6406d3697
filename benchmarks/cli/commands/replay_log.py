"""``trimtab replay``: play a robot's log again, and compare every action."""

from __future__ import annotations

import json
from dataclasses import asdict

from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.policies.robot.replay import Replay, replay

__all__ = ["replay_log"]


def replay_log(log: str, bundle: str, format: str) -> int:
    """Print whether a log and its bundle agree; exit code 1 if not.

    A robot has this command too: numpy and onnxruntime are enough.
    """
    found = replay(log, bundle or None)
    answer = json.dumps({**asdict(found), "passed": found.passed}, indent=2)
    answer_stream().write((answer if format == "json" else _told(found)) + "\n")
    return int(not found.passed)


def _told(found: Replay) -> str:
    """Return what a person is told."""
    if found.equal:
        agreed = "every action has the same bits"
    else:
        promise = (
            "this is the robot's kind of processor, where bits are equal"
            if found.same_processor
            else f"on another kind of processor {found.tolerance:g} is allowed"
        )
        agreed = (
            f"{found.differs} is the first that differs, by {found.worst:.3g} at most; {promise}"
        )
    lines = [f"{'agrees' if found.passed else 'differs'}: {found.ticks} ticks, {agreed}"]
    if found.rate is not None and found.longest is not None:
        longest = f"the longest tick took {1e3 * found.longest:.1f} ms"
        lines.append(f"{found.rate:.1f} ticks a second, {longest}")
    if found.warned:
        lines.append(f"{found.warned} ticks were unlike the data of the policy (a warning)")
    if found.outside:
        lines.append(f"the robot left its workspace at {found.outside}")
    if found.differs or found.outside:
        lines.append(
            "ticks count from each reset; opening the policy is reset 1, the program's first is 2"
        )
    if found.cut:
        lines.append("the log ends within a record: the program was killed while it wrote")
    return "\n".join(lines)
