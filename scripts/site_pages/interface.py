"""A page for every public module, whose docstrings mkdocstrings turns into text.

mkdocstrings reads source and imports nothing. It passes over folders without ``__init__.py``, which
all of ours are, so the public modules are laid out for it in a folder of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from site_pages.results import ROOT
from site_pages.text import Page, roles_as_code

MODULES = {
    "trimtab.benchmarks.api": "Train, evaluate and compare, from Python. All of it is in `trimtab` "
    "too: `trimtab.train`, `trimtab.evaluate`, `trimtab.export`, `trimtab.leaderboard`.",
    "trimtab.policies.opening": "Open a run or a bundle. `trimtab.load_policy` is the "
    "same function.",
    "trimtab.policies.runtime": "All that a robot imports: numpy and onnxruntime are enough.",
    "trimtab.policies.robot.runner": "A policy on a robot, a tick at a time.",
    "trimtab.policies.robot.modes": "How chunks become actions.",
    "trimtab.policies.robot.fallback": "What is played when nothing else can be.",
    "trimtab.policies.bundle.limits": "Limits that a bundle states for a robot's commands.",
    "trimtab.policies.robot.limits": "Limits of how fast commands change.",
    "trimtab.policies.robot.warning": "A warning of what is unlike the data of a policy.",
    "trimtab.policies.robot.loop": "A control loop with absolute deadlines.",
    "trimtab.envs.vector": "Environments side by side. `trimtab.make_vec` is the same function.",
    "trimtab.envs.registry": "Tasks by their ids, and single environments.",
    "trimtab.envs.core.spec": "What a task and a family of tasks say of themselves.",
    "trimtab.datasets.episodes": "What a dataset is, whatever format it was read from.",
    "trimtab.datasets.lint": "What may be wrong with a dataset.",
    "trimtab.policies.base": "What a policy is.",
    "trimtab.policies.bundle.bundle": "Policies as files.",
    "trimtab.algorithms.base": "What a method is, and what it is given.",
    "trimtab.algorithms.phases": "The parts of a run, one after the other.",
    "trimtab.types": "Batches, rollouts and shapes: what data, policies and methods share.",
    "trimtab.errors": "The one error of wrong input.",
}
"""Public modules, and a sentence on each."""


def pages() -> Iterator[Page]:
    """Yield the page of every public module, after one that leads to them."""
    lines = [f"- [`{name}`]({name}.md): {text}" for name, text in MODULES.items()]
    yield Page("api/index.md", "# From Python\n\n" + "\n".join(lines) + "\n")
    for name, text in MODULES.items():
        yield Page(f"api/{name}.md", f"# `{name}`\n\n{text}\n\n::: {name}\n")


def lay_out(folder: Path) -> None:
    """Write the public modules into a folder, as a package that is found by its files alone."""
    for name in ("trimtab.__init__", *MODULES):
        parts = name.split(".")
        source = (ROOT / "src").joinpath(*parts).with_suffix(".py")
        place = folder.joinpath(*parts).with_suffix(".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        for depth in range(1, len(parts)):
            (folder.joinpath(*parts[:depth]) / "__init__.py").touch()
        place.write_text(roles_as_code(source.read_text(encoding="utf-8")))
