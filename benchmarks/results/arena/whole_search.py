"""The whole search for a golden ticket on hoop: how ``whole_search.csv`` beside this was made.

In the arena's 15,000 steps the search tries 9 of its 20 tickets on hoop. With 60,000 it tries all,
in some 31,000. The clones are the arena's own (their configurations have the same hashes)::

    trimtab bench suite=arena scale=cpu only=hoop-flow,hoop-diffusion seeds=0,1,2,3,4 workers=2
    for clone in runs/metaworld/basketball-v3/bc/*/seed*; do
        trimtab train env=metaworld/basketball-v3 env_options.reward=sparse \
            env_options.horizon=200 env_options.terminate_on_success=true act_steps=4 \
            algorithm=golden_ticket algorithm.tickets=20 algorithm.episodes=8 \
            online_steps=60000 eval_every=60000 eval_episodes=50 base=$clone seed=${clone##*seed}
    done
    python benchmarks/results/arena/whole_search.py \
        runs/metaworld/basketball-v3/golden_ticket/*/seed*
    python benchmarks/results/arena/whole_search.py  # the table of whole_search.csv
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
FILE = HERE / "whole_search.csv"
COLUMNS = ["base", "seed", "tried", "env_steps", "seconds", "eval_seed", "success"]


def read(run: Path) -> pd.DataFrame:
    """Return the episodes in which the best ticket of a run was judged."""
    told = json.loads((run / "result.json").read_text(encoding="utf-8"))
    rows = pd.read_parquet(run / "episodes.parquet")
    rows = rows[rows["env_steps"] == told["env_steps"]]
    return rows.assign(
        base=told["policy"], tried=told["tried"], seconds=told["seconds"],
        success=rows["success"].astype(int),
    )[COLUMNS]  # fmt: skip


def table() -> str:
    """Return success of the whole search beside that of the arena's budget, in the same seeds."""
    arena = pd.read_csv(HERE / "arena.csv")
    found = pd.read_csv(FILE)
    lines = [
        "| clone | nine tickets | all twenty | a seed, nine | a seed, twenty | steps | seconds |",
        "|---|--:|--:|---|---|--:|--:|",
    ]
    for base in ("flow", "diffusion"):
        short = arena[(arena.task == "hoop") & (arena.base == base)]
        (row,) = short[short.method == "golden_ticket"].itertuples()
        whole = found[found.base == base]
        twenty = whole.groupby("seed").success.mean()
        seeds, finals = map(int, row.seeds.split()), map(float, row.finals.split())
        of_seed = dict(zip(seeds, finals, strict=True))
        nine = [of_seed[seed] for seed in twenty.index]
        lines.append(
            f"| {base} | {np.mean(nine):.2f} | {twenty.mean():.2f} | "
            f"{', '.join(f'{one:.2f}' for one in nine)} | "
            f"{', '.join(f'{one:.2f}' for one in twenty)} | "
            f"{whole.env_steps.mean():,.0f} | {whole.seconds.mean():.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        rows = pd.concat([read(Path(run)) for run in sys.argv[1:]])
        rows.sort_values(["base", "seed", "eval_seed"]).to_csv(FILE, index=False)
    sys.stdout.write(table())
