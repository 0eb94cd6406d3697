"""How many of several equally good ways a policy keeps, and what that is worth when one is closed.

    python modes.py out=modes.csv random <folder of a run> …

The runs are of ``robotics/PointMaze-FourGoals-v0`` (ways: four goals) or of
``robotics/PointMaze-TwoRoutes-v0`` with ``env_options.dense=true`` (ways: above or below the
block). From each of 10 starts a policy acts 25 times with noise, so that its own draws alone
differ. A row for each start of a run says how many draws took each way and reached the goal, and
how many did so when the goal that the policy takes most often from this start was closed, without
any further learning; this is empty for the routes, and where a goal was closed already.
``trimtab.benchmarks.board.modes`` computes the table from the rows.

From these starts all ways are about as long: no route is more than 0.6 m longer than the other. So
it is where start and goal together are not far above or below the middle, in about a third of all
starts; from the others one route is up to 3 m shorter, and the better one.

``random`` adds the control: pushes at random, unit normal noise under a tanh, which no learning has
touched. Give the same command again to go on: runs that the file has are passed over. The starts
are others than those of a run's evaluations.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trimtab.benchmarks.board.modes import COLUMNS, CONTROL
from trimtab.benchmarks.board.tables import csv_table
from trimtab.benchmarks.training.evaluate import torch_act
from trimtab.benchmarks.training.folder import POLICY, read_provenance
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.envs.families.robotics.four_goals import GOAL_CELLS
from trimtab.envs.registry import get_spec, make
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text
from trimtab.policies.agent import Agent
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy

STARTS, DRAWS, FIRST_SEED = 10, 25, 50_000
Array = np.ndarray[Any, np.dtype[Any]]


def even_seeds(env: str, **options: Any) -> list[int]:
    """Return the seeds of starts from which all ways are about as long."""
    one, (is_even, _, _) = make(env, **options), TASKS[env]
    seeds = (s for s in itertools.count(FIRST_SEED) if is_even(one.reset(seed=s)[0]))
    found = list(itertools.islice(seeds, STARTS))
    one.close()
    return found


def play(
    policy: Policy, env: str, seeds: Sequence[int], **options: Any
) -> tuple[Array, list[list[Array]]]:
    """Return success ``[starts, DRAWS]`` and the places ``[steps, 2]`` of each draw, by starts."""
    rows = DRAWS * len(seeds)
    envs = make_vec(
        env, rows, seed=0, act_steps=policy.spec.horizon,
        episode_seed=lambda row, episode: seeds[row // DRAWS], **options,
    )  # fmt: skip
    agent = Agent(
        torch_act(policy), rows, policy.inputs, act_steps=policy.spec.horizon, deterministic=False
    )
    agent.reset(seeds=[1_000 * seed + draw for seed in seeds for draw in range(DRAWS)])
    envs.active[:] = True
    obs, _ = envs.reset()
    success = np.zeros(rows, bool)
    places: list[list[Array]] = [[obs[row, :2]] for row in range(rows)]
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
    paths = [np.stack(one) for one in places]
    return success.reshape(-1, DRAWS), [paths[i : i + DRAWS] for i in range(0, rows, DRAWS)]


def goal_taken(places: Array) -> int:
    """Return which goal an episode ended at: 0 right, 1 up, 2 left, 3 down."""
    x, y = places[-1]
    return (0 if x > 0 else 2) if abs(x) > abs(y) else (1 if y > 0 else 3)


def route_taken(places: Array) -> int:
    """Return 0 if an episode went above the block, 1 if it went below."""
    passed = places[np.argmax(places[:, 0] > 0)]  # where it first is right of the block's middle
    return int(passed[1] < 0)


def routes_are_even(obs: Array) -> bool:
    """Return whether the routes from a first observation differ by no more than 0.6 m.

    Each climbs or falls from start and goal to a corridor. So the difference of the two is twice
    the sum of how far start and goal are above the middle.
    """
    return bool(2 * abs(obs[1] + obs[5]) <= 0.6)


TASKS: dict[str, tuple[Callable[[Array], bool], Callable[[Array], int], int]] = {
    # Starts are within 0.3 m of the middle along either axis.
    "robotics/PointMaze-FourGoals-v0": (lambda obs: True, goal_taken, 4),
    "robotics/PointMaze-TwoRoutes-v0": (routes_are_even, route_taken, 2),
}
"""By task, whether ways from a start are even, which one an episode took, how many there are."""
OPTIONS: dict[str, dict[str, Any]] = {
    "robotics/PointMaze-FourGoals-v0": {},
    "robotics/PointMaze-TwoRoutes-v0": {"dense": True},
}
"""By task, the options with which the suite has it."""


def measure(policy: Policy, env: str, **options: Any) -> list[dict[str, Any]]:
    """Return what a policy does from each start: its draws, their ways, and successes when closed.

    Raises:
        TrimtabError: if it is no such task.
    """
    if env not in TASKS:
        raise TrimtabError(f"modes: {env} has no ways that are counted; {', '.join(TASKS)} have")
    _, taken, ways = TASKS[env]
    seeds = even_seeds(env, **options)
    counts = np.zeros((STARTS, ways), int)
    success, places = play(policy, env, seeds, **options)
    for start, draw in zip(*np.nonzero(success), strict=True):
        counts[start, taken(places[start][draw])] += 1
    closed: list[int | None] = [None] * STARTS
    if ways == len(GOAL_CELLS) and options.get("closed", "none") == "none":
        favourites = counts.argmax(1)
        for way, goal in enumerate(GOAL_CELLS):
            starts = np.flatnonzero(favourites == way)
            if len(starts):
                success, _ = play(policy, env, [seeds[start] for start in starts], closed=goal)
                for start, draws in zip(starts, success, strict=True):
                    closed[start] = int(draws.sum())
    return [
        {
            "start": start, "draws": DRAWS, "ways": " ".join(map(str, counts[start])),
            "closed": closed[start],
        }
        for start in range(STARTS)
    ]  # fmt: skip


def rows_of(folder: Path, known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return a run's rows; none if it is known by its hash and seed."""
    provenance = read_provenance(folder)
    run = provenance["config_hash"], str(provenance["seed"])
    if run in known:
        return []
    task = provenance["identity"]["task"]
    policy = load_bundle(folder / POLICY).policy
    named = {"env": task["id"], "config_hash": run[0], "seed": run[1]}
    return [{**named, **row} for row in measure(policy, task["id"], **task.get("options", {}))]


def random_rows(known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the rows of pushes at random on each task; none if they are known."""
    if (CONTROL, "0") in known:
        return []
    rows = []
    for env, options in OPTIONS.items():
        policy = TanhGaussianPolicy(spec_of(get_spec(env, **options), 1, "flat"), hidden=(8,))
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.zero_()  # mean 0, standard deviation 1
        named = {"env": env, "config_hash": CONTROL, "seed": "0"}
        rows += [{**named, **row} for row in measure(policy, env, **options)]
    return rows


def main(words: Sequence[str]) -> int:
    """Measure the runs that the words name; return 2, after one line, if that is refused."""
    named = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    folders = [Path(word) for word in words if not word.startswith("out=")]
    try:
        if len(named) != 1 or not folders:
            raise TrimtabError("modes: give out=modes.csv and folders of runs")
        out = Path(named[0])
        rows = read_rows(out)
        for folder in folders:
            known = {(row["config_hash"], row["seed"]) for row in rows}
            rows += random_rows(known) if str(folder) == "random" else rows_of(folder, known)
            atomic_write_text(out, csv_table(rows))
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def read_rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows that are there already.

    Raises:
        TrimtabError: if the file is there and has other columns.
    """
    if not out.is_file():
        return []
    with out.open(encoding="utf-8", newline="") as stream:
        rows: list[dict[str, Any]] = list(csv.DictReader(stream))
    if rows and tuple(rows[0]) != COLUMNS:
        raise TrimtabError(f"modes: {out}: its columns must be {', '.join(COLUMNS)}")
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
