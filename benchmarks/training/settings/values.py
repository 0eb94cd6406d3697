"""What the values of a run's settings must be, whatever its method is."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.generator import Generator
from trimtab.benchmarks.training.settings.constructors import check_keywords, class_of, keywords
from trimtab.benchmarks.training.settings.groups import CONSTRUCTED
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.datasets.sources.weighting import SCORES
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.settings import fits

__all__ = ["MOST_SEED", "as_whole", "check_device", "check_values"]

MOST_SEED = 2**32 - 1
"""The largest seed: NumPy's older generators take no more."""
_MOST_COUNT = 2**31 - 1
_MOST_HISTORY = 10_000
_MOST_ENVS = 1 << 16  # side by side; simulators of one episode at a time take far fewer
_MOST_ACT_STEPS = 1000  # of a chunk; longer ones are whole episodes, and networks as wide
_MOST_BATCH = 1 << 20  # rows that one update holds in memory
_MOST_SAMPLING_STEPS = 10_000  # of one action; published policies take 1 to 1,000
_MOST_NETWORKS = 1000  # side by side, or layers one after another; published methods have up to 500
_MOST_WIDTH = 1 << 16  # of a layer
_MOST_DRAWN = 10_000  # times that one decision, or one row of a batch, is thought over
_MOST_THREADS = 256  # more torch threads than this exhaust a machine rather than speed it up

Rule = Callable[[Any], str | None]
"""Says what a value must be, or None where it is right."""


def whole(least: int, most: int = 2**63 - 1) -> Rule:
    """Return the rule of whole numbers from ``least`` to ``most``."""

    def rule(value: Any) -> str | None:
        if isinstance(value, list):
            return "must be one whole number; several are a sweep: commas between them, and -m"
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            return f"must be a whole number of at least {least}"
        return f"must be at most {most}" if value > most else None

    return rule


def number(least: float, most: float) -> Rule:
    """Return the rule of numbers from ``least`` to ``most``."""

    def rule(value: Any) -> str | None:
        right = fits(value, float) and least <= value <= most
        return None if right else f"must be a number from {least:g} to {most:g}"

    return rule


def share(value: Any) -> str | None:
    """Return what is wrong with a share that is neither nothing nor all."""
    right = fits(value, float) and 0 < value < 1
    return None if right else "must be a number between 0 and 1, such as 0.1"


def positive(value: Any) -> str | None:
    """Return what is wrong with a number that has to be above 0, infinity included."""
    right = fits(value, float) and value > 0
    return None if right else "must be a number greater than 0"


def at_least_zero(value: Any) -> str | None:
    """Return what is wrong with a number that must not be below 0."""
    right = fits(value, float) and 0 <= value < math.inf
    return None if right else "must be a number of at least 0"


def text(value: Any) -> str | None:
    """Return what is wrong with a text."""
    if not isinstance(value, str):
        return "must be text; put a number in quotes"
    return None if value else "is empty; give it a value, or leave it out"


def listed(value: Any) -> str | None:
    """Return what is wrong with names after commas, which are one text."""
    return None if isinstance(value, str) and value else "must be text; quote what has a comma"


def names(value: Any) -> str | None:
    """Return what is wrong with a name, or a list of names, or null."""
    listed = [value] if isinstance(value, str) else ([] if value is None else value)
    right = isinstance(listed, list) and all(isinstance(name, str) and name for name in listed)
    return None if right else "must be a name, or several, such as [tensorboard,wandb]"


def task(value: Any) -> str | None:
    """Return what is wrong with the id of a task, as far as its type goes."""
    return None if isinstance(value, str) else "must be the id of a task; see trimtab list env"


def flag(value: Any) -> str | None:
    """Return what is wrong with a truth value."""
    return None if isinstance(value, bool) else "must be true or false"


def flag_or_null(value: Any) -> str | None:
    """Return what is wrong with a truth value that may be left open."""
    return None if isinstance(value, bool | None) else "must be true, false or null"


def name_of(known: Mapping[str, Any], what: str) -> Rule:
    """Return the rule of a name that is one of ``known``."""

    def rule(value: Any) -> str | None:
        right = isinstance(value, str) and value in known
        return None if right else f"there is no such {what}; {nearest(str(value), known)}"

    return rule


def most(limit: int) -> Rule:
    """Return the rule of counts up to ``limit``, whose least the method itself knows."""
    return lambda value: f"must be at most {limit}" if (value or 0) > limit else None


def possible(value: Any) -> str | None:
    """Return what is wrong with a number that no setting can have; other values are right."""
    if isinstance(value, float) and math.isnan(value):
        return "is not a number"
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"must be at most {2**63 - 1}"
    return None


def optional(rule: Rule) -> Rule:
    """Return a rule that also lets null pass."""
    return lambda value: None if value is None else rule(value)


def folders(value: Any) -> str | None:
    """Return what is wrong with a list of folders."""
    right = isinstance(value, list) and value and all(isinstance(x, str) and x for x in value)
    return None if right else "must be a list of runs or bundles, such as [runs/a,runs/b]"


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "env": optional(task),
        "seed": whole(0, MOST_SEED),
        "num_envs": whole(1, _MOST_ENVS),
        "threads": whole(1, _MOST_THREADS),
        "act_steps": optional(whole(1, _MOST_ACT_STEPS)),
        "buffer_size": whole(1),
        "offline_steps": whole(0),
        "online_steps": whole(0),
        "eval_every": optional(whole(1)),
        "eval_episodes": whole(1, _MOST_COUNT),
        "stop_at_success": optional(number(0, 1)),
        "eval_seed": whole(0, MOST_SEED),
        "checkpoint_every": whole(1),
        "stream_above": optional(whole(0)),
        "discount": number(0, 1),
        "offline_share": number(0, 1),
        "holdout": optional(share),
        "stop_after": optional(whole(1)),
        "contract": optional(text),
        "dataset_weighting": optional(name_of(SCORES, "weighting")),
        "weighting_temperature": positive,
        "base": optional(text),
        "oracles": optional(folders),
        "expert": optional(text),
        "device": text,
        "history": optional(whole(1, _MOST_HISTORY)),
        "observations": optional(name_of({"flat": 0, "dict": 0}, "way to give observations")),
        "tracker": names,
        "suite_name": optional(text),
        "out": text,
        "eval_deterministic": flag_or_null,
        "keep_policies": flag,
        "other_task": flag,
    }
)
"""Rules of settings, by name."""
_KEYWORD_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "batch_size": whole(1, _MOST_BATCH),
        "sampling_steps": whole(1, _MOST_SAMPLING_STEPS),
        **dict.fromkeys(
            ("critics", "target_critics", "members", "heads", "layers"), most(_MOST_NETWORKS)
        ),
        **dict.fromkeys(("kept", "memory"), most(_MOST_BATCH)),
        **dict.fromkeys(
            ("bins", "embedding", "latent", "states", "time_dim"), whole(0, _MOST_WIDTH)
        ),
        **dict.fromkeys(
            (
                *("candidates", "target_candidates", "backup_candidates", "group"),
                *("samples", "backup_samples", "value_samples", "components", "context"),
                *("ascent_steps", "conjugate_steps", "line_search_steps", "policy_steps"),
                *("train_steps", "levels", "epochs", "n_step", "most_steps"),
                *("critic_updates", "tickets", "finalists"),
            ),
            most(_MOST_DRAWN),
        ),
    }
)
"""Rules of keywords that many methods share, by name."""
_PARENTS: Mapping[str, type[Any]] = MappingProxyType(
    {"algorithm": Algorithm, "policy": Policy, "source": Generator}
)
"""What the classes that settings name have to be children of."""
_DATASET_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "path": text,
        "name": text,
        "mask": optional(listed),
        "keys": optional(listed),
        "horizon": optional(whole(1)),
        "control_rate": optional(number(1e-6, 1e6)),
    }
)


def as_whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which ``1e6`` is a whole number wherever one is asked for.

    Args:
        settings: every setting of a run by name; left as it is.

    Raises:
        TrimtabError: if a method or a policy names no class.
    """
    found = dict(settings)
    for name, rule in RULES.items():
        found[name] = _whole_if(settings[name], partial(_passes, rule))
    for group in CONSTRUCTED:
        section = settings[group]
        if isinstance(section, Mapping) and "_target_" in section:
            known = keywords(section["_target_"], f"{group}._target_")
            kinds = {key: one.annotation for key, one in known.items()}
            found[group] = {
                key: _whole_if(value, partial(fits, kind=kinds.get(key, object)))
                for key, value in section.items()
            }
    return found


def _passes(rule: Rule, value: Any) -> bool:
    return rule(value) is None


def _whole_if(value: Any, right: Callable[[Any], bool]) -> Any:
    """Return a number without a fraction as a whole one, if only that is right."""
    if isinstance(value, float) and value.is_integer() and not right(value) and right(int(value)):
        return int(value)
    return value


def check_values(settings: Mapping[str, Any]) -> None:
    """Check the values that are wrong whatever the method is.

    Args:
        settings: every setting of a run by name.

    Raises:
        TrimtabError: naming the setting.
    """
    for name, rule in RULES.items():
        _check(name, settings[name], rule)
    check_device(settings["device"])
    if not isinstance(settings["env_options"] or {}, Mapping):
        raise TrimtabError("env_options: must be a mapping, such as env_options.reward=sparse")
    dataset = settings["dataset"] or {}
    for name, rule in _DATASET_RULES.items():
        if name in dataset:
            _check(f"dataset.{name}", dataset[name], rule)
    for group in CONSTRUCTED:
        section = settings[group]
        if section is None:
            continue
        _check_child(group, section)
        known = check_keywords(group, section)
        for key, value in section.items():
            if key in known:
                _check(f"{group}.{key}", value, _keyword_rule(key, known[key].annotation))
            if key not in known and key != "_target_":
                raise TrimtabError(f"{group}.{key}: no such setting; {nearest(key, known)}")


def _keyword_rule(key: str, kind: Any) -> Rule:
    """Return what a keyword of a method, a policy or a source must be.

    Args:
        key: its name; the rules of a name hold for every class, where the value is a number.
        kind: the type that it is annotated with.
    """
    either = typing.get_origin(kind) in (typing.Union, types.UnionType)  # and not a list of them
    kinds = {*typing.get_args(kind)} if either else {kind}
    if not kinds or not kinds <= {int, float, type(None)}:
        return possible
    rule = at_least_zero if key.endswith("learning_rate") else _KEYWORD_RULES.get(key, possible)
    return optional(rule) if rule is at_least_zero or type(None) in kinds else rule


def _check_child(group: str, section: Any) -> None:
    """Check that the class that a section names is a method, or a policy."""
    target = section.get("_target_") if isinstance(section, Mapping) else None
    if target is not None and not issubclass(
        class_of(target, f"{group}._target_"), parent := _PARENTS[group]
    ):
        raise TrimtabError(
            f"{group}._target_={target}: is no {group}: no child of {parent.__qualname__} in "
            f"{parent.__module__}"
        )


def _check(name: str, value: Any, rule: Rule) -> None:
    wrong = rule(value)
    if wrong is not None:
        raise TrimtabError(f"{name}={value}: {wrong}")


def check_device(device: str) -> None:
    """Check that ``device`` is one that torch has here.

    Raises:
        TrimtabError: if it is not.
    """
    try:
        torch.ones(1, device=device).item()  # "meta" has tensors, but no numbers in them
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise TrimtabError(f"device={device}: torch has no such device here; use cpu") from error
