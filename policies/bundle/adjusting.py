"""A bundle's policy with other settings of acting, and a contract that says what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trimtab.policies.adjusted import adjustable, adjusted
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.golden import golden_rows
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.runtime import PolicyRunner

__all__ = ["adjusted_policy", "adjusted_runner"]


def adjusted_policy(bundle: Bundle, settings: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """Return a bundle's policy with other settings, and all that differs from its training.

    Args:
        bundle: it is left as it is.
        settings: as for :func:`trimtab.policies.adjusted.adjusted`.

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


def adjusted_runner(
    bundle: Bundle,
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    deterministic: bool | None = None,
) -> PolicyRunner:
    """Return a bundle's policy with other settings, as a robot runs it.

    Its graph is made in memory, which takes seconds, and checked against torch.

    Args:
        bundle: opened, with its weights.
        settings: as for :func:`adjusted_policy`.
        seed: seed of the noise.
        deterministic: as for :func:`trimtab.policies.runtime.load_policy`.

    Raises:
        TrimtabError: as :func:`adjusted_policy`, or if the graph gives other actions.
    """
    policy, _ = adjusted_policy(bundle, settings)
    config = {**bundle.config, "inputs": {**bundle.config["inputs"]}}
    noise = {**config["inputs"]["noise"], "shape": ["batch", *policy.noise_shape]}
    config["inputs"] |= {"noise": noise} | {
        name: {**config["inputs"][name], "given": part.given}
        for name, part in policy.spec.parts.items()
        if part.given is not None
    }
    where = f"bundle {bundle.folder}"
    with torch.random.fork_rng(devices=[]):
        graph = export_onnx(policy, {})
    runner = PolicyRunner(
        Contract.parse(config, where), graph, where, seed=seed, deterministic=deterministic
    )
    runner.check({name: np.asarray(rows) for name, rows in golden_rows(policy).items()})
    return runner
