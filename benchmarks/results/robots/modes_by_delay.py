"""Success against delay for each way of playing chunks: how ``modes.csv`` beside this was made.

The clones have chunks of eight actions and are asked every fourth tick (an ensemble at each one),
so that an answer may be four ticks late. Two tasks, two kinds of policy, three seeds of training::

    trimtab train env=robotics/PointMaze-TwoDoors-Open-v0 dataset=two_doors act_steps=8 \
        algorithm=bc policy=flow offline_steps=6000 eval_episodes=20 -m seed=0,1,2
    trimtab train env=metaworld/push-v3 dataset=push_noisy env_options.reward=sparse \
        env_options.horizon=150 env_options.terminate_on_success=true act_steps=8 \
        algorithm=bc policy=flow offline_steps=6000 eval_episodes=20 -m seed=0,1,2
    ... the same with policy=gaussian, and then
    python benchmarks/results/robots/modes_by_delay.py <the folders of the twelve runs>
    python benchmarks/results/robots/modes_by_delay.py  # the table and the figure of modes.csv
"""

from __future__ import annotations

import csv
import functools
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from scipy import stats

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.evaluate import FloatArray
from trimtab.benchmarks.training.judging import BundleJudge, task_of

HERE = Path(__file__).parent
INTERVAL, DELAYS, EPISODES = 4, range(5), 50
MODES = {"receding": "", "ensemble": "", "blended": "", "rtc": "rtc", "rti": "rti"}
"""The modes, and how the bundle is exported for them."""
FIELDS = ["env", "policy", "seed", "mode", "ticks", "eval_seed", "success", "length", "jerk"]


def judged(run: Path) -> list[list[object]]:
    """Return a row an episode for every mode that the policy of a run has, at every delay."""
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for mode, chunking in MODES.items():
            opened = load_base(str(run))
            kind = opened.config["policy"]["kind"]
            if chunking:
                if kind == "gaussian":
                    continue  # it has no sampler to guide
                export_policy(str(run), f"{folder}/{mode}", chunking=chunking)
                plain, opened = opened, load_base(f"{folder}/{mode}")
                judge = BundleJudge(opened, *task_of(plain, None, None))
            else:
                judge = BundleJudge(opened, *task_of(opened, None, None))
            every = 1 if mode == "ensemble" else INTERVAL
            period = 1e3 / judge.spec.control_rate if judge.spec.control_rate else 0.0
            for ticks in DELAYS:
                played: dict[int, list[FloatArray]] = defaultdict(list)
                scores = judge.judge(
                    episodes=EPISODES,
                    seed=0,
                    deterministic=False,
                    watch=functools.partial(keep, played),
                    timing=judge.timing(mode, every, period * ticks, 0.0, 0.0),
                )
                rows += [
                    [
                        judge.task, kind, run.name.removeprefix("seed"), mode, ticks, one.eval_seed,
                        int(bool(one.success)), one.length, f"{changes(played[i]):.4f}",
                    ]
                    for i, one in enumerate(scores.episodes)
                ]  # fmt: skip
    return rows


def keep(played: dict[int, list[FloatArray]], episode: int, chunk: FloatArray) -> None:
    """Add what an episode plays to what it has played."""
    played[episode].extend(chunk)


def changes(actions: list[FloatArray]) -> float:
    """Return the mean length of the difference between an action and the next one."""
    if len(actions) < 2:
        return math.nan  # an episode of one action
    return float(np.linalg.norm(np.diff(np.array(actions), axis=0), axis=1).mean())


def by_seed() -> dict[tuple[str, str, str, int], dict[str, list[tuple[float, float]]]]:
    """Return success and changes of actions of each episode, by what was judged and by seed."""
    found: dict[tuple[str, str, str, int], dict[str, list[tuple[float, float]]]] = {}
    with (HERE / "modes.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["env"], row["policy"], row["mode"], int(row["ticks"]))
            seeds = found.setdefault(key, defaultdict(list))
            seeds[row["seed"]].append((float(row["success"]), float(row["jerk"])))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of seeds and half of its 95 percent interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else math.nan
    return float(np.mean(values)), float(half)


def successes(seeds: dict[str, list[tuple[float, float]]]) -> list[float]:
    """Return the rate of success of each seed, in the order of their names."""
    return [float(np.mean([success for success, _ in seeds[seed]])) for seed in sorted(seeds)]


def summary() -> dict[tuple[str, str, str, int], tuple[float, float, float]]:
    """Return success, half of its 95 percent interval over seeds, and the changes of actions."""
    return {
        key: (
            *interval(successes(seeds)),
            float(np.nanmean([jerk for rows in seeds.values() for _, jerk in rows])),
        )
        for key, seeds in by_seed().items()
    }


def gains() -> str:
    """Return how much more than the newest chunk alone each mode succeeds, paired by seed."""
    found = by_seed()
    lines = [
        "| task | policy | mode | " + " | ".join(f"{t} ticks" for t in DELAYS) + " |",
        "|---|---|---|" + "--:|" * len(DELAYS),
    ]
    for env, policy, mode in dict.fromkeys(key[:3] for key in found if key[2] != "receding"):
        shown = []
        for ticks in DELAYS:
            plain = successes(found[env, policy, "receding", ticks])
            ours = successes(found[env, policy, mode, ticks])
            mean, half = interval([a - b for a, b in zip(ours, plain, strict=True)])
            shown.append(f"{mean:+.2f} ± {half:.2f}")
        lines.append(f"| `{env}` | {policy} | {mode} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def draw() -> None:
    """Draw success against delay, a panel a task and a policy."""
    mpl.use("Agg")
    cells = summary()
    panels = sorted({key[:2] for key in cells})
    figure, axes = plt.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.2), sharey=True)
    for axis, (env, policy) in zip(axes, panels, strict=True):
        for mode in MODES:
            line = {
                t: cells[env, policy, mode, t] for t in DELAYS if (env, policy, mode, t) in cells
            }
            if line:
                axis.plot([*line], [one[0] for one in line.values()], marker="o", label=mode)
        axis.set_title(f"{env.split('/')[1]}\n{policy}", fontsize=9)
        axis.set_xlabel("delay in ticks")
        axis.set_xticks([*DELAYS])
        axis.set_ylim(0, 1)
    axes[0].set_ylabel("success")
    axes[0].legend(fontsize=8)  # a flow policy, which has all modes
    figure.tight_layout()
    figure.savefig(HERE / "modes.png", dpi=150)


def table() -> str:
    """Return success and changes of actions as a table in Markdown."""
    cells = summary()
    lines = [
        "| task | policy | mode | "
        + " | ".join(f"{t} ticks" for t in DELAYS)
        + " | changes at 2 |",
        "|---|---|---|" + "--:|" * (len(DELAYS) + 1),
    ]
    for env, policy, mode in dict.fromkeys(key[:3] for key in cells):
        row = [cells[env, policy, mode, t] for t in DELAYS]
        shown = " | ".join(
            f"{mean:.2f}" + ("" if math.isnan(half) else f" ± {half:.2f}") for mean, half, _ in row
        )
        lines.append(f"| `{env}` | {policy} | {mode} | {shown} | {row[2][2]:.3f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for run in sys.argv[1:]:
        made, file = judged(Path(run)), HERE / "modes.csv"
        new = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as out:
            csv.writer(out, lineterminator="\n").writerows([FIELDS, *made] if new else made)
    draw()
    sys.stdout.write(f"{table()}\n{gains()}")
