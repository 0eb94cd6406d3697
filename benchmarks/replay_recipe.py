"""A recipe whose data is what one of our own methods gathered: the replay buffer of a whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks import build
from trimtab.benchmarks.checkpoint import load_checkpoint
from trimtab.benchmarks.config import compose_run
from trimtab.benchmarks.train import train
from trimtab.datasets.episodes import Episode
from trimtab.datasets.replay import ReplayBuffer
from trimtab.types import TrimtabError

__all__ = ["record_replay"]


def record_replay(
    recipe: Mapping[str, Any], runs: Path, progress: Callable[[float], None] = lambda share: None
) -> list[Episode]:
    """Carry out the recipe's run, or go on with it, and return what its replay buffer holds.

    Args:
        recipe: ``run`` holds words of ``trimtab train``, ``env`` and ``seed`` are the run's.
        runs: folder of the run.
        progress: called with the share that is done.

    Raises:
        TrimtabError: if the run fails or keeps no replay buffer of single steps.
    """
    words = [*recipe["run"], f"env={recipe['env']}", f"seed={recipe['seed']}", f"out={runs}"]
    options = (recipe.get("env_options") or {}).items()
    words += [f"env_options.{name}={value}" for name, value in options]
    config = compose_run(words)
    parts = build.components(config)
    if not config["online_steps"] or parts.make_algorithm().rollout_steps or parts.act_steps != 1:
        raise TrimtabError(
            f"recipe {recipe['id']}: a run of {config.algorithm} with these settings keeps no "
            "replay buffer of single steps; take an off-policy method, online_steps and act_steps=1"
        )
    result = train(config, lambda share, text: progress(share))
    state: Any = load_checkpoint(result.folder / "checkpoint")
    if state is None:
        raise TrimtabError(
            f"recipe {recipe['id']}: {result.folder} has lost its checkpoint; remove that folder"
        )
    return ReplayBuffer.from_state(state["experience"]["buffer"]).episodes()
