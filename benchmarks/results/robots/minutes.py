"""Run bundles for minutes against a simulated robot in another process, with faults, and count.

    python minutes.py at=<a run> rate=50 out=<a bundle>  # the run's policy, for another clock
    python minutes.py bundle=<a bundle> rate=50 seconds=600 out=minutes.jsonl apart=true
    python minutes.py  # the tables of minutes.jsonl

The robot is this file's other half: it steps the bundle's task once a control period, sends what it
sees over a socket, and plays the newest command; without one for ten ticks it rests. It drops
observations, sends NaN, and holds frames back. Into the policy's process come stalls, a thread that
hogs the interpreter, and (where the policy computes apart) stops of that process.

Each late tick, each tick without an observation and each tick of the fallback is then put down to
a fault that was injected at that moment, or to the machine: the process was not running although it
could have (wall time without processor time). What is left is unexplained.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from trimtab.policies.runtime import Hold, Limits, RecedingHorizon, control_loop, load_policy

HEAD = struct.Struct("<q")  # the number of the frame, before float64 values
REST = 10  # ticks without a command after which the robot rests by itself
PATIENCE = 3  # ticks without an observation on which the plan is played on
DROP, BROKEN, HELD = 0.01, 0.002, 0.005  # shares of frames: not sent, NaN, sent some ticks late
STALL, HOG, STOP = 15.0, 60.0, 45.0  # seconds from one to the next
HOGGED, STOPPED = 2.0, 0.5  # how long they last


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def robot(task: str, rate: float, seconds: float, seed: int, port: int) -> None:
    """Be the robot: print one line a frame at the end, ``[due, sent or None, fault]``."""
    from trimtab.envs.registry import make

    env = make(task)
    stream = np.random.default_rng(seed)
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.connect(("127.0.0.1", port))
    link.setblocking(False)
    link.send(b"here")
    observation, _ = env.reset(seed=seed)
    period, rest = 1.0 / rate, np.zeros(env.action_space.sample().shape)
    command, heard, rested, episodes = rest, 0, 0, 1
    held: list[tuple[int, bytes]] = []
    frames: list[tuple[float, float | None, str]] = []
    start = time.monotonic() + 0.2
    for frame in range(int(seconds * rate)):
        due = start + frame * period
        sleep_until(due)
        while select.select([link], [], [], 0)[0]:
            try:
                answer = link.recv(4096)
            except ConnectionRefusedError:  # the policy's end is closed
                break
            command, heard = np.frombuffer(answer, np.float64, offset=HEAD.size), frame
        if frame - heard > REST:
            command = rest
            rested += 1
        observation, _, ended, cut, _ = env.step(command.astype(np.float32))
        if ended or cut:
            observation, _ = env.reset()
            episodes += 1
        values, fault = np.asarray(observation, np.float64), ""
        draw = stream.random()
        if draw < DROP:
            fault = "dropped"
        elif draw < DROP + HELD:
            fault = "held"
        elif draw < DROP + HELD + BROKEN:
            fault, values = "nan", np.full_like(values, np.nan)
        data = HEAD.pack(frame) + values.tobytes()
        sent: float | None = None
        try:
            if fault == "held":
                held.append((frame + int(stream.integers(1, 6)), data))
            elif fault != "dropped":
                link.send(data)
                sent = time.monotonic()
            for late in [one for one in held if one[0] <= frame]:
                link.send(late[1])
                held.remove(late)
        except (ConnectionRefusedError, BlockingIOError):
            fault = fault or "refused by the socket"
        frames.append((due, sent, fault))
    sys.stdout.write(json.dumps({"frames": frames, "rested": rested, "episodes": episodes}))


def at_rate(run: str, rate: float, out: str) -> None:
    """Write the bundle of a run for a robot with another clock than the task's."""
    from trimtab.policies.bundle.bundle import load_bundle, save_bundle

    bundle = load_bundle(Path(run) / "policy")
    act_steps = bundle.config["chunking"]["act_steps"]
    contract = {"env": bundle.config["env"]["id"], "control_rate": rate, "act_steps": act_steps}
    save_bundle(bundle.policy, out, contract=contract)


class Watch:
    """A monotonic clock whose first moment lies between two frames; it remembers what was due.

    Args:
        frame: when a frame came.
        period: from one frame to the next.
    """

    def __init__(self, frame: float, period: float) -> None:
        self.due = 0.0
        self._begin: tuple[float, float] | None = frame, period

    def now(self) -> float:
        """Return the time."""
        if self._begin is not None:
            (frame, period), self._begin = self._begin, None
            between = frame + (math.ceil((time.monotonic() - frame) / period) + 0.5) * period
            sleep_until(between)
            return between
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        """Sleep until a tick is due."""
        self.due = moment
        sleep_until(moment)


def windows_of(name: str, found: list[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """Return the moments from and to which a fault lasted."""
    return [(begun, ended) for fault, begun, ended in found if fault == name]


def within(begun: float, ended: float, windows: list[tuple[float, float]]) -> bool:
    """Return whether a time from ``begun`` to ``ended`` touches one of the windows."""
    return any(begun <= last and first <= ended for first, last in windows)


def main(bundle: str, rate: float, seconds: float, out: str, apart: bool, seed: int = 0) -> None:
    """Run one bundle, explain what happened, and add a row to a file."""
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.bind(("127.0.0.1", 0))
    config = json.loads((Path(bundle) / "config.json").read_text())
    words = [
        config["env"]["id"],
        str(rate),
        str(seconds + 3),
        str(seed),
        str(link.getsockname()[1]),
    ]
    policy = load_policy(
        bundle,
        seed=seed,
        fallback=Hold(patience=PATIENCE),
        limits=Limits(low=-1.0, high=1.0),
        mode=RecedingHorizon(max(1, int(config["chunking"]["act_steps"]) // 2)) if apart else None,
        apart=apart,
    )
    workers = psutil.Process().children()
    other = subprocess.Popen(
        [sys.executable, __file__, "robot", *words], stdout=subprocess.PIPE, text=True
    )
    faults: list[tuple[str, float, float]] = []
    trace: list[dict[str, Any]] = []
    ending = threading.Event()
    size = int(config["inputs"]["obs"]["shape"][-1])
    newest, shape = -1, HEAD.size + 8 * size
    stream = np.random.default_rng(seed + 1)
    next_stall = time.monotonic() + STALL * stream.random()

    _, robot_address = link.recvfrom(16)
    link.connect(robot_address)
    starts = []
    for _ in range(50):  # the frame that was least late says when frames come
        (frame,) = HEAD.unpack_from(link.recv(shape))
        starts.append(time.monotonic() - frame / rate)
    clock = Watch(min(starts), 1.0 / rate)
    link.setblocking(False)

    def observe() -> Any:
        nonlocal newest, next_stall
        begun = time.monotonic()
        tick: dict[str, Any] = {"due": clock.due, "woke": begun, "cpu": time.thread_time()}
        trace.append(tick)
        if begun > next_stall:
            next_stall = begun + STALL
            time.sleep(stream.uniform(0.03, 0.3))
            faults.append(("stall", begun, time.monotonic()))
        found, looked = None, time.monotonic()
        while select.select([link], [], [], 0)[0]:
            data = link.recv(4096)
            (frame,) = HEAD.unpack_from(data)
            if frame > newest:
                newest, found = frame, np.frombuffer(data, np.float64, offset=HEAD.size)
            looked = time.monotonic()
        tick["looked"] = looked  # what was sent after this moment could not be seen
        tick["saw"] = "nothing" if found is None else "nan" if np.isnan(found).any() else "fine"
        return None if found is None else found[:size]

    def act(action: Any) -> None:
        link.send(HEAD.pack(policy.tick) + np.asarray(action, np.float64).tobytes())
        tick = trace[-1]
        tick |= {"done": time.monotonic(), "cpu": time.thread_time() - tick["cpu"]}
        tick |= {"tick": policy.tick, **{name: policy.counts[name] for name in COUNTED}}

    def disturb() -> None:
        """Hog the interpreter, and stop the process that computes, now and then."""
        start = time.monotonic()
        hog, stop = start + HOG * stream.random(), start + STOP * stream.random()
        while not ending.wait(0.05):
            now = time.monotonic()
            if now > hog:
                hog = now + HOG
                while time.monotonic() < now + HOGGED:
                    pass
                faults.append(("hog", now, time.monotonic()))
            if now > stop and apart:
                stop = now + STOP
                workers[0].send_signal(signal.SIGSTOP)
                time.sleep(STOPPED)
                workers[0].send_signal(signal.SIGCONT)
                faults.append(("stop", now, time.monotonic()))

    disturber = threading.Thread(target=disturb, daemon=True)
    disturber.start()
    policy.reset(action=np.zeros(policy.action_dim))
    report = control_loop(policy, observe, act, ticks=int(seconds * rate), rate=rate, clock=clock)
    ending.set()
    disturber.join()
    policy.close()
    told = json.loads(other.communicate()[0])
    row = {
        "bundle": Path(bundle).name, "rate": rate, "seconds": seconds, "apart": apart, "seed": seed,
        "ticks": int(seconds * rate), "played": report.played, "skipped": report.skipped,
        "late": report.missed, "counts": dict(report.counts),
        "milliseconds": {
            name: {"p50": 1e3 * one.p50, "p99": 1e3 * one.p99, "worst": 1e3 * one.worst}
            for name, one in report.phases.items()
        },
        "robot": {
            "episodes": told["episodes"], "rested": told["rested"],
            "frames": Counter(fault or "sent" for _, _, fault in told["frames"]),
        },
        "faults": Counter(name for name, _, _ in faults),
        **explained(trace, told["frames"], faults, 1.0 / rate),
        "load": os.getloadavg()[0],
    }  # fmt: skip
    with open(out, "a", encoding="utf-8") as rows:
        rows.write(json.dumps(row) + "\n")
    sys.stdout.write(json.dumps(row, indent=2) + "\n")


COUNTED = ("missing", "refused", "failed", "empty", "fallback")
"""Counts of the runner that are remembered a tick."""


def explained(
    trace: list[dict[str, Any]],
    frames: list[tuple[float, float | None, str]],
    faults: list[tuple[str, float, float]],
    period: float,
) -> dict[str, Any]:
    """Return the causes of late ticks, of those without an observation, and of fallbacks."""
    stalls, hogs, stops = (windows_of(name, faults) for name in ("stall", "hog", "stop"))
    late, unseen, fallback = Counter[str](), Counter[str](), Counter[str]()
    blind, last_looked, last_tick, behind = 0, -math.inf, -1, True
    planned = False
    before = dict.fromkeys(COUNTED, 0)
    for tick in trace:
        begun, ended, due = tick["woke"], tick["done"], tick["due"]
        if ended > due + period:
            late[
                "stall" if within(begun, ended, stalls)
                else "hog" if within(due, ended, hogs)
                else "machine" if ended - due - tick["cpu"] > period / 2
                else "unexplained"
            ] += 1  # fmt: skip
        if tick["saw"] != "fine":
            blind += tick["tick"] - last_tick
            due_since = [one for one in frames if last_looked < one[0] <= tick["looked"]]
            wrong = [fault for _, _, fault in due_since if fault]
            tardy = any(
                moment is not None and moment > tick["looked"] - 1e-4 for _, moment, _ in due_since
            )
            unseen[
                "nan" if tick["saw"] == "nan"
                else wrong[-1] if wrong
                else "machine" if tardy
                else "hog" if within(due, tick["looked"], hogs)
                else "caught up after a late tick" if behind or begun - due > period / 4
                else "unexplained"
            ] += 1  # fmt: skip
        else:
            blind = 0
        if tick["fallback"] > before["fallback"]:
            fallback[
                "blind" if blind > PATIENCE or tick["empty"] == before["empty"]
                else "stop" if within(begun - STOPPED, ended, stops)
                else "stall" if within(begun - 0.3, ended, stalls)
                else "hog" if within(due - HOGGED, ended, hogs)
                else "no observation, and a plan of one action" if tick["saw"] != "fine"
                else "before the first plan" if not planned
                else "unexplained"
            ] += 1  # fmt: skip
        before = {name: tick[name] for name in COUNTED}
        behind = ended > due + period / 2
        last_looked, last_tick = tick["looked"], tick["tick"]
    return {
        "late_by": late,
        "unseen_by": unseen,
        "fallback_by": fallback,
        "counted_right": bool(
            trace
            and trace[-1]["missing"] == sum(one["saw"] != "fine" for one in trace)
            and trace[-1]["refused"] == sum(one["saw"] == "nan" for one in trace)
        ),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return what happened as two tables in Markdown: times, and causes."""
    times = [
        "| policy | Hz | computes | ticks | left out | late | decide p50, p99, worst (ms) |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    causes = ["| policy | late | without an observation | fallback |", "|---|---|---|---|"]
    for row in rows:
        decide = row["milliseconds"]["decide"]
        shown = ", ".join(f"{decide[name]:.2f}" for name in ("p50", "p99", "worst"))
        where = "apart" if row["apart"] else "in line"
        times.append(
            f"| {row['bundle']} | {row['rate']:g} | {where} | {row['ticks']:,} | "
            f"{row['skipped']:,} | {row['late']:,} | {shown} |"
        )
        by = [
            ", ".join(f"{cause} {count:,}" for cause, count in sorted(row[name].items()))
            for name in ("late_by", "unseen_by", "fallback_by")
        ]
        causes.append(f"| {row['bundle']} | {' | '.join(by)} |")
    return "\n".join([*times, "", *causes]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["robot"]:
        robot(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), *map(int, sys.argv[5:7]))
    elif not sys.argv[1:]:
        lines = Path(__file__).with_name("minutes.jsonl").read_text(encoding="utf-8").splitlines()
        sys.stdout.write(table([json.loads(line) for line in lines]))
    else:
        given = dict(word.split("=", 1) for word in sys.argv[1:])
        if "at" in given:
            at_rate(given["at"], float(given["rate"]), given["out"])
            sys.exit()
        main(
            given["bundle"],
            float(given.get("rate", 50)),
            float(given.get("seconds", 600)),
            given.get("out", "minutes.jsonl"),
            given.get("apart", "false") == "true",
            int(given.get("seed", 0)),
        )
