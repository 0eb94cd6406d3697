"""What result tables and ``trimtab list`` say about a method: read from its own docstring."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.training.settings.groups import group_options, heading, registered_target

NO_PAPER = "–"
"""Stands for the paper of a user's method that cites none."""
_PAPER = re.compile(r'"([^"]+)"\s*\(arXiv\s+(\d{4}\.\d{4,5})')


def describe_algorithm(target: str, heading: str = "", *, own: bool = False) -> tuple[str, str]:
    """Return a method's one line and its paper, ``title (arXiv number)``.

    Args:
        target: import path of the method's class.
        heading: comment at the top of its YAML; a method that is another one with settings of its
            own cites its paper there and begins with its one line.
        own: whether it is a user's.
    """
    module = importlib.import_module(target.rpartition(".")[0])
    of_its_own = _PAPER.search(heading)
    paper = of_its_own or _PAPER.search(" ".join((module.__doc__ or "").split()))
    about = heading if of_its_own or (own and paper is None and heading) else module.__doc__
    summary = (about or target).strip().splitlines()[0].rstrip(".")
    return summary, NO_PAPER if paper is None else f"{paper[1].rstrip(',')} (arXiv {paper[2]})"


FAMILIES: Mapping[str, str] = {
    "on_policy": "learn from what the policy of now does, each rollout once",
    "off_policy": "learn from all that was gathered",
    "offline": "learn from a dataset alone",
    "steering": "leave a policy as it is and choose its noise",
    "selection": "choose among a policy's samples",
    "editing": "change a policy's actions",
    "finetuning": "change a policy's weights, or make a new policy of it",
    "offline_to_online": "whole recipes: a dataset, then interaction",
    "peers": "other libraries, run by the same harness",
}
"""The folders of ``algorithms/`` with methods, and what the methods of each do."""


def family_of(target: str) -> str:
    """Return the family of a method: the folder of its module; ``own`` outside of the package.

    Args:
        target: import path of the method's class.
    """
    folders = target.split(".")[:-2]
    return folders[-1] if folders and folders[-1] in FAMILIES else "own"


def adaptations() -> list[str]:
    """Return the names of the methods that are adaptations of the papers that they name.

    A user's method may name none, and is no adaptation then.
    """
    targets = {name: registered_target("algorithm", name) for name in group_options("algorithm")}
    return [
        name
        for name, target in targets.items()
        if target
        and not is_faithful(target)
        and describe_algorithm(target, heading("algorithm", name), own=True)[1] != NO_PAPER
    ]


def is_faithful(target: str) -> bool:
    """Return whether a method does what its paper does; False for an adaptation.

    Args:
        target: import path of the method's class.
    """
    module, _, name = target.rpartition(".")
    kind: type[Algorithm] = getattr(importlib.import_module(module), name)
    return kind.faithful
