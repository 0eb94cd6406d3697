"""``trimtab export``: a bundle for a robot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trimtab.benchmarks.artefacts.changes import Change, measure_change, policy_settings
from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.cli.screen import print_line
from trimtab.benchmarks.core.numerals import lone_number
from trimtab.benchmarks.training.base import load_base
from trimtab.errors import TrimtabError

__all__ = ["export"]


def export(
    run: str,
    out: str,
    env: str,
    weights: str,
    episodes: int = 0,
    overrides: Sequence[str] = (),
) -> int:
    """Write a bundle with ONNX and check it; say what settings of acting change."""
    settings = policy_settings(list(overrides))
    if env and settings:
        raise TrimtabError(f"export: {overrides[0]}: {run} has no such setting; leave it out")
    if episodes and not settings:
        raise TrimtabError(
            f"export: episodes={episodes}: compares a policy with settings of its own, such as "
            "policy.sampling_steps=2; to judge one, use trimtab evaluate"
        )
    change = None
    if settings:
        change = measure_change(load_base(run), settings, episodes=episodes)
    errors = export_policy(run, out, env=env, weights=weights == "true", settings=settings)
    print_line(
        f"bundle: {out}; golden rows replay within "
        + ", ".join(f"{error:.1e} ({backend})" for backend, error in errors.items())
    )
    for line in () if change is None else _lines(change):
        print_line(line)
    return 0


def _lines(change: Change) -> Iterator[str]:
    """Yield what is said of a change."""
    for name, one in change.settings.items():
        yield f"changed: {name} from {one['from']} to {one['to']}"
    if not change.settings:
        yield "changed: nothing; these are the settings of the run"
    where = "its own policy visits" if change.visited else "of the data's range"
    noise = "the same noise" if change.same_noise else "zero noise"
    yield (
        f"actions: {change.mean:.2%} of their range from the run's own on average, at most "
        f"{change.largest:.2%}, on {change.rows} observations {where}, with {noise}"
    )
    for name, scores in zip(("own", "changed"), change.scores or (), strict=False):
        episodes, rate = len(scores.episodes), scores.success_rate
        mean = sum(one.return_ for one in scores.episodes) / episodes
        success = ""
        if rate is not None:
            low_high = wilson_interval(round(rate * episodes), episodes)
            success = f"success {low_high.text()}, "
        yield f"{name}: {success}return {lone_number(mean)} in {episodes} episodes"
