"""Settings under which values have known answers, and when learning has found one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from loading import load_module

chain = load_module(Path(__file__).with_name("chain.py"))

NAMES = [file.stem for file in chain.FILES]
EXACT: dict[str, Any] = {  # settings under which a fixed policy's value is all there is to learn
    "hidden": [32, 32],
    "layer_norm": False,
    "learning_rate": 5e-3,
    "tau": 0.2,
    "magnitude": 1.0,
    "initial_temperature": 0.1,
    "backup_entropy": False,
    "target_noise": 0.0,
    "expectile": 0.5,
    "critics": 3,
    "experts": 1,
    "actor_every": 1,
    "student_hidden": [32, 32],
    "vae_hidden": [16],
    "online_imitation": 0.0,
    "actor_learning_rate": 5e-3,
    "critic_learning_rate": 5e-3,
    "actor_penalty": 0.0,
    "critic_penalty": 0.0,
    "conservative_weight": 0.0,
    "max_backup": False,
    "diversity": 0.0,
    "policy_smoothness": 0.0,
    "value_smoothness": 0.0,
    "caution": 0.0,
    "samples": 2,
    "dropout": 0.0,
    "penalty": 0.0,
    "actor_width": 32,
    "critic_width": 96,  # of unit weights: their number bounds how sharp a distribution is
    "critic_hidden": [32, 32],
    "weight_decay": 0.0,
    "decay_steps": None,
    "flow_steps": 1,  # so that a plan can be held
}

TOLERANCE = {"dsrl_na": 0.25}  # half its critics copy others on latents that nobody acted with
TOLERANCE |= {"crossq": 0.3}  # read by running statistics, which lag behind


@functools.cache
def with_critics() -> list[str]:
    """Return the names of the methods that have state-action values; none is built for it."""
    read, unread = chain.WITH_CRITICS, chain.UNREAD
    kinds = {name: chain.class_named(name) for name in NAMES}
    found = [name for name, kind in kinds.items() if issubclass(kind, read)]
    return [name for name in found if not issubclass(kinds[name], unread)]


def with_values() -> list[str]:
    """Return the names of the methods that have state values."""
    return [name for name in NAMES if issubclass(chain.class_named(name), chain.WITH_VALUES)]


def settled(
    update: Callable[[], object],
    found: Callable[[], float],
    bound: float,
    most: int,
    every: int = 25,
) -> float:
    """Update until the error is below two thirds of ``bound`` twice in a row; return it.

    It is measured every so many updates. After ``most`` updates, return the error found then.
    Between two thirds and the whole bound only that counts: on its way to a wrong answer a method
    may pass by the right one.
    """
    assert most % every == 0
    below, error = 0, float("inf")
    for number in range(1, most + 1):
        update()
        if number % every == 0:
            error = found()
            below = below + 1 if error < bound * 2 / 3 else 0
            if below == 2:
                break
    return error


def largest(errors: Iterable[float]) -> float:
    """Return the largest error; not a number if one is none, which ``max`` would leave out."""
    return float(np.max(list(errors)))
