"""How many of several equally good ways a policy keeps, and what that is worth when one is closed.

    python modes.py out=modes.csv <folder of a run> …

The runs are of ``robotics/PointMaze-FourGoals-v0`` (ways: four goals) or of
``robotics/PointMaze-TwoRoutes-v0`` with ``env_options.dense=true`` (ways: above or below the
block). From each of 10 starts a policy acts 25 times with noise, so that its own draws alone
differ. A row a run:

- ``success``: share of episodes that reach a goal;
- ``entropy``: of the ways that were taken from one start, in bits, averaged over the starts, with
  Miller and Madow's correction for the number of draws; at most 2 for the goals, 1 for the routes;
- ``ways``: how many ways have at least a tenth of the draws from a start, averaged;
- ``closed``: share of success when the goal that the policy takes most often is closed, without
  any further learning; empty for the routes.

The starts are others than those of a run's evaluations.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.benchmarks.training.evaluate import torch_act
from trimtab.benchmarks.training.folder import POLICY, read_provenance
from trimtab.envs.families.robotics.four_goals import GOAL_CELLS
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text
from trimtab.policies.agent import Agent
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import load_bundle

STARTS, DRAWS, FIRST_SEED = 10, 25, 50_000
FEW = 0.1
"""Share of the draws from which on a way counts as kept."""
COLUMNS = (
    "env", "algorithm", "policy", "seed", "config_hash", "success", "entropy", "ways", "closed",
)  # fmt: skip
Array = np.ndarray[Any, np.dtype[Any]]


def play(policy: Policy, env: str, start: int, **options: Any) -> tuple[Array, list[Array]]:
    """Return success ``[DRAWS]`` and the places ``[steps, 2]`` of episodes from one start."""
    envs = make_vec(
        env, DRAWS, seed=0, act_steps=policy.spec.horizon,
        episode_seed=lambda row, episode: FIRST_SEED + start, **options,
    )  # fmt: skip
    agent = Agent(
        torch_act(policy), DRAWS, policy.inputs, act_steps=policy.spec.horizon, deterministic=False
    )
    agent.reset(seeds=[1_000 * start + draw for draw in range(DRAWS)])
    envs.active[:] = True
    obs, _ = envs.reset()
    success = np.zeros(DRAWS, bool)
    places: list[list[Array]] = [[obs[row, :2]] for row in range(DRAWS)]
    while envs.active.any():
        acting = envs.active.copy()
        obs, _, terminated, truncated, info = envs.step(agent.act(obs, acting))
        ended = terminated | truncated
        success |= info["success"] & acting
        for row in np.flatnonzero(acting):
            seen = info["final_obs"][row] if ended[row] else obs[row]
            places[row].append(seen[:2])
        envs.active &= ~ended
    envs.close()
    return success, [np.stack(one) for one in places]


def goal_taken(places: Array) -> int:
    """Return which goal an episode ended at: 0 right, 1 up, 2 left, 3 down."""
    x, y = places[-1]
    return (0 if x > 0 else 2) if abs(x) > abs(y) else (1 if y > 0 else 3)


def route_taken(places: Array) -> int:
    """Return 0 if an episode went above the block, 1 if it went below."""
    passed = places[np.argmax(places[:, 0] > 0)]  # where it first is right of the block's middle
    return int(passed[1] < 0)


TASKS: dict[str, tuple[Callable[[Array], int], int]] = {
    "robotics/PointMaze-FourGoals-v0": (goal_taken, 4),
    "robotics/PointMaze-TwoRoutes-v0": (route_taken, 2),
}
"""By task, which way an episode took, and how many there are."""


def entropy(counts: Array) -> float:
    """Return the entropy in bits of counted ways, corrected for the number of draws.

    Miller (1955): the estimate from shares is too small by about ``(K - 1) / (2 n)`` nats.
    """
    total = counts.sum()
    if not total:
        return 0.0
    shares = counts[counts > 0] / total
    nats = -(shares * np.log(shares)).sum() + (len(shares) - 1) / (2 * total)
    return min(float(nats), math.log(len(counts))) / math.log(2)


def measure(policy: Policy, env: str, **options: Any) -> dict[str, Any]:
    """Return what a policy keeps of a task's ways.

    Raises:
        TrimtabError: if it is no such task.
    """
    if env not in TASKS:
        raise TrimtabError(f"modes: {env} has no ways that are counted; {', '.join(TASKS)} have")
    taken, ways = TASKS[env]
    counts = np.zeros((STARTS, ways))
    reached = []
    for start in range(STARTS):
        success, places = play(policy, env, start, **options)
        reached.append(success.mean())
        for row in np.flatnonzero(success):
            counts[start, taken(places[row])] += 1
    found = {
        "success": float(np.mean(reached)),
        "entropy": float(np.mean([entropy(one) for one in counts])),
        "ways": float(np.mean([(one >= FEW * DRAWS).sum() for one in counts])),
        "closed": None,
    }
    if ways == len(GOAL_CELLS):
        favourite = [*GOAL_CELLS][int(counts.sum(0).argmax())]
        closed = [play(policy, env, start, closed=favourite)[0].mean() for start in range(STARTS)]
        found["closed"] = float(np.mean(closed))
    return found


def row_of(folder: Path) -> dict[str, Any]:
    """Return a run's row."""
    provenance = read_provenance(folder)
    document = provenance["identity"]
    policy = load_bundle(folder / POLICY).policy
    task = document["task"]
    return {
        "env": task["id"], "algorithm": document["method"]["name"], "policy": policy.label,
        "seed": int(folder.name.removeprefix("seed")), "config_hash": provenance["config_hash"],
        **measure(policy, task["id"], **task.get("options", {})),
    }  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Measure the runs that the words name; return 2, after one line, if that is refused."""
    named = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    folders = [Path(word) for word in words if not word.startswith("out=")]
    try:
        if len(named) != 1 or not folders:
            raise TrimtabError("modes: give out=modes.csv and folders of runs")
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for folder in folders:
            row = row_of(folder)
            writer.writerow({
                key: f"{value:.4f}" if isinstance(value, float) else value
                for key, value in row.items()
            })  # fmt: skip
            sys.stderr.write(f"{folder}: {row}\n")
        atomic_write_text(Path(named[0]), text.getvalue())
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
