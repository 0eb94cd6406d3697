"""Learning with rounded matrix products: how ``curves.parquet`` beside this was made.

With ``matmul_precision=medium``, processors that have units for it multiply the matrices of updates
as bfloat16 (8 bits of mantissa) and add the products up with 32 bits. This script does the same on
any processor: within updates, forward and backward, it rounds the operands of each product to
bfloat16. TF32, with which a GPU multiplies at ``high``, keeps 11 bits.

Three methods with three tasks each and five seeds, no more and no fewer, were decided before the
first run. The clones that DSRL steers come first; the runs then go on where they were stopped. A
run that is rounded here has the hash of one with ``medium``, so use an empty working folder::

    trimtab bench suite=arena scale=cpu only=push-flow,hoop-flow,blocked-flow seeds=0,1,2,3,4
    python benchmarks/results/precision/precision.py run 0/2   # the first of two shares,
    python benchmarks/results/precision/precision.py run 1/2   # and the second, beside it
    python benchmarks/results/precision/precision.py rows 9    # of the nine tasks
    python benchmarks/results/precision/precision.py           # table and figure of curves.parquet
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import torch
from matplotlib import pyplot as plt
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import trimtab
from trimtab.benchmarks.board.intervals.contests import contest_interval, paired

HERE = Path(__file__).parent
CURVES, FIGURE = HERE / "curves.parquet", HERE / "curves.png"
RUNS = Path("runs")
COLUMNS = ["method", "task", "precision", "seed", "env_steps", "updates", "return", "success"]

SAC = {"algorithm": "sac", "algorithm.warmup_steps": 1000, "eval_episodes": 20}
TD3_BC = {"algorithm": "td3_bc", "offline_steps": 6000, "eval_every": 1500, "eval_episodes": 10}
DSRL = {
    "algorithm": "dsrl_sac", "algorithm.warmup_steps": 2000,
    "online_steps": 15_000, "eval_every": 3000, "eval_episodes": 50,
}  # fmt: skip
SPARSE = {"env_options.reward": "sparse", "env_options.terminate_on_success": True, "act_steps": 4}
TASKS: dict[tuple[str, str], dict[str, Any]] = {
    ("SAC", "gymnasium:Pendulum-v1"): {**SAC, "online_steps": 6000, "eval_every": 1000},
    ("TD3+BC", "gym/Hopper-v5"): {**TD3_BC, "dataset": "hopper_medium"},
    ("DSRL-SAC", "metaworld/push-v3"): {**DSRL, **SPARSE, "env_options.horizon": 150},
    ("SAC", "gym/InvertedDoublePendulum-v5"): {**SAC, "online_steps": 6000, "eval_every": 1000},
    ("TD3+BC", "gym/HalfCheetah-v5"): {**TD3_BC, "dataset": "halfcheetah_medium_replay"},
    ("DSRL-SAC", "robotics/PointMaze-TwoRoutes-Blocked-v0"): {**DSRL, "act_steps": 8},
    ("SAC", "gym/Hopper-v5"): {**SAC, "online_steps": 9000, "eval_every": 1500},
    ("TD3+BC", "gym/Walker2d-v5"): {**TD3_BC, "dataset": "walker2d_medium"},
    ("DSRL-SAC", "metaworld/basketball-v3"): {**DSRL, **SPARSE, "env_options.horizon": 200},
}
CLONES = {"robotics/PointMaze-TwoRoutes-Blocked-v0": "robotics/PointMaze-TwoRoutes-v0"}
"""The task of a clone, where it is another one."""

_aten = torch.ops.aten
OPERANDS = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
}
"""Which arguments of a matrix product are its operands."""


class RoundedProducts(TorchDispatchMode):
    """Rounds the operands of matrix products to bfloat16 while torch is set to ``medium``.

    A run sets torch so for its updates only.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in OPERANDS and torch.get_float32_matmul_precision() == "medium":
            where = OPERANDS[func]
            args = tuple(to_bfloat16(one) if at in where else one for at, one in enumerate(args))
        return func(*args, **(kwargs or {}))


def to_bfloat16(value: Tensor) -> Tensor:
    """Return the nearest numbers of bfloat16, as 32 bits."""
    return value.bfloat16().float() if value.dtype is torch.float32 else value


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the method and the settings of every run."""
    for (method, env), words in TASKS.items():
        for precision, seed in itertools.product(("highest", "medium"), range(5)):
            found = {**words, "env": env, "seed": seed, "matmul_precision": precision}
            if method.startswith("DSRL"):
                (clone,) = (RUNS / CLONES.get(env, env) / "bc").glob(f"*/seed{seed}")
                found["base"] = str(clone)
            yield method, found


def rows(tasks: int) -> pd.DataFrame:
    """Return a row for each evaluation episode of each run of the first tasks."""
    parts = []
    for method, one in itertools.islice(settings(), 10 * tasks):
        found = trimtab.train(one).episodes().to_pandas()  # finished: it is only found
        parts.append(
            found.assign(method=method, task=one["env"], precision=one["matmul_precision"])[COLUMNS]
        )
    return pd.concat(parts)


def read_curves() -> pd.DataFrame:
    """Return the mean score of each evaluation of each run, numbered from 1.

    Chunks end with an episode, so the evaluations of DSRL come some steps after their times.
    """
    found = pd.read_parquet(CURVES).astype({"success": float})
    means = found.groupby(COLUMNS[:6], as_index=False)[["return", "success"]].mean()
    return means.assign(evaluation=means.groupby(COLUMNS[:4]).cumcount() + 1)


def table() -> str:
    """Return the scores of both precisions and their paired differences, as Markdown."""
    curves = read_curves()
    lines = [
        "| method, task | score | highest | medium | difference at the end | over the curve |",
        "| :-- | :-- | --: | --: | --: | --: |",
    ]
    for method, env in TASKS:
        score, digits = ("success", 2) if method.startswith("DSRL") else ("return", 0)
        here = curves[(curves.method == method) & (curves.task == env)]
        if here.empty:
            lines.append(f"| {method}, `{env}` | {score} |" + " not run yet |" * 4)
            continue
        wide = here.pivot_table(score, ["seed", "evaluation"], "precision")
        change = (wide["medium"] - wide["highest"]).groupby("seed")
        ends = wide.groupby("seed").last().mean()
        differences = (
            contest_interval([paired(found.to_numpy())]) for found in (change.last(), change.mean())
        )
        cells = [
            f"{one.value:+,.{digits}f} [{one.low:+,.{digits}f}, {one.high:+,.{digits}f}]"
            for one in differences
        ]
        means = [f"{ends[precision]:,.{digits}f}" for precision in ("highest", "medium")]
        lines.append(f"| {method}, `{env}` | {score} | " + " | ".join(means + cells) + " |")
    return "\n".join(lines) + "\n"


def of_dsrl() -> str:
    """Return the paired differences of success over DSRL's three tasks together."""
    curves = read_curves()
    found = curves[curves.method == "DSRL-SAC"]
    wide = found.pivot_table("success", ["task", "seed", "evaluation"], "precision")
    change = (wide["medium"] - wide["highest"]).groupby(["task", "seed"])
    said = []
    for each in (change.last(), change.mean()):
        one = contest_interval([paired(task.to_numpy()) for _, task in each.groupby("task")])
        said.append(f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]")
    return f"DSRL's tasks together: {said[0]} at the end, {said[1]} over the curve\n"


def draw() -> None:
    """Draw a panel a task: a thin line a seed, a thick one their mean."""
    mpl.use("Agg")
    curves = read_curves()
    run = [key for key in TASKS if ((curves.method == key[0]) & (curves.task == key[1])).any()]
    figure, axes = plt.subplots(
        len(run) // 3, 3, figsize=(11, len(run)), layout="constrained", squeeze=False
    )
    for axis, (method, env) in zip(axes.flat, run, strict=True):
        score = "success" if method.startswith("DSRL") else "return"
        every = TASKS[method, env]["eval_every"]
        here = curves[(curves.method == method) & (curves.task == env)]
        for color, (precision, found) in zip("kr", here.groupby("precision"), strict=True):
            for _, one in found.groupby("seed"):
                axis.plot(every * one.evaluation, one[score], color, alpha=0.25, linewidth=0.8)
            mean = found.groupby("evaluation")[score].mean()
            axis.plot(every * mean.index, mean, color, label=precision)
        axis.set_title(f"{method}, {env.split('/')[-1].split(':')[-1]}", fontsize=9)
        axis.set_xlabel("updates" if method == "TD3+BC" else "environment steps")
        axis.set_ylabel(score)
    axes[0, 0].legend()
    figure.savefig(FIGURE, dpi=90)


def main(words: list[str]) -> None:
    """Make one share of the runs, gather the rows, or write the table and the figure of them."""
    if words[:1] == ["run"]:
        share, shares = (int(part) for part in words[1].split("/"))
        torch.set_num_threads(1)
        for _, one in itertools.islice(settings(), share, None, shares):
            rounded = one["matmul_precision"] == "medium"
            with RoundedProducts() if rounded else contextlib.nullcontext():
                run = trimtab.train(one)
            sys.stderr.write(f"{run.folder}: {run.summary['seconds']} s\n")
    elif words[:1] == ["rows"]:
        rows(int(words[1])).to_parquet(CURVES, index=False)
    else:
        draw()
        sys.stdout.write(table() + of_dsrl())


if __name__ == "__main__":
    main(sys.argv[1:])
