"""A process with a policy in a control loop, which sends commands and then fails as it is told.

    sender.py <fault> <graph>

The observation is the number of the observation, and so is the action. With the one numbered
:data:`FAULT_AT`, the fault comes. Commands are written as float64.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

from trimtab.policies.bundle.files import Contract
from trimtab.policies.robot.loop import control_loop
from trimtab.policies.runtime import PolicyRunner, RecedingHorizon, SafeAction

FAULT_AT = 20
HORIZON = 8
STOPPED, HELD = -1.0, -7.0  # what the sender's stop and the sender's fallback send


class Fails(PolicyRunner):
    """Raises what is no error of Trimtab."""

    def infer(self, obs: Any, noise: Any) -> Any:
        if sys.argv[1] == "raise" and obs[0, 0] >= FAULT_AT:
            raise RuntimeError("a bug in the policy")
        return super().infer(obs, noise)


def act(action: Any) -> None:
    os.write(1, struct.pack("<d", float(action[0])))


def main(fault: str, graph: str) -> None:
    contract = Contract(1, HORIZON, 2, 1, (1,), (-1e6,), (1e6,), 50.0, True)
    # A chunk at every tick: a busy machine may lose some, and the fault comes at the same command.
    policy = Fails(
        contract, Path(graph).read_bytes(), graph, mode=RecedingHorizon(1),
        fallback=SafeAction(safe=(HELD,)),
    )  # fmt: skip
    count = -1

    def observe() -> list[float]:
        nonlocal count
        count += 1
        if count == FAULT_AT and fault == "hang":
            os.read(0, 1)  # until it is woken
        elif count == FAULT_AT and fault in ("SIGSTOP", "SIGKILL"):
            os.kill(os.getpid(), signal.Signals[fault])
        return [-1.0 if count >= FAULT_AT and fault == "nan" else float(count)]

    policy.reset(action=[0.0])
    control_loop(policy, observe, act, ticks=100_000, stop=lambda: act([STOPPED]))


if __name__ == "__main__":
    main(*sys.argv[1:])
