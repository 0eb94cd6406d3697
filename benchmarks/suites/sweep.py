"""A sweep: one run for each combination of comma-separated values, by one of Hydra's launchers."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.benchmarks.core.signals import sigterm_to_children, told_to_end
from trimtab.benchmarks.settings import config
from trimtab.benchmarks.settings.overrides import check_overrides, spell_out
from trimtab.errors import Stopped
from trimtab.files import sha256_json
from trimtab.types import TrimtabError


def sweep_job(composed: Any) -> dict[str, Any]:
    """Carry out one run of a sweep; what Hydra's launchers call in their workers."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig, OmegaConf, open_dict

    from trimtab.benchmarks.runs.train import train as carry_out

    if told_to_end():  # during a run before this one, in this process
        raise Stopped("not started")
    with_hydra = OmegaConf.create(OmegaConf.to_container(composed, resolve=False))
    assert isinstance(with_hydra, DictConfig)
    with open_dict(with_hydra):
        with_hydra.hydra = HydraConfig.get()
    result = carry_out(config.from_composed(with_hydra))
    return {"folder": str(result.folder), "already_done": result.already_done, **result.summary}


def sweep(overrides: Sequence[str], tell: Callable[[dict[str, Any]], None]) -> None:
    """Carry out a sweep with Hydra's launcher; joblib's, if it is there and none is named.

    Args:
        overrides: words of the run's settings, some of them with several values after commas.
        tell: called with what :func:`sweep_job` returned, for each run that came to its end.

    Raises:
        TrimtabError: if a word is wrong, or a run failed; the others have come to their end.
    """
    from hydra import initialize_config_module
    from hydra.core.utils import JobStatus
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    words = spell_out(overrides)
    named = any(word.startswith("hydra/launcher") for word in words)
    if not named and importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is not None:
        words += ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={os.cpu_count() or 1}"]
    try:
        with initialize_config_module("trimtab.conf", version_base="1.3"):
            words = check_overrides(words)
            runs = [config.from_composed(_compose(one)) for one in _combinations(words)]
        _check(runs)
        batches = _launch(words)
    except (HydraException, OmegaConfBaseException) as error:
        raise TrimtabError(f"sweep: {str(error).strip().splitlines()[0]}") from error
    jobs = [job for batch in batches for job in batch]
    failed = [job for job in jobs if job.status == JobStatus.FAILED]
    for job in jobs:
        if job.status == JobStatus.COMPLETED:
            tell(job.return_value)
    if failed:
        raise TrimtabError(f"{len(failed)} of {len(jobs)} runs failed: {_reason(failed[0])}")


def _launch(words: Sequence[str]) -> Any:
    """Hand the runs of a sweep to Hydra's launcher; return Hydra's batches of jobs.

    Raises:
        Stopped: SIGTERM came meanwhile; a launcher whose workers end then raises an error of its
            own, or none.
    """
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    with (
        initialize_config_module("trimtab.conf", version_base="1.3"),
        sigterm_to_children() as told,
    ):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        try:
            batches = hydra.multirun(
                config_name="config",
                task_function=sweep_job,
                overrides=[*words, "hydra.mode=MULTIRUN"],
                with_log_configuration=False,
            )
        except Exception as error:
            if told.is_set():
                raise _stopped() from error
            raise
    if told.is_set():
        raise _stopped()
    return batches


def _stopped() -> Stopped:
    return Stopped("sweep: stopped; the runs' states are saved, run the same command to go on")


def _check(runs: Sequence[config.RunConfig]) -> None:
    """Check all runs before any is started; those that differ by their seed alone, once.

    Raises:
        TrimtabError: what the run would end with.
    """
    from trimtab.benchmarks.runs.train import check

    seen = set()
    for run in runs:
        rest = sha256_json({key: value for key, value in run.settings.items() if key != "seed"})
        if rest not in seen:
            seen.add(rest)
            check(run)


def _combinations(words: Sequence[str]) -> list[list[str]]:
    """Return every combination of a sweep's words, as single runs take them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(words))
    choices = []
    for word, override in zip(words, parsed, strict=True):
        if override.key_or_group.startswith("hydra"):
            continue
        key = word.partition("=")[0]
        swept = override.is_sweep_override()
        values = override.sweep_string_iterator() if swept else ()
        choices.append([f"{key}={value}" for value in values] if swept else [word])
    return [list(words) for words in itertools.product(*choices)]


def _compose(words: Sequence[str]) -> Any:
    from hydra import compose

    return compose("config", overrides=list(words), return_hydra_config=True)


def _reason(job: Any) -> str:
    try:
        job.return_value  # noqa: B018 - Hydra raises the job's own error here
    except Exception as error:  # whatever the job raised
        return str(error.__cause__ or error)
    return "unknown"
