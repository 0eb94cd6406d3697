"""What a run is known by: a document of all that decides its numbers, and the hash of it.

Version 2 of the document names methods and policies as they are registered, has every keyword of
their constructors with its default filled in, and their revisions; those of the policies that a
method makes itself, or takes over from a base, too. So a changed default or a raised revision is
another run; a moved file, or a default that is spelled out, is the same run. A class from outside
this package, whose revisions nobody counts, is known by its file as well. No bit that a processor
decides is in it: physics and recipes are known by what defines them.

Settings stand in groups, and a group is only there where it is in use. A setting that comes later
goes into a new group, or into one that earlier runs do not have, so that those keep their hashes. A
keyword that a class gets later stands in its ``neutral``, with the value that changes nothing; with
that value it is left out.

Version 1 hashed the YAML values and the dotted paths of the classes. Its documents for all
published results are kept as data, in ``benchmarks/results/*/configurations.json``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.settings.constructors import (
    class_of,
    is_outside,
    keywords,
    source_of,
)
from trimtab.benchmarks.training.settings.groups import registered_target
from trimtab.benchmarks.training.without_task import has_task
from trimtab.envs.core.spec import EnvSpec
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json
from trimtab.policies.base import Policy
from trimtab.settings import keywords_of

__all__ = [
    "HASH_VERSION",
    "PROTOCOL_REVISION",
    "constructed",
    "document_of",
    "hash_of",
    "revision_of",
]

HASH_VERSION = 2
"""Version of the document that configuration hashes are computed from."""

PROTOCOL_REVISION = 1
"""Raised when the harness itself gathers, feeds or judges in another way, so that every run's
numbers move."""


_OF_EVERY_POLICY = ("kind", "spec")


def document_of(
    config: RunConfig,
    env: EnvSpec,
    policy: Policy,
    *,
    act_steps: int,
    observations: str = "flat",
    history: int = 1,
    dataset: Mapping[str, str] | None,
    base: str | None,
    oracles: Sequence[str] = (),
    expert: str | None = None,
    described: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return all that decides a run's numbers, but for its seed, as JSON values.

    Args:
        config: settings of the run.
        env: its task.
        policy: the one that the method judges and exports, as it is made.
        act_steps: executed actions of a chunk, resolved.
        observations: how they are given, ``flat`` or ``dict``.
        history: observations that the policy reads.
        dataset: what the data is known by: ``{"recipe": …}`` or ``{"content": …}``.
        base: what the base is known by: a configuration hash, or a hash of its files.
        oracles: hashes of the files of the policies that it may imitate, in their order.
        expert: hash of the content of the data that it is guided by, or None.
        described: of a run without a task, the names, units and limits of its contract.

    Raises:
        TrimtabError: if a class that the settings name cannot be imported.
    """
    deterministic = config["eval_deterministic"]
    if deterministic is None:
        deterministic = policy.evaluate_deterministic
    document: dict[str, Any] = {
        "version": HASH_VERSION,
        "protocol": PROTOCOL_REVISION,
        "task": {"id": env.id, "options": dict(env.options), "physics": env.fingerprint},
        "method": constructed("algorithm", config.algorithm, config["algorithm"]),
        "policy": None,
        "acts": [_acting(one) for one in policy.modules() if isinstance(one, Policy)],
        "base": base,
        "decision": {"act_steps": act_steps, "discount": float(config["discount"])},
        "evaluation": {
            "every": config["eval_every"],
            "episodes": config["eval_episodes"],
            "first_seed": config["eval_seed"],
            "deterministic": deterministic,
        },
        "numerics": {"threads": config["threads"]},
    }
    if not has_task(env.id):
        document["task"] = {"contract": _contract_of(env, described)}
        del document["evaluation"]["episodes"]  # none are played
    if config["matmul_precision"] != "highest":
        document["numerics"]["matmul_precision"] = config["matmul_precision"]
    if config["holdout"] is not None:
        document["holdout"] = {"share": float(config["holdout"])}
        if config["stop_after"] is not None:
            document["holdout"]["stop_after"] = config["stop_after"]
    if observations != "flat":
        document["task"]["observations"] = observations
    if history > 1:
        document["task"]["history"] = history
    if oracles:
        document["oracles"] = list(oracles)
    if expert is not None:
        document["expert"] = expert
    if config["stop_at_success"] is not None:
        document["evaluation"]["stop_at_success"] = float(config["stop_at_success"])
    if config["policy"] is not None:
        document["policy"] = constructed("policy", str(config.policy), config["policy"])
    if dataset is not None:
        document["offline"] = {"steps": config["offline_steps"], "dataset": dict(dataset)}
        if config["dataset_weighting"] is not None:
            temperature = float(config["weighting_temperature"])
            document["weighting"] = {"by": config["dataset_weighting"], "temperature": temperature}
    if config["source"] is not None:
        document["source"] = constructed("source", str(config.source), config["source"])
    if config["online_steps"]:
        document["online"] = {
            "steps": config["online_steps"],
            "environments": config["num_envs"],
            "buffer_size": config["buffer_size"],
        }
        if config["overlap"]:
            document["collection"] = {"overlap": True}
        if dataset is not None:
            document["online"]["offline_share"] = float(config["offline_share"])
    return document


def _contract_of(env: EnvSpec, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in the place of a task: what the data alone does not decide."""
    return {
        **described,
        "action_low": list(env.action_low),
        "action_high": list(env.action_high),
        "control_rate": env.control_rate,
    }


def hash_of(document: Mapping[str, Any]) -> str:
    """Return the ten hexadecimal digits that a document, of either version, is known by."""
    return sha256_json(dict(document))[:10]


def constructed(group: str, name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a constructed part of a run is known by: name, revision, all its keywords.

    Args:
        group: ``algorithm``, ``policy`` or ``source``.
        name: name of the chosen file of the group.
        section: ``_target_`` and the keywords that are set.

    Raises:
        TrimtabError: if the class cannot be imported.
    """
    target = section["_target_"]
    chosen = class_of(target, f"{group}._target_")
    neutral = _neutral(chosen)
    settings: dict[str, Any] = {}
    for keyword, parameter in sorted(keywords(target, f"{group}._target_").items()):
        value = section.get(keyword, parameter.default)
        if value is inspect.Parameter.empty or (keyword in neutral and value == neutral[keyword]):
            continue
        settings[keyword] = _plain(value, parameter.annotation)
    known = {
        # A class of the user's own in place of the file's is known by where it lies.
        "name": name if target == registered_target(group, name) else target,
        "revision": revision_of(chosen),
        "settings": settings,
    }
    sources = [source_of(one) for one in chosen.__mro__ if is_outside(one)]
    return {**known, "sources": sources} if sources else known


def _acting(policy: Policy) -> dict[str, Any]:
    """Return what a policy that was made is known by, but for the policies within it.

    Its shapes follow from the task.
    """
    neutral, known = _neutral(type(policy)), keywords_of(type(policy))
    settings = {
        key: _plain(value, known[key].annotation if key in known else object)
        for key, value in policy.config().items()
        if not (key in _OF_EVERY_POLICY or isinstance(value, Mapping) and "kind" in value)
        and key not in policy.derived
        and not (key in neutral and value == neutral[key])
    }
    return {
        "kind": policy.kind,
        "revision": revision_of(type(policy)),
        "settings": settings,
    }


def revision_of(kind: type[Any]) -> int:
    """Return the revision of a class: 1, and one more for each time it or a parent was revised.

    A class says its own revision as the class attribute ``revision``; a parent's counts too,
    because a child computes with what it inherits.
    """
    own = (vars(one).get("revision", 1) for one in kind.__mro__)
    return 1 + sum(number - 1 for number in own if isinstance(number, int))


def _neutral(kind: type[Any]) -> dict[str, Any]:
    """Return the values of later settings with which a class computes what it did without them."""
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        own = vars(one).get("neutral", {})
        if isinstance(own, Mapping):
            found |= own
    return found


def _plain(value: Any, annotation: Any) -> Any:
    """Return a keyword's value as JSON that does not depend on how it was written (1 and 1.0)."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one, object) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        inner = next(iter(typing.get_args(annotation)), object)
        return [_plain(one, inner) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and _takes_float(annotation):
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TrimtabError(f"{value!r}: a setting must be a plain value: a number, text, list or null")


def _takes_float(annotation: Any) -> bool:
    """Return whether a keyword's numbers are floats: ``float``, or a union that has it."""
    return annotation is float or float in typing.get_args(annotation)
