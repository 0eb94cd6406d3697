"""The settings of runs by the words that the command line takes, and in which of them runs differ.

A run is known by its identity document, where every keyword has its value; ``config.yaml`` has what
is no part of it, such as the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.folder import read_config, read_provenance
from trimtab.benchmarks.training.without_task import NO_TASK
from trimtab.errors import TrimtabError
from trimtab.plugins import command_line

__all__ = ["command_of", "differing", "identity_words", "settings_of", "text_of", "words_of"]

_WORDS = {
    "task.id": "env",
    "task.observations": "observations",
    "task.history": "history",
    "method.name": "algorithm",
    "source.name": "source",
    "policy.name": "policy",
    "base": "base",
    "decision.act_steps": "act_steps",
    "decision.discount": "discount",
    "evaluation.every": "eval_every",
    "evaluation.episodes": "eval_episodes",
    "evaluation.first_seed": "eval_seed",
    "evaluation.deterministic": "eval_deterministic",
    "evaluation.stop_at_success": "stop_at_success",
    "numerics.threads": "threads",
    "offline.steps": "offline_steps",
    "holdout.share": "holdout",
    "holdout.stop_after": "stop_after",
    "weighting.by": "dataset_weighting",
    "weighting.temperature": "weighting_temperature",
    "online.steps": "online_steps",
    "online.environments": "num_envs",
    "online.buffer_size": "buffer_size",
    "online.offline_share": "offline_share",
    "collection.overlap": "overlap",
}
"""What is called what on the command line, by its path in an identity document."""
_GROUPS = {
    "method.settings.": "algorithm.",
    "policy.settings.": "policy.",
    "task.options.": "env_options.",
    "offline.dataset.": "dataset.",
    "source.settings.": "source.",
}
_OWN = ("out", "suite_name")
"""Settings that say where a run lies and how it was started, not what it is."""
_BY_PATH = ("base", "expert", "oracles")
"""Settings that are named by what the user wrote, where that is known."""
_DERIVED = ("acts", "version", "protocol")
"""What follows from the rest of an identity document, or is counted by the harness."""


def identity_words(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides a run's numbers, by the words of the command line.

    Args:
        document: the identity of a run, as :mod:`trimtab.benchmarks.training.identity` makes it; of
            one of version 1 nothing is returned.
    """
    if document.get("version") is None:
        return {}
    found: dict[str, Any] = {}
    for path, value in _leaves({k: v for k, v in document.items() if k not in _DERIVED}):
        if path in ("policy", "task.physics") or value == {}:
            continue  # no policy is chosen; and tables have one physics each
        word = _WORDS.get(path, path)
        for start, named in _GROUPS.items():
            word = named + word.removeprefix(start) if word.startswith(start) else word
        found[word] = value
    return found


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in ``folder``, without those of a file that is damaged."""
    found: dict[str, Any] = {}
    config, provenance = _or_nothing(read_config, folder), _or_nothing(read_provenance, folder)
    for path, value in _leaves({key: one for key, one in config.items() if key not in _OWN}):
        if not path.endswith("_target_") and path not in ("algorithm", "policy"):
            found[path] = value
    known = identity_words(provenance.get("identity", {}))
    for word, value in known.items():
        # What a run starts from and its data are named as the user named them, if that is known.
        if not (word in found and word in _BY_PATH or word.startswith("dataset.") and config):
            found[word] = value
    if not config and "seed" in provenance:
        found["seed"] = provenance["seed"]
    return found


def differing(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each run the settings in which it differs from another one.

    A method's own settings are compared among the runs of that method, and so are those of a
    policy: two methods differ in nearly all of them.

    Args:
        runs: settings of each.
    """
    names = list(dict.fromkeys(name for run in runs for name in run))
    answer: list[dict[str, Any]] = [{} for _ in runs]
    for name in names:
        group = name.partition(".")[0]
        among: dict[str, list[int]] = {}
        for number, run in enumerate(runs):
            kind = str(run.get(group)) if group in ("algorithm", "policy") and "." in name else ""
            among.setdefault(kind, []).append(number)
        for numbers in among.values():
            if len({text_of(runs[number].get(name)) for number in numbers}) > 1:
                for number in numbers:
                    answer[number][name] = runs[number].get(name)
    return answer


def text_of(value: Any) -> str:
    """Return the value of a setting as the command line takes it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), default=str)


def command_of(folder: Path) -> str | None:
    """Return the ``trimtab train`` command of the run in ``folder``; None where it is not known.

    Its ``out`` is where the folder is now.
    """
    words, named = words_of(folder)
    if not words:
        return None
    return command_line("train", *words, *_out(folder, words), named=named)


def words_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return what asked for the run in ``folder``: its words but ``out``, and its plug-ins.

    There are none if its provenance cannot be read.
    """
    told = _or_nothing(read_provenance, folder)
    words, named = told.get("command", []), told.get("plugins", [])
    # A suite's later word wins over an earlier one; train takes each setting once.
    last = {word.partition("=")[0].lstrip("+~"): word for word in words}
    return [word for key, word in last.items() if key != "out"], named


def _out(folder: Path, words: Iterable[str]) -> list[str]:
    """Return the word for where a run lies: above its task, method, hash and seed."""
    env = next((word.partition("=")[2] for word in words if word.startswith("env=")), NO_TASK)
    above = folder.absolute().parents
    depth = 2 + len(Path(env).parts) if env else 0
    task = Path(env).parts
    if env and len(above) > depth and above[1].relative_to(above[depth]).parts[: len(task)] == task:
        out = folder.parents[depth] if len(folder.parents) > depth else above[depth]
        return [f"out={out}"]
    return []


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield what is in a tree of mappings, by its path."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _or_nothing(read: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any]:
    try:
        return read(folder)
    except TrimtabError:
        return {}
