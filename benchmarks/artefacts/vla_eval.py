"""The scores of ``trimtab evaluate`` in the result file of vla-eval, for those who compare them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from trimtab.benchmarks.training.evaluate import Scores
from trimtab.version import __version__

__all__ = ["VLA_EVAL", "vla_eval_result"]

VLA_EVAL = "vla_eval.json"
"""Name of the file, beside the rows."""


def vla_eval_result(
    scores: Scores, facts: Mapping[str, Any], seed: int, timed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what vla-eval 0.8 writes of a benchmark, as one task of one.

    Metrics are ``return``, undiscounted, and ``success`` if the task has it.

    Args:
        scores: of the episodes.
        facts: of the evaluation; ``env`` is the task.
        seed: of the first episode; episode i has seed + i.
        timed: settings of simulated time; empty where the simulator waits for the policy, which
            vla-eval calls ``sync``.
    """
    episodes: list[dict[str, Any]] = [
        {
            "episode_id": one.eval_episode,
            "metrics": ({} if one.success is None else {"success": one.success})
            | {"return": one.return_},
            "steps": one.length,
            "elapsed_sec": round(one.seconds, 3),
        }
        for one in scores.episodes
    ]
    metrics: list[dict[str, Any]] = [episode["metrics"] for episode in episodes]
    means = {f"mean_{name}": float(np.mean([m[name] for m in metrics])) for name in metrics[0]}
    steps = float(np.mean([one.length for one in scores.episodes]))
    task = {"task": facts["env"], "episodes": episodes, "num_episodes": len(episodes)}
    return {
        "benchmark": "trimtab",
        "mode": "simulated_delay" if timed else "sync",
        "harness_version": f"trimtab {__version__}",
        "created_at": datetime.now(UTC).isoformat(),
        "tasks": [{**task, "avg_steps": steps, **means}],
        "config": {**facts, "params": {"seed": seed}},
        "num_errors": 0,
        "seed": seed,
        "metric_keys": dict.fromkeys(metrics[0], "mean"),
        **means,
    }
