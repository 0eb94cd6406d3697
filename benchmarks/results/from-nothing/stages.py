"""What policies do amid four equally good goals: GoRL stage by stage, others at their end.

    python stages.py runs=runs/suites/from_nothing out=.

``runs`` is the folder of ``trimtab bench suite=from_nothing``; its runs of ``four_goals`` with seed
0 are shown at their end. GoRL with a flow is trained again with the same settings up to the end of
each stage's encoder, and up to the step after each refit. Written are

- ``stages.csv``: the study of modes (``modes.py``) of GoRL at each of these moments;
- ``actions.csv``: actions drawn at rest in the middle of the room, by picture;
- ``paths.csv``: episodes from one start, by picture;
- ``ways.png``: both drawn; without ``runs=`` it is drawn anew from the files.
"""

from __future__ import annotations

import csv
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from modes import COLUMNS, measure, play

from trimtab.benchmarks.api import Callback, RunProgress
from trimtab.benchmarks.board.tables import csv_table
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.evaluate import torch_act
from trimtab.benchmarks.training.folder import POLICY
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.envs.families.robotics.four_goals import GOALS
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text, read_json
from trimtab.policies.agent import Agent
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import load_bundle

ENV, JOB = "robotics/PointMaze-FourGoals-v0", "four_goals-gorl_flow"
OTHERS = ("ppo", "fpo", "dppo", "sac", "sac_flow", "meow", "sdac")
ACTIONS, PATH_START = 400, 3
Array = np.ndarray[Any, np.dtype[Any]]


class StopAt(Callback):
    """Ends a run at a number of environment steps."""

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps

    def on_step(self, now: RunProgress) -> None:
        """End the run where it is due."""
        if now.env_steps >= self.env_steps:
            now.stop()


def moments(online_steps: int, num_envs: int) -> list[tuple[str, int]]:
    """Return what is looked at and after how many environment steps, with GoRL's default stages."""
    decisions = online_steps // num_envs
    collected = int(0.05 * decisions)
    learned = decisions - 3 * collected
    found = []
    for stage, share in enumerate((2, 4, 5)):
        end = round(learned * share / 6) + stage * collected
        found.append((f"stage {stage}, encoder learned", end * num_envs))
        found.append((f"stage {stage + 1}, decoder refitted", (end + collected + 1) * num_envs))
    return [*found, ("stage 3, encoder learned", online_steps)]


def stages_of(folder: Path) -> list[tuple[str, Policy]]:
    """Train GoRL as the suite does; return its policy at each moment."""
    (job,) = (
        one for one in load_suite("from_nothing", "runs", [0], only=[JOB]).jobs if one.name == JOB
    )
    words = [word for word in job.overrides if not word.startswith("out=")]
    whole = compose_run(words)
    found = []
    for name, steps in moments(whole["online_steps"], whole["num_envs"]):
        # A run that was stopped by a callback is done for the next one: each has its own folder.
        config = compose_run([*words, f"out={folder / str(steps)}"])
        run = train(config, callbacks=[StopAt(steps)])
        found.append((name, load_bundle(run.folder / POLICY).policy))
    return found


def end_of(folder: Path, method: str) -> Policy:
    """Return the policy with which a method's run of seed 0 ended.

    Raises:
        TrimtabError: if the suite's folder has no such run.
    """
    runs, job = read_json(folder / "suite.json", "suite")["folders"], f"four_goals-{method}/0"
    if job not in runs:
        raise TrimtabError(f"stages: {folder} has no {job}; run the suite with seed 0 first")
    return load_bundle(Path(runs[job]) / POLICY).policy


def actions_of(policy: Policy) -> Array:
    """Return actions ``[ACTIONS, 2]`` at rest in the middle of the room."""
    agent = Agent(
        torch_act(policy),
        ACTIONS,
        policy.inputs,
        act_steps=policy.spec.horizon,
        deterministic=False,
    )
    agent.reset(seeds=list(range(ACTIONS)))
    return agent.act(np.zeros((ACTIONS, 4), np.float32), np.ones(ACTIONS, bool))[:, 0]


def draw(out: Path) -> None:
    """Draw what the files say: actions, GoRL's moments above and the others below, and paths."""
    mpl.use("Agg")
    from matplotlib import pyplot

    actions: dict[str, list[tuple[float, float]]] = {}
    for row in rows_of(out / "actions.csv"):
        actions.setdefault(row["picture"], []).append((float(row["x"]), float(row["y"])))
    paths: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows_of(out / "paths.csv"):
        episode = paths.setdefault(row["picture"], {}).setdefault(row["episode"], [])
        episode.append((float(row["x"]), float(row["y"])))
    stages = [name for name in actions if name.startswith("stage")]
    shown = {
        "Actions at rest in the middle: GoRL with a flow, stage by stage": stages,
        "The same of other methods, at their end": [one for one in actions if one not in stages],
        "25 episodes from one start; circles are the goals": [*paths],
    }
    columns = max(map(len, shown.values()))
    chart = pyplot.figure(figsize=(1.9 * columns, 7.6), layout="constrained")
    parts = chart.subfigures(len(shown), 1)
    for part, (heading, names) in zip(parts, shown.items(), strict=True):
        part.suptitle(heading, fontsize=11)
        axes = part.subplots(1, columns)
        for axis in axes[len(names) :]:
            axis.set_axis_off()
        for axis, name in zip(axes, names, strict=False):
            axis.set_aspect("equal")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(name.replace(", ", "\n"), fontsize=8)
            if names == [*paths]:
                for one in paths[name].values():
                    axis.plot(*np.array(one).T, lw=0.7, alpha=0.6, color="#0066a6")
                axis.scatter(*GOALS.T, s=36, facecolors="none", edgecolors="#d55e00", zorder=3)
                axis.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6))
            else:
                where = np.array(actions[name]).T
                axis.scatter(*where, s=3, alpha=0.35, color="#0066a6", linewidths=0)
                axis.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08))
    pyplot.savefig(out / "ways.png", dpi=110)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file that this script has written."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_rows(runs: Path, out: Path) -> None:
    """Train GoRL, and write what it and the other methods do.

    Raises:
        TrimtabError: if a run of another method is missing.
    """
    policies = {name: end_of(runs, name) for name in OTHERS}
    folder = Path(tempfile.mkdtemp())
    stages = stages_of(folder)
    shutil.rmtree(folder)
    rows = [
        {"moment": name, **{key: row[key] for key in COLUMNS[3:]}}
        for name, policy in stages
        for row in measure(policy, ENV)
    ]
    atomic_write_text(out / "stages.csv", csv_table(rows))
    drawn = [
        {"picture": name, "x": f"{x:.3f}", "y": f"{y:.3f}"}
        for name, policy in [*stages, *policies.items()]
        for x, y in actions_of(policy)
    ]
    atomic_write_text(out / "actions.csv", csv_table(drawn))
    places = [
        {"picture": name, "episode": number, "x": f"{x:.2f}", "y": f"{y:.2f}"}
        for name, policy in [("gorl_flow", stages[-1][1]), *policies.items()]
        for number, path in enumerate(play(policy, ENV, [PATH_START])[1][0])
        for x, y in path
    ]
    atomic_write_text(out / "paths.csv", csv_table(places))


def main(words: Sequence[str]) -> int:
    """Train, write and draw; return 2, after one line, if that is refused."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        if "out" not in given or not {*given} <= {"runs", "out"} or len(given) != len(words):
            raise TrimtabError("stages: give runs=<folder of the suite> and out=<folder>")
        torch.set_num_threads(1)
        if "runs" in given:
            write_rows(Path(given["runs"]), Path(given["out"]))
        draw(Path(given["out"]))
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
