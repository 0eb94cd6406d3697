"""What data keep to, a recipe or files in any format, before runs learn from them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from trimtab.benchmarks.contracts.base import Broken, Checks, require
from trimtab.benchmarks.contracts.resuming import STOPPED, TASK, check_resuming
from trimtab.benchmarks.core.own_code import in_a_line
from trimtab.benchmarks.core.pools import call_elsewhere
from trimtab.benchmarks.training.data.recipes import is_recipe_section
from trimtab.benchmarks.training.dataset import load_dataset
from trimtab.benchmarks.training.matching import check_dataset_fits
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.datasets import lint
from trimtab.datasets.episodes import Dataset
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

__all__ = ["CHECKS", "Subject"]

_FEW = {"episodes": 8, "steps": 2000}
"""At most so many of a recipe are made."""


class Subject:
    """Data that are looked at.

    Args:
        words: ``dataset=…`` with its settings, and what else a run on it needs, such as ``env=…``.

    Raises:
        TrimtabError: if there are no such data, or their task is not known.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = [*words, "algorithm=bc", "policy=flow"]
        given = {word.partition("=")[0] for word in words}
        config = self._composed([] if "env" in given else [f"env={TASK}"])
        section = config["dataset"]
        self.recipe = is_recipe_section(section)
        if self.recipe:
            self.words += [
                f"dataset.{name}={most}"
                for name, most in _FEW.items()
                if isinstance(section.get(name), int) and section[name] > most
                if f"dataset.{name}" not in given
            ]
        if "env" not in given:
            self.words += self._task_of(config)
        config = self._composed([])
        self.env: EnvSpec = get_spec(config["env"], **(config["env_options"] or {}))

    def _task_of(self, config: RunConfig) -> list[str]:
        """Return the words of the task that data are of."""
        if self.recipe:
            made_in, options = config["dataset"]["env"], config["dataset"].get("env_options") or {}
        else:
            data = load_dataset(config, get_spec(TASK))
            made_in, options = data.env, data.env_options
        if not isinstance(made_in, str) or not made_in or made_in == "unknown":
            raise TrimtabError("check: the data do not say their task; add env=<a task>")
        chosen = {name: value for name, value in options.items() if value is not None}
        return [
            f"env={made_in}",
            *(f"env_options.{name}={value}" for name, value in chosen.items()),
        ]

    def _composed(self, more: Sequence[str], out: str = "runs") -> RunConfig:
        return compose_run([*self.words, *more, f"out={out}", "other_task=true"])

    def made(self, out: str) -> Dataset:
        """Return the data, which are recorded below a folder where they are a recipe's."""
        return load_dataset(self._composed([], out), self.env)


def _digest(words: Sequence[str], out: str) -> str:
    with in_a_line():
        return Subject(words).made(out).content_hash


def check_made(subject: Subject) -> str:
    """A recipe that is recorded again, in another process, has the same content."""
    if not subject.recipe:
        return "none: it is no recipe"
    with tempfile.TemporaryDirectory() as folder:
        words = [word for word in subject.words if word not in ("algorithm=bc", "policy=flow")]
        digests = [
            call_elsewhere(_digest, words, str(Path(folder) / name), stopped=STOPPED)
            for name in ("first", "second")
        ]
    require(
        digests[0] == digests[1],
        "recorded twice, its content differs: something decides it besides the recipe and its "
        "seed, such as numpy's global generator, the time, or hash() of a text",
    )
    return "recorded twice, its content is the same"


def check_contents(subject: Subject) -> str:
    """Nothing in the data makes training on them wrong, and they have the task's shapes."""
    with tempfile.TemporaryDirectory() as folder:
        data = subject.made(folder)
        check_dataset_fits(data, subject.env, other_task=True)
        found = lint.check(data)
        size = f"{len(data.episodes)} episodes, {data.num_steps} steps"
    wrong = [one for one in found if one.level == "error"]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Broken(f"{wrong[0].where}: {wrong[0].message}{more}")
    notes = "".join(f"; {one.where}: {one.message}" for one in found[:3])
    return f"{size}, observation {data.obs_dim}, action {data.action_dim}{notes}"


def check_learning(subject: Subject) -> str:
    """A run of behaviour cloning learns from it, and goes on to the same bits when it is killed."""
    return check_resuming([*subject.words, "other_task=true"])


CHECKS: Checks = {"made": check_made, "contents": check_contents, "resume": check_learning}
"""What data are checked for."""
