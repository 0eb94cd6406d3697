"""What each command of the command line does. Tables and answers go to standard output."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from trimtab.benchmarks import build, config, provenance, rundir
from trimtab.benchmarks.catalog import describe_algorithm, is_faithful
from trimtab.benchmarks.cli import FILMED
from trimtab.benchmarks.evaluate import Act, Scores
from trimtab.benchmarks.screen import print_json, print_result, print_rows, progress_bar
from trimtab.benchmarks.sweep import sweep
from trimtab.policies.bundle import Bundle
from trimtab.types import TrimtabError

logger = logging.getLogger(__name__)


def train(words: Sequence[str]) -> int:
    """Carry out one run, or with ``-m`` one for each combination of comma-separated values."""
    many = {"-m", "--multirun"}
    overrides = [word for word in words if word not in many]
    for word in overrides:
        if word.startswith("-"):
            raise TrimtabError(f"train: no option {word}; settings are key=value, sweeps take -m")
    if len(overrides) < len(words):
        return sweep(overrides)
    settings = config.compose_run(overrides)

    from trimtab.benchmarks.train import train as carry_out

    with progress_bar(settings.algorithm) as tell:
        result = carry_out(settings, tell)
    print_result(result.folder, result.summary, already_done=result.already_done)
    return 0


def explain_run() -> list[str]:
    """Return the lines of help on the settings of a run: those of ``conf/config.yaml``."""
    lines = [f"  {line}" for line in config.settings_help()]
    for group in ("algorithm", "policy", "dataset"):
        lines.append(f"  {group}: {', '.join(config.group_options(group))}")
    lines += [
        "  algorithm.<keyword>, policy.<keyword>: settings of the chosen method and policy",
        "  -m: a sweep over comma-separated values, such as -m seed=0,1,2, in parallel",
    ]
    return lines


def bench(suite: str, runs: str, out: str, workers: int, seeds: str, format: str) -> int:
    """Carry out a suite, write its leaderboard, figure and bundle, and print the tables."""
    from trimtab.benchmarks import curves, figures
    from trimtab.benchmarks import leaderboard as boards
    from trimtab.benchmarks.rows import FILE_NAME, collect_files
    from trimtab.benchmarks.suite import load_suite, run_suite

    loaded = load_suite(suite, runs, _whole_numbers(seeds) if seeds else None)
    folder = Path(out) if out else Path(runs) / "suites" / suite
    console = Console(stderr=True)
    with rundir.locked(folder):
        outcome = run_suite(loaded, folder, workers=workers, console=console)
        console.print("computing the leaderboard", highlight=False)
        table = collect_files([path / FILE_NAME for path in outcome.folders.values()], Path(runs))
        board = boards.build(
            table,
            baselines=loaded.baselines or None,
            command=f"trimtab bench suite={suite}",
            versions=provenance.versions(),
            title=loaded.title,
        )
        paths = boards.write(board, folder)
        figure = folder / "figure.png"
        if not (outcome.already_done and figure.is_file()):
            console.print("drawing the figure", highlight=False)
            if loaded.figure is None:
                curves.draw(board, figure)
            else:
                figures.draw(loaded.figure, outcome, figure)
        bundle = folder / "bundle"
        if loaded.export is not None and not (outcome.already_done and bundle.is_dir()):
            console.print("exporting the bundle", highlight=False)
            first = loaded.jobs[0].seed
            build.export_bundle(outcome.folder(loaded.export, first), bundle)
    if format == "json":
        sys.stdout.write(board.to_json())
        return 0
    answer = Console()
    if outcome.already_done:
        answer.print(f"suite {suite}: all {len(loaded.jobs)} runs were done before; nothing to do")
    boards.print_table(board, answer)
    plain = Console(soft_wrap=True, highlight=False)
    plain.print(f"page:    {paths['index.html']}")
    plain.print(f"figure:  {figure}")
    if loaded.export is not None:
        plain.print(f"bundle:  {bundle}")
    plain.print(f"rows:    {paths[FILE_NAME]}")
    return 0


def _whole_numbers(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise TrimtabError(f"seeds={text}: must be whole numbers, such as 0,1,2") from error
    if not all(0 <= seed <= config.MOST["seed"] for seed in seeds):
        raise TrimtabError(f"seeds={text}: must be from 0 to {config.MOST['seed']}")
    if len(set(seeds)) < len(seeds):
        raise TrimtabError(f"seeds={text}: give each seed once")
    return seeds


def evaluate(
    policy: str,
    env: str,
    episodes: int,
    seed: int,
    backend: str,
    deterministic: str,
    env_options: str,
    video: str,
    video_episodes: int,
    format: str,
) -> int:
    """Judge a policy and print its scores with intervals; show episodes if a film is wanted."""
    import yaml

    from trimtab.benchmarks import video as films
    from trimtab.benchmarks.evaluate import Evaluator
    from trimtab.envs.registry import checked_names, get_spec
    from trimtab.types import PolicySpec

    if deterministic not in ("", "true", "false"):
        raise TrimtabError(f"evaluate: deterministic={deterministic}: must be true or false")
    bundle = build.load_base(policy)
    trained = bundle.config["env"]
    task = env or trained["id"]
    if env_options:
        try:
            options = yaml.safe_load(env_options)
        except yaml.YAMLError as error:
            raise TrimtabError(f"evaluate: env_options={env_options}: not YAML") from error
        if not isinstance(options, dict):
            raise TrimtabError("evaluate: env_options: such as {reward: sparse, horizon: 150}")
        options = checked_names(options)
    else:
        options = trained["options"] if task == trained["id"] else {}
    film_at = films.film_path(video, policy, task)
    if film_at is None and video_episodes != FILMED:
        raise TrimtabError(f"evaluate: video_episodes={video_episodes}: add video=… for a film")
    if film_at is not None:
        films.prepare(film_at, task)  # before a simulator is imported
    spec = get_spec(task, **options)
    act_steps = int(bundle.config["chunking"]["act_steps"])
    build.check_base_fits(
        bundle,
        PolicySpec(spec.obs_dim, act_steps, spec.action_dim, spec.action_low, spec.action_high),
        spec,
    )
    if spec.fingerprint != trained.get("fingerprint") and task == trained["id"]:
        logger.warning(
            "%s has another physics fingerprint (%s) here than where the policy was trained (%s)",
            task, spec.fingerprint, trained.get("fingerprint"),
        )  # fmt: skip
    zero_noise = bundle.config["evaluate_deterministic"]
    if deterministic:
        zero_noise = deterministic == "true"
    act: Act = BACKENDS[backend](bundle)
    with contextlib.ExitStack() as opened:
        evaluator = Evaluator(
            task, episodes=episodes, seed=seed, act_steps=act_steps, options=options
        )
        opened.callback(evaluator.close)
        film = None
        if film_at is not None:
            film = films.Film(task, episodes=video_episodes, act_steps=act_steps, options=options)
            opened.callback(film.close)
        scores = evaluator.judge(
            act, bundle.policy.noise_shape, deterministic=zero_noise,
            watch=None if film is None else film.watch,
        )  # fmt: skip
        facts = {
            "policy": str(policy), "env": task, "env_options": dict(options), "backend": backend,
            "fingerprint": spec.fingerprint, "deterministic": zero_noise,
        }  # fmt: skip
        _print_scores(facts, scores, format)
        if film is not None and film_at is not None:
            with progress_bar("video") as tell:
                film.write(film_at, scores, tell)
            Console(stderr=True, soft_wrap=True, highlight=False).print(f"video: {film_at}")
    return 0


def _print_scores(facts: Mapping[str, Any], scores: Scores, format: str) -> None:
    """Print scores with their intervals, and as JSON also every episode."""
    from trimtab.benchmarks import intervals, stats

    returns = [episode.return_ for episode in scores.episodes]
    interval = intervals.mean_interval([np.asarray(returns)])
    answer: dict[str, Any] = {
        **facts, "return": interval.value, "return_interval": [interval.low, interval.high],
    }  # fmt: skip
    rate = scores.success_rate
    if rate is not None:
        wilson = stats.wilson_interval(round(rate * len(returns)), len(returns))
        answer |= {"success": rate, "success_interval": [wilson.low, wilson.high]}
    answer["episodes"] = [
        {
            "eval_episode": e.eval_episode, "eval_seed": e.eval_seed, "return": e.return_,
            "success": e.success, "length": e.length,
        }
        for e in scores.episodes
    ]  # fmt: skip
    if format == "json":
        print_json(answer)
        return
    title = f"{facts['env']}, {len(returns)} episodes, {facts['backend']}"
    table = Table(title=title, title_justify="left")
    for heading in ("score", "mean", "95% interval"):
        table.add_column(heading)
    if rate is not None:
        low, high = answer["success_interval"]
        table.add_row("success", f"{rate:.2f}", f"{low:.2f} to {high:.2f}")
    table.add_row("return", f"{interval.value:.2f}", f"{interval.low:.2f} to {interval.high:.2f}")
    Console().print(table)


def _on_torch(bundle: Bundle) -> Act:
    from trimtab.benchmarks.evaluate import torch_act

    return torch_act(bundle.policy)


def _on_onnx(bundle: Bundle) -> Act:
    from trimtab.policies.runtime import load_policy

    runner = load_policy(bundle.folder)
    return lambda obs, noise: runner.predict(obs, noise)


BACKENDS: dict[str, Callable[[Bundle], Act]] = {"torch": _on_torch, "onnx": _on_onnx}
"""What can run a bundle's policy."""


def leaderboard(
    runs: str, out: str, baseline: str, metric: str, intervals: str, format: str
) -> int:
    """Recompute a leaderboard from raw rows."""
    from trimtab.benchmarks import interval_kinds
    from trimtab.benchmarks import leaderboard as boards
    from trimtab.benchmarks.rows import collect_episodes

    options: dict[str, Any] = {"metric": metric} if metric else {}
    command = f"trimtab leaderboard runs={runs}" + (f" baseline={baseline}" if baseline else "")
    if intervals != interval_kinds.KINDS[0]:
        command += f" intervals={intervals}"
    board = boards.build(
        collect_episodes(runs),
        baselines=baseline or None,
        intervals=intervals,
        command=command,
        versions=provenance.versions(),
        **options,
    )
    if out:
        paths = boards.write(board, out)
        logger.info("wrote %s", ", ".join(str(path) for path in paths.values()))
    if format == "json":
        sys.stdout.write(board.to_json())
    else:
        boards.print_table(board, Console())
    return 0


def export(run: str, out: str, env: str) -> int:
    """Write a bundle with ONNX and check it."""
    source = Path(run)
    if env and source.is_dir():
        raise TrimtabError(f"export: env={env}: {run} says itself what it is for; leave it out")
    if not env and source.is_file():
        raise TrimtabError(f"export: {run} does not say its task: add env=<a task>")
    errors = (
        build.export_sb3(source, env, Path(out)) if env else build.export_bundle(source, Path(out))
    )
    Console(soft_wrap=True, highlight=False).print(
        f"bundle: {out}; golden rows replay within "
        + ", ".join(f"{error:.1e} ({backend})" for backend, error in errors.items())
    )
    return 0


def list_things(what: str, tag: str, format: str) -> int:
    """Print what there is of one kind."""
    rows = LISTINGS[what](what, tag)
    if format == "json":
        print_json(rows)
        return 0
    print_rows(what, rows)
    if what in EXPLAINED_BY:
        print_rows(EXPLAINED_BY[what], LISTINGS[EXPLAINED_BY[what]](EXPLAINED_BY[what], ""))
    return 0


def _tasks(what: str, tag: str) -> list[dict[str, Any]]:
    from trimtab.envs.registry import list_tasks

    # A family's name selects as a tag does.
    tags = {name: {*task.tags, name.split("/", 1)[0]} for name, task in list_tasks().items()}
    wanted = {word.strip() for word in tag.split(",") if word.strip()}
    known = sorted(set().union(*tags.values()))
    for word in sorted(wanted.difference(known)):
        raise TrimtabError(f"list: no task has the tag {word!r}; there are: {', '.join(known)}")
    return [
        {
            what: name,
            "horizon": task.horizon,
            "success": task.success_key is not None,
            "tags": ", ".join(task.tags),
        }
        for name, task in list_tasks().items()
        if wanted <= tags[name]
    ]


def _families(what: str, tag: str) -> list[dict[str, Any]]:
    from trimtab.benchmarks.doctor import missing_packages
    from trimtab.envs.registry import list_families

    _refuse_tag(what, tag)
    rows = []
    for family in list_families():
        missing = missing_packages(family)
        installed = f"pip install '{family.install}'" if missing else "yes"
        rows.append({what: family.name, "tasks": len(family.tasks), "installed": installed})
    return rows


def _refuse_tag(what: str, tag: str) -> None:
    if tag:
        raise TrimtabError(f"list: tag={tag}: only env has tags, not {what}")


def _methods(what: str, tag: str) -> list[dict[str, Any]]:
    _refuse_tag(what, tag)
    rows = []
    for name in config.group_options(what):
        target = config.load_group(what, name)[what]["_target_"]
        summary, paper = describe_algorithm(target, config.heading(what, name))
        faithful = "yes" if is_faithful(target) else "no"
        rows.append({what: name, "faithful": faithful, "paper": paper, "summary": summary})
    return rows


def _files(*keys: str) -> Callable[[str, str], list[dict[str, Any]]]:
    """Return a listing of a group's files by some of their keys."""

    def listing(what: str, tag: str) -> list[dict[str, Any]]:
        _refuse_tag(what, tag)
        files = {name: config.load_group(what, name) for name in config.group_options(what)}
        return [{what: name, **{k: file.get(k) for k in keys}} for name, file in files.items()]

    return listing


LISTINGS: dict[str, Callable[[str, str], list[dict[str, Any]]]] = {
    "env": _tasks,
    "family": _families,
    "algorithm": _methods,
    "policy": _files("_target_"),
    "dataset": _files("id", "env", "episodes"),
    "suite": _files("title"),
}
"""How ``trimtab list`` finds what there is: (group, tag) -> rows."""

EXPLAINED_BY = {"env": "family"}
"""Listings that say something about another one; as a table, they follow it."""


def doctor(out: str, format: str) -> int:
    """Print what is wrong with this machine or installation; exit code 1 if anything is."""
    from trimtab.benchmarks.doctor import examine

    findings = examine(Path(out))
    if format == "json":
        print_json([finding.to_json() for finding in findings])
    else:
        print_rows("doctor", [finding.to_json() for finding in findings])
    return 1 if any(finding.level == "error" for finding in findings) else 0


def speed(only: str, rounds: int, scale: str, out: str, format: str) -> int:
    """Measure Trimtab against its peers, and with ``out`` also how costs grow."""
    from trimtab.benchmarks import speed as speeds
    from trimtab.benchmarks import speed_growth as growth
    from trimtab.benchmarks import speed_report as report

    factor, folder = speeds.check_scale(scale), Path(out)
    speeds.check_rounds(rounds)
    pairs, words = speeds.select(only, speeds.all_pairs(), ["growth", *growth.AXES])
    axes = [name for name in growth.AXES if "growth" in words or name in words]
    if only and axes and not out:
        raise TrimtabError(f"speed: only={only}: growth is written to files; add out=<folder>")
    rows: list[speeds.Row] = []
    if out:
        report.write_machine(folder, rounds, factor)  # a folder that cannot be written ends it here
    if pairs:
        done = functools.partial(report.write_rows, folder) if out else lambda rows: None
        with progress_bar("speed") as tell:
            rows = speeds.measure_all(pairs, rounds=rounds, scale=factor, progress=tell, done=done)
    if axes and out:
        with progress_bar("growth") as tell:
            points = growth.measure_axes(axes, rounds=rounds, scale=factor, progress=tell)
        growth.write_growth(folder, points)
    if format == "json":
        print_json([row.to_json() for row in rows])
    elif format == "markdown":
        sys.stdout.write(report.markdown(rows))
    elif rows:
        print_rows("ours / peer: above 1, ours is faster", [report.readable(r) for r in rows])
    if out:
        logger.info("wrote %s", folder)
    return 0
