"""Formulas that Trimtab shares with peers: the samplers of diffusers, the statistics of rliable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings

from trimtab.benchmarks.board import stats
from trimtab.policies.networks.samplers import cosine_schedule

__all__ = ["PEERS"]

Array = NDArray[np.float64]


class Diffusers(Peer):
    """The step loops of diffusers, on a noise estimate that is often clipped."""

    name, package, side = "diffusers", "diffusers", "with_diffusers.py"
    requirements = ("torch==2.13.0", "numpy==1.26.4", "diffusers==0.42.1")

    batch, horizon, dim = 16, 3, 2
    # All steps, a divisor of them, numbers that do not divide them, and a single step.
    steps = ((20, 20), (20, 5), (20, 7), (20, 8), (20, 1), (100, 10), (100, 30), (1, 1))

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights of the estimate and the noise."""
        checks = []
        size = self.horizon * self.dim
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(size, size, generator=generator).double()

        def field(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            inside = x.flatten(1) @ weight + torch.sin(5 * time)
            return (1.5 * torch.tanh(inside)).reshape(x.shape)

        for part in ("ddim", "ddpm"):
            arrays, names = {"weight": weight.numpy()}, []
            for train_steps, steps in self.steps:
                sampler = cosine_schedule(part, train_steps, steps)
                shape = sampler.noise_shape(self.horizon, self.dim)
                noise = torch.randn(self.batch, *shape, generator=generator).double()
                name = f"{steps} of {train_steps} steps"
                arrays[name] = noise.numpy()
                names.append((name, train_steps, steps))
                what = f"action chunks of {part.upper()} from the same noise"
                ours = sampler(field, noise).numpy()
                # Single precision on both sides, through up to 30 steps.
                checks.append(Check(part, name, what, ours, 2e-6))
            write_arrays(folder / part, arrays)
            write_settings(folder / part, names)
        return checks


class Rliable(Peer):
    """rliable's estimates, and its intervals from the resamples that were drawn here."""

    name, package, side = "rliable", "rliable", "with_rliable.py"
    requirements = ("rliable==1.2.0", "pandas<3", "arch<8")

    tasks, runs, repetitions = 5, 8, 500
    statistics: dict[str, Callable[[Sequence[Array]], Array]] = {
        "interquartile mean": stats.aggregate_iqm,
        "mean": stats.aggregate_mean,
        "median": stats.aggregate_median,
        "optimality gap": stats.optimality_gap,
    }

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give scores ``[R, tasks]`` and the rows that are drawn of each task's runs."""
        rng = np.random.default_rng(0)
        # Success rates of 50 episodes, some above what is asked of them, moved a little so that no
        # two are equal: a resample is told by its values.
        scores = rng.binomial(50, 0.75, (self.runs, self.tasks)) / 40
        scores += rng.uniform(0, 1e-4, scores.shape)
        baseline = rng.binomial(50, 0.7, (self.runs, self.tasks)) / 40
        tasks = list(scores.T)
        checks, rows = [], np.empty(0)
        for name, statistic in self.statistics.items():
            seen: list[Sequence[Array]] = []

            def noted(drawn: Any, statistic: Any = statistic, seen: Any = seen) -> Any:
                seen.append(drawn)
                return statistic(drawn)

            interval = stats.stratified_bootstrap(tasks, noted, repetitions=self.repetitions)
            rows = np.stack([found(*pair) for pair in zip(tasks, seen[-1], strict=True)], axis=-1)
            ends = np.array([interval.low, interval.high])
            words = f"{name} of {self.tasks} tasks with {self.runs} runs"
            checks.append(Check("scores", name, words, statistic(tasks), 2e-12))
            words = f"percentile interval of the {name} from the same {len(rows)} resamples"
            checks.append(Check("scores", f"interval of the {name}", words, ends, 2e-12))
        improvement = stats.improvement_bootstrap(tasks, list(baseline.T), repetitions=2)
        checks.append(
            Check(
                "scores",
                "probability of improvement",
                "chance that a run beats one of the baseline, ties by half",
                np.array(improvement.value),
                2e-12,
            )
        )
        write_arrays(folder / "scores", {"scores": scores, "baseline": baseline, "rows": rows})
        return checks


def found(task: Array, drawn: Array) -> NDArray[np.int64]:
    """Return which of a task's runs ``[R]`` were drawn, as ``[repetitions, R]`` indices."""
    order = np.argsort(task)
    rows = order[np.searchsorted(task, drawn, sorter=order)]
    assert (task[rows] == drawn).all()
    return rows


PEERS: tuple[Peer, ...] = (Diffusers(), Rliable())
