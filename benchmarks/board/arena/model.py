"""What the arena's tables are made of: one row a method on a task from one base, and its curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.stats import Array, Interval

__all__ = ["Arena", "ArenaRow", "Contest", "CurvePoint", "Overall"]


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation of all seeds: what had been spent by then, medians over seeds, and the score.

    ``episodes`` and ``seconds`` are those of training; ``return_`` is the mean return.
    """

    env_steps: float
    episodes: float
    seconds: float
    score: Interval
    return_: float


@dataclass(frozen=True)
class ArenaRow:
    """One method on one task from one kind of base.

    Attributes:
        task: name in the suite's grid.
        base: name of the kind of base; None for a method that starts from nothing.
        method: name in the suite's grid.
        variant: name of a further setting; None for the method's one setting for all tasks.
        algorithm: its registered name.
        config_hash: that of its rows.
        seeds: the seed of each run.
        score: success rate, or return, at the end.
        return_: mean return at the end.
        area: mean score over the whole budget of environment steps.
        regret: the largest area of this task and base less its own.
        worst_drop: how far the score fell below the frozen base's, at the worst evaluation of each
            seed; 0 where it never did; None without a base.
        gain: over the frozen base as it is sampled.
        control: the control with the highest score here.
        control_gain: over that control; None for controls themselves.
        episodes: training episodes, mean over seeds.
        seconds: wall time, median over seeds: a run that shared its processor counts as one run.
        trained_parameters: numbers that its optimisers move.
        base_distance: of its last policy from the base, in half ranges of an action.
        torch_ms: milliseconds of one decision in torch.
        onnx_ms: the same in onnxruntime.
        demonstrations: whether it drew on demonstrations while it learned online.
        finals: the score of each seed at the end, in the order of ``seeds``.
        areas: the area of each seed.
        curve: its evaluations.
        episode_scores: the scores of each seed's last evaluation, in the order of ``seeds``.
    """

    task: str
    base: str | None
    method: str
    variant: str | None
    algorithm: str
    config_hash: str
    seeds: tuple[int, ...]
    score: Interval
    return_: float
    area: float
    regret: float
    worst_drop: float | None
    gain: Interval | None
    control: str | None
    control_gain: Interval | None
    episodes: float
    seconds: float
    trained_parameters: int
    base_distance: float | None
    torch_ms: float | None
    onnx_ms: float | None
    demonstrations: bool
    finals: tuple[float, ...]
    areas: tuple[float, ...]
    curve: tuple[CurvePoint, ...]
    episode_scores: tuple[Array, ...] = ()

    @property
    def label(self) -> str:
        """What a table calls it."""
        return self.method if self.variant is None else f"{self.method} ({self.variant})"


@dataclass(frozen=True)
class Contest:
    """All rows of one task from one kind of base, those from nothing among them; best first."""

    task: str
    env: str
    base: str
    metric: Metric
    frozen: Interval | None
    rows: tuple[ArenaRow, ...]


@dataclass(frozen=True)
class Overall:
    """One method over all contests that are scored by success.

    Attributes:
        method: its name.
        contests: how many; runs that start from nothing are in one for each task.
        one_setting: mean success with one setting for all tasks.
        control: mean success of the best control of the same contests; not a number without one.
        regret: mean regret with that setting.
        tuned: mean success with the best setting of each contest, by the episodes that judge.
        tuning_episodes: training episodes of all settings that were tried, a contest; 0 where only
            one was.
    """

    method: str
    contests: int
    one_setting: float
    control: float
    regret: float
    tuned: float
    tuning_episodes: float


@dataclass(frozen=True)
class Arena:
    """Every contest, and the methods over all of them."""

    contests: tuple[Contest, ...]
    overall: tuple[Overall, ...]
    controls: Sequence[str]
