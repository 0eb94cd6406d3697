"""Success, and distance to a fine sample, against network calls, for schedulers of diffusers.

``scheduler_calls.py two_routes rows`` measures one task; run again, it goes on.
``scheduler_calls.py figure rows`` writes ``rows.parquet``, ``figure.png`` and the README's table
into ``benchmarks/results/schedulers``; the README states the protocol.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import trimtab
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.judging import BundleJudge, task_of
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.adjusting import adjusted
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.networks.samplers import TableSampler

RESULTS = Path(__file__).resolve().parent
MARK = "<!-- tables: written by benchmarks/results/schedulers/scheduler_calls.py -->"
SEEDS, CALLS = (0, 1, 2), (1, 2, 3, 5, 10, 20)
EPISODES, EVAL_SEED, OBSERVATIONS = 50, 1_000_000, 500
TASKS: dict[str, dict[str, Any]] = {
    "two_routes": {
        "env": "robotics/PointMaze-TwoRoutes-v0", "dataset": "two_routes", "act_steps": 8,
        "offline_steps": 4000,
    },
    "two_doors": {
        "env": "robotics/PointMaze-TwoDoors-Open-v0", "dataset": "two_doors", "act_steps": 8,
        "offline_steps": 4000,
    },
}  # fmt: skip
POLICIES: dict[str, dict[str, Any]] = {
    "diffusion": {"policy": "diffusion", "policy.train_steps": 100, "policy.sampling_steps": 100},
    "flow": {"policy": "flow", "policy.sampling_steps": 100},
}
TRAILING, LEADING = ({"timestep_spacing": way} for way in ("trailing", "leading"))
SAMPLERS: dict[str, dict[str, tuple[str | None, dict[str, Any]]]] = {
    "diffusion": {
        "ddim, leading (Trimtab's)": (None, {}),
        "ddim, trailing": ("ddim", TRAILING),
        "dpmsolver++, leading": ("dpmsolver++", LEADING),
        "dpmsolver++, trailing": ("dpmsolver++", TRAILING),
        "unipc, trailing": ("unipc", TRAILING),
        "deis, trailing": ("deis", TRAILING),
        "heun, leading": ("heun", LEADING),
        "edm": ("edm", {}),
    },
    "flow": {
        "equal Euler steps (Trimtab's)": (None, {}),
        **{name: (name, {}) for name in ("euler", "heun", "dpmsolver++", "dpmsolver++2s", "unipc")},
    },
}


def main(words: list[str]) -> None:
    """Measure one task, or draw."""
    if words[0] == "figure":
        draw(Path(words[1]))
        return
    task, folder = words[0], Path(words[1])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{task}.jsonl"
    done = {key(row) for row in read(file)}
    torch.set_num_threads(1)
    for seed in SEEDS:
        for kind, settings in POLICIES.items():
            words = {**TASKS[task], **settings, "policy.hidden": [128, 128, 128], "seed": seed}
            run = trimtab.train(words, algorithm="bc", eval_episodes=2, out=str(folder / "runs"))
            study(load_base(str(run.folder)), task, kind, seed, file, done)


def study(bundle: Bundle, task: str, kind: str, seed: int, file: Path, done: set[Any]) -> None:
    """Write the rows of one clone that are not there yet."""
    seen: list[tuple[Any, Any, Any]] = []
    hook = bundle.policy.register_forward_hook(
        lambda _, given, action: seen.append(tuple(part.clone() for part in (*given, action)))
    )
    fine = judge(bundle, bundle.policy)
    hook.remove()
    obs, noise, action = (torch.cat(part) for part in zip(*seen, strict=True))
    chosen = np.random.default_rng(seed).permutation(len(obs))[:OBSERVATIONS]
    obs, noise, action = obs[chosen], noise[chosen], action[chosen]
    span = torch.tensor(np.subtract(bundle.policy.spec.action_high, bundle.policy.spec.action_low))
    first = {"task": task, "policy": kind, "seed": seed, "episodes": EPISODES}
    if (task, kind, seed, "fine", 100) not in done:
        row = {**first, "sampler": "fine", "steps": 100, "calls": 100}
        write(file, {**row, "success": fine, "distance": 0.0})
    for name, (scheduler, settings) in SAMPLERS[kind].items():
        for steps in range(1, max(CALLS) + 1):
            try:
                other = {"scheduler": scheduler, "scheduler_settings": settings}
                policy = adjusted(
                    bundle.policy, {"sampling_steps": steps, **(other if scheduler else {})}
                )
            except TrimtabError as error:
                sys.stdout.write(f"{name}, {steps} steps: {error}\n")
                continue
            sampler = policy.sampler
            calls = len(sampler.table.times) if isinstance(sampler, TableSampler) else steps
            wanted = (1, 3, 5, 9, 19) if name.startswith("heun") else CALLS
            if calls not in wanted or (task, kind, seed, name, steps) in done:
                continue
            with torch.no_grad():
                apart = ((policy(obs, noise) - action).abs() / span).mean()
            row = {**first, "sampler": name, "steps": steps, "calls": calls}
            write(file, {**row, "success": judge(bundle, policy), "distance": float(apart)})


def judge(bundle: Bundle, policy: Any) -> float:
    """Return the share of episodes that succeed."""
    judge = BundleJudge(Bundle(policy, bundle.config, bundle.folder), *task_of(bundle, None, None))
    scores = judge.judge(episodes=EPISODES, seed=EVAL_SEED, deterministic=False)
    return float(scores.success_rate or 0.0)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what one measurement is known by."""
    return tuple(row[name] for name in ("task", "policy", "seed", "sampler", "steps"))


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows that a file has."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write(file: Path, row: dict[str, Any]) -> None:
    """Add a row to a file."""
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")


def draw(folder: Path) -> None:
    """Gather the rows of all tasks, and draw and write their means over seeds."""
    rows = [row for file in sorted(folder.glob("*.jsonl")) for row in read(file)]
    pq.write_table(pa.Table.from_pylist(rows), RESULTS / "rows.parquet")
    tasks = sorted({row["task"] for row in rows})
    figure, axes = plt.subplots(2, 2 * len(tasks), figsize=(6.2 * len(tasks), 6.4), sharex=True)
    lines = []
    for column, (kind, task) in enumerate((kind, task) for kind in POLICIES for task in tasks):
        mine = [row for row in rows if row["task"] == task and row["policy"] == kind]
        lines += table(kind, task, mine)
        fine = np.mean([row["success"] for row in mine if row["sampler"] == "fine"])
        for place, name in enumerate(SAMPLERS[kind]):
            points = means(mine, name)
            for axis, what in zip(axes[:, column], ("success", "distance"), strict=True):
                values = [point[what] for point in points.values()]
                marker = "os^vDPX*"[place]
                axis.plot(list(points), values, marker=marker, markersize=4, lw=1.2, label=name)
        top, bottom = axes[:, column]
        top.axhline(fine, color="0.6", lw=1, ls="--")
        top.set(title=f"{kind}, {task.replace('_', ' ')}", ylim=(0, 1.02))
        bottom.set(xscale="log", yscale="log", xlabel="network calls")
        bottom.set_xticks(CALLS, [str(calls) for calls in CALLS])
        bottom.minorticks_off()
        bottom.set_ylim(2e-4, 0.5)  # room for the legend
        if task == tasks[0]:
            bottom.legend(fontsize=6.5, frameon=False, loc="lower left")
    axes[0, 0].set_ylabel("success (dashed: 100 steps)")
    axes[1, 0].set_ylabel("distance to 100 steps, share of range")
    figure.tight_layout()
    figure.savefig(RESULTS / "figure.png", dpi=130)
    readme = RESULTS / "README.md"
    protocol = readme.read_text("utf-8").partition(MARK)[0]
    readme.write_text("\n".join([f"{protocol}{MARK}", *lines, ""]), "utf-8")


def means(rows: list[dict[str, Any]], name: str) -> dict[int, dict[str, float]]:
    """Return the means over seeds of one sampler, by its network calls."""
    found: dict[int, dict[str, float]] = {}
    for calls in sorted({row["calls"] for row in rows if row["sampler"] == name}):
        of = [row for row in rows if row["sampler"] == name and row["calls"] == calls]
        found[calls] = {
            what: float(np.mean([r[what] for r in of])) for what in ("success", "distance")
        }
    return found


def table(kind: str, task: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of one clone: success and distance by sampler and network calls."""
    seeds = len({row["seed"] for row in rows})
    heads = [str(calls) for calls in CALLS]
    lines = ["", f"**{kind}, {task.replace('_', ' ')}** ({seeds} seeds): success / distance", ""]
    lines += [f"| sampler | {' | '.join(heads)} |", "| :-- |" + " --: |" * len(heads)]
    for name in SAMPLERS[kind]:
        found = means(rows, name)
        cells = []
        for calls in CALLS:
            one = found.get(calls) or (found.get(calls - 1) if calls >= 10 else None)
            cells.append("–" if one is None else f"{one['success']:.2f} / {one['distance']:.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    fine = np.mean([row["success"] for row in rows if row["sampler"] == "fine"])
    return [*lines, "", f"100 steps: {fine:.2f}."]


if __name__ == "__main__":
    main(sys.argv[1:])
