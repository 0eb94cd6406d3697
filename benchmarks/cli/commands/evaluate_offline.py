"""``trimtab evaluate offline=true``: what a dataset alone says of the return of policies."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board import ranks
from trimtab.benchmarks.cli.screen import print_json, print_line, print_rows, progress_bar
from trimtab.benchmarks.core.numerals import lone_number
from trimtab.benchmarks.training import base
from trimtab.benchmarks.training.dataset import load_dataset
from trimtab.benchmarks.training.folder import find_runs, is_run, read_result
from trimtab.benchmarks.training.judging import task_of
from trimtab.benchmarks.training.matching import check_dataset_fits, check_policy_fits
from trimtab.benchmarks.training.offline_judge import ESTIMATORS, Estimate, OfflineJudge
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.words import listed, nearest
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.benchmarks.training.without_task import has_task, spec_of_data
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import Bundle

__all__ = ["evaluate_offline"]

logger = logging.getLogger(__name__)


def evaluate_offline(
    *,
    place: str,
    dataset: str,
    overrides: list[str],
    estimator: str,
    updates: int,
    discount: float,
    seed: int,
    out: str,
    format: str,
) -> int:
    """Print what each estimator says of one policy, or of each finished run in a folder.

    Raises:
        TrimtabError: if a word is wrong, or the data does not fit a policy.
    """
    wanted = listed(estimator) or list(ESTIMATORS)
    for name in wanted:
        if name not in ESTIMATORS:
            raise TrimtabError(f"evaluate: estimator={name}: {nearest(name, ESTIMATORS)}")
    if not dataset:
        raise TrimtabError("evaluate: offline=true: dataset is not given: a dataset of the task")
    folders = _folders(place)
    bundles = [base.load_base(str(folder)) for folder in folders]
    first = bundles[0]
    kind = _kind_of(first)
    for bundle in bundles[1:]:
        if _kind_of(bundle) != kind:
            raise TrimtabError(
                f"evaluate: offline=true: {first.folder} and {bundle.folder} are of another task "
                "or chunk length; give runs of one"
            )
    if out and not has_task(first.config["env"]["id"]):
        raise TrimtabError(
            f"evaluate: out={out}: the policies in {place} were never played, so there is no true "
            "return to rank them by; leave it out"
        )
    judge = _judge(first, dataset, overrides, discount, updates, seed)
    folders, bundles = _checked(judge, folders, bundles)
    if out and len(folders) < 3:
        raise TrimtabError(
            f"evaluate: out={out}: a rank correlation wants at least 3 finished runs, and {place} "
            f"has {len(folders)}; give a folder with more of them"
        )
    known = [_estimates(judge, bundle, wanted, bool(estimator)) for bundle in bundles]
    _print(folders, known, judge, format)
    if out:
        judged = [_judged(Path(place), *pair) for pair in zip(folders, known, strict=True)]
        paths = ranks.write(judged, Path(out))
        if format == "table":
            print_line(ranks.to_markdown(ranks.rank(judged)))
        logger.info("wrote %s", ", ".join(str(path) for path in paths.values()))
    return 0


def _checked(
    judge: OfflineJudge, folders: list[Path], bundles: list[Bundle]
) -> tuple[list[Path], list[Bundle]]:
    """Return what can be judged; of several policies, others are named and left out.

    Raises:
        TrimtabError: if there is none.
    """
    kept = []
    for folder, bundle in zip(folders, bundles, strict=True):
        try:
            judge.check(bundle.policy)
        except TrimtabError as error:
            if len(folders) == 1:
                raise
            logger.warning("%s: left out: %s", folder, error)
        else:
            kept.append((folder, bundle))
    if not kept:
        raise TrimtabError("evaluate: offline=true: none of these policies can be judged")
    return [folder for folder, _ in kept], [bundle for _, bundle in kept]


def _folders(place: str) -> list[Path]:
    """Return the policy that a folder is, or all finished runs in it."""
    folder = Path(place)
    if is_run(folder) or not folder.is_dir() or (folder / "config.json").is_file():
        return [folder]
    runs = [run for run in find_runs(folder) if (run / "policy" / "config.json").is_file()]
    if not runs:
        raise TrimtabError(
            f"evaluate: {place} is neither a run nor a bundle, and no finished run lies in it"
        )
    return runs


def _kind_of(bundle: Bundle) -> tuple[Any, ...]:
    """Return what policies must share to be judged by one dataset."""
    return bundle.config["env"]["id"], bundle.config["chunking"]["act_steps"]


def _judge(
    bundle: Bundle, dataset: str, overrides: list[str], discount: float, updates: int, seed: int
) -> OfflineJudge:
    """Return the judge of a bundle's task by a dataset, which must be of that task."""
    words = ["algorithm=bc", "policy=gaussian", f"dataset={dataset}", *overrides]
    act_steps = int(bundle.config["chunking"]["act_steps"])
    if has_task(bundle.config["env"]["id"]):
        task, options = task_of(bundle, None, None)
        env = get_spec(task, **options)
        words += [f"env={task}", *(f"env_options.{key}={x}" for key, x in options.items())]
        config = compose_run(words)
        data = load_dataset(config, env)
        check_dataset_fits(data, env, other_task=config["other_task"])
    else:
        config = compose_run(words)
        data = load_dataset(config, None)
        env, _ = spec_of_data(config, data)
        trained = bundle.policy.spec  # other data without limits of its own reaches others
        env = replace(env, action_low=trained.action_low, action_high=trained.action_high)
        check_policy_fits(bundle, spec_of(env, act_steps), env, called="policy")
    spec = spec_of(env, act_steps, "flat")
    return OfflineJudge(data, spec, discount=discount, updates=updates, seed=seed)


def _estimates(
    judge: OfflineJudge, bundle: Bundle, wanted: list[str], asked: bool
) -> list[Estimate]:
    """Return what estimators say of a policy; one that cannot is left out unless asked for."""
    deterministic = bool(bundle.config["evaluate_deterministic"])
    found = []
    for name in wanted:
        with progress_bar(name) as tell:
            try:
                found.append(
                    ESTIMATORS[name](
                        judge, bundle.policy, deterministic, lambda share: tell(share, "")
                    )
                )
            except TrimtabError as error:
                if asked:
                    raise
                logger.warning("%s: left out: %s", name, error)
    return found


def _print(
    folders: list[Path], known: list[list[Estimate]], judge: OfflineJudge, format: str
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "run": str(folder), "estimator": one.estimator, "value": one.value, "note": one.note,
        }
        for folder, estimates in zip(folders, known, strict=True)
        for one in estimates
    ]  # fmt: skip
    if format == "json":
        print_json({"dataset": judge.dataset.id, "discount": judge.discount, "estimates": rows})
        return
    title = f"discounted return ({judge.discount}) by {judge.dataset.id} alone"
    print_rows(title, [{**row, "value": lone_number(row["value"])} for row in rows])


def _judged(place: Path, folder: Path, estimates: list[Estimate]) -> ranks.Judged:
    """Return a run's estimates and its true return; it is named by its way from ``place``."""
    result = read_result(folder)
    return ranks.Judged(
        run=folder.relative_to(place).as_posix(),
        label=str(result["algorithm"]),
        updates=int(result["updates"]),
        true_return=float(result["return"]),
        estimates={one.estimator: one.value for one in estimates},
    )
