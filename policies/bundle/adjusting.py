"""A trained policy that acts by other settings, such as fewer steps, and what that changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trimtab.errors import TrimtabError, nearest
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.golden import golden_rows
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.kinds.choice import ChoicePolicy, check_combinations
from trimtab.policies.registry import build_policy, policy_kinds

__all__ = ["adjustable", "adjusted", "adjusted_graph", "adjusted_policy", "with_choices"]


def adjustable(policy: Policy) -> dict[str, Any]:
    """Return the settings by which a policy acts, and their values.

    They are keywords of the policy, or of policies within it (``Policy.adjustable``), and defaults
    of the inputs that its user gives.
    """
    found: dict[str, Any] = {}
    _change(policy.config(), {}, found)
    return found


@torch_defaults()
def adjusted(policy: Policy, settings: Mapping[str, Any]) -> Policy:
    """Return a copy of a policy, in evaluation mode, with the same weights and other settings.

    A setting is changed in every policy within that has it.

    Args:
        policy: it is left as it is.
        settings: by name, such as ``{"sampling_steps": 2}``; see :func:`adjustable`.

    Raises:
        TrimtabError: if there is no such setting, or the weights do not fit it.
    """
    found: dict[str, Any] = {}
    try:
        config = _change(policy.config(), settings, found)
    except (TypeError, ValueError, AttributeError) as error:
        raise TrimtabError(f"policy: settings {dict(settings)} do not fit: {error}") from error
    for name, value in settings.items():
        if name not in found:
            raise TrimtabError(
                f"policy.{name}: a {policy.kind} policy that is trained has no such setting of "
                f"how it acts; {nearest(name, found)}"
            )
        had = found[name]
        if (
            isinstance(had, int | float)
            and not (isinstance(value, int) or isinstance(had, float) and isinstance(value, float))
            or isinstance(value, bool)
        ):
            what = "number" if isinstance(had, float) else "whole number"
            raise TrimtabError(f"policy.{name}={value}: must be a {what}")
    device = policy.normalizer.obs_shift.device
    with OwnDraws():  # of weights that are replaced
        changed = build_policy(config)
    try:
        changed.load_state_dict(policy.state_dict())
    except RuntimeError as error:
        raise TrimtabError(
            f"policy: its weights do not fit {dict(settings)}; change less"
        ) from error
    _check_same_levels(policy, changed)
    changed.evaluate_deterministic = policy.evaluate_deterministic
    return changed.to(device).eval()


def _change(
    config: Mapping[str, Any], settings: Mapping[str, Any], found: dict[str, Any]
) -> dict[str, Any]:
    """Return a policy's config with other settings; ``found`` gets all that can be changed."""
    kind = policy_kinds()[config["kind"]]
    inputs = {
        name: part["given"]
        for name, part in (config.get("spec") or {}).get("parts", {}).items()
        if "given" in part and "choices" not in part  # whose default is a number of a choice
    }
    own = {name: config.get(name) for name in sorted(kind.adjustable - inputs.keys())}
    found |= {**own, **inputs}
    chosen = {name: value for name, value in settings.items() if name in own}
    result = kind.readjusted(config, chosen) if chosen else dict(config)
    if inputs.keys() & settings.keys():
        parts = {
            name: {**part, "given": settings[name]} if name in inputs and name in settings else part
            for name, part in config["spec"]["parts"].items()
        }
        result["spec"] = {**config["spec"], "parts": parts}
    if kind.adjustable_inside:
        for name, value in result.items():
            if isinstance(value, Mapping) and "kind" in value:
                result[name] = _change(value, settings, found)
    return result


def _check_same_levels(before: Policy, after: Policy) -> None:
    """Check that the noise levels that the weights were trained on are the same.

    They follow from the settings, as buffers that are not saved; a scheduler may bring others.
    """
    trained = {name: levels for name, levels in before.named_buffers() if _is_levels(name)}
    for name, levels in after.named_buffers():
        if _is_levels(name) and not torch.equal(levels.cpu(), trained[name].cpu()):
            raise TrimtabError(
                "policy.scheduler: has other noise levels than the policy was trained on; give it "
                "the same beta_schedule, or train with it"
            )


def _is_levels(name: str) -> bool:
    return name.rpartition(".")[2] == "alpha"


@torch_defaults()
def with_choices(policy: Policy, choices: Mapping[str, Any]) -> ChoicePolicy:
    """Return a policy whose user chooses some settings while it runs.

    Args:
        policy: it is left as it is.
        choices: by setting of :func:`adjustable`, what can be chosen: numbers or texts, the default
            first. None, as where there is no scheduler, is called ``none``. Every scheduler has the
            settings that the policy's own has.

    Raises:
        TrimtabError: if there is no such setting, a choice does not fit, or there are too many.
    """
    for name in choices:
        if name in policy.spec.parts:
            raise TrimtabError(f"choices: {name}: is an input already; choose its values as such")
    check_combinations(choices)
    told = {name: ["none" if x is None else x for x in values] for name, values in choices.items()}
    own, variants = adjustable(policy).get("scheduler_settings"), []
    for combination in itertools.product(*told.values()):
        settings = {
            name: None if value == "none" else value
            for name, value in zip(told, combination, strict=True)
        }
        if own and settings.get("scheduler"):
            settings["scheduler_settings"] = own
        variants.append(adjusted(policy, settings))
    base, *others = variants
    with OwnDraws():  # of weights that are replaced
        configs = [one.config() for one in others]
        return ChoicePolicy(base, choices=told, variants=configs).eval()


def adjusted_policy(bundle: Bundle, settings: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """Return a bundle's policy with other settings, and all that differs from its training.

    Args:
        bundle: it is left as it is.
        settings: as for :func:`adjusted`.

    Returns:
        The policy, and ``{"from": …, "to": …}`` by setting, for the contract's entry ``changed``.

    Raises:
        TrimtabError: if there is no such setting, or it does not fit.
    """
    if not settings:
        return bundle.policy, dict(bundle.config.get("changed") or {})
    policy = adjusted(bundle.policy, settings)
    before, after = adjustable(bundle.policy), adjustable(policy)
    changed = dict(bundle.config.get("changed") or {})
    for name in sorted(after):
        if before.get(name) != after[name]:
            trained = changed.get(name, {"from": before.get(name)})["from"]
            changed[name] = {"from": trained, "to": after[name]}
    return policy, {name: one for name, one in changed.items() if one["from"] != one["to"]}


@torch_defaults()
def adjusted_graph(
    bundle: Bundle, settings: Mapping[str, Any]
) -> tuple[Contract, bytes, dict[str, Any]]:
    """Return a bundle's policy with other settings as a graph, which is made in memory.

    It takes seconds.

    Args:
        bundle: opened, with its weights.
        settings: as for :func:`adjusted_policy`.

    Returns:
        The contract, the bytes of the graph, and golden rows of torch that it has to replay.

    Raises:
        TrimtabError: as :func:`adjusted_policy`.
    """
    policy, _ = adjusted_policy(bundle, settings)
    config = {**bundle.config, "inputs": {**bundle.config["inputs"]}}
    noise = {**config["inputs"]["noise"], "shape": ["batch", *policy.noise_shape]}
    config["inputs"] |= {"noise": noise} | {
        name: {**config["inputs"][name], "given": part.given}
        for name, part in policy.spec.parts.items()
        if part.given is not None
    }
    golden = {name: np.asarray(rows) for name, rows in golden_rows(policy).items()}
    return Contract.parse(config, f"bundle {bundle.folder}"), export_onnx(policy, {}), golden
