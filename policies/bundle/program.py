"""A policy as a program of ``torch.export``: for C++ and AOTInductor, without Python.

There is no export as TorchScript: PyTorch has deprecated it in favour of ``torch.export``, and its
archives hold code and pickles.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.files import atomic_file
from trimtab.observations import FLAT
from trimtab.policies.base import Policy
from trimtab.policies.bundle.files import TOLERANCE
from trimtab.policies.bundle.golden import golden_rows
from trimtab.policies.bundle.onnx_export import Positional, frozen_copy, quiet
from trimtab.policies.defaults import torch_defaults
from trimtab.policies.features import observations
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.choice import ChoicePolicy

__all__ = ["write_program"]


@torch_defaults()
def write_program(policy: Policy, path: str | Path) -> float:
    """Write a policy as a ``.pt2`` file, and return its largest difference on golden rows.

    Its inputs are ``obs [batch, O]``, or the parts of an observation in the policy's order, and
    then ``noise [batch, *noise_shape]``; its output is ``action [batch, H, A]``, all in raw units.

    Args:
        policy: it is left as it is.
        path: of the file.

    Raises:
        TrimtabError: if the policy has no weights or cannot be exported, if the program gives other
            actions than the policy, or if the file cannot be written.
    """
    for kind, why in (
        (BlackBoxPolicy, "a black box has no weights that torch could run"),
        (ChoicePolicy, "choices are branches of an ONNX graph alone"),
    ):
        if any(isinstance(one, kind) for one in policy.modules()):
            raise TrimtabError(
                f"export: {path}: {why}; leave out .pt2, and use the policy.onnx of its bundle"
            )
    frozen = frozen_copy(policy)
    obs = observations(torch.zeros(2, policy.spec.obs_dim), policy.spec)
    names = tuple(obs) if isinstance(obs, Mapping) else (FLAT,)
    parts = obs.values() if isinstance(obs, Mapping) else [obs]
    example = (*parts, torch.zeros(2, *policy.noise_shape))
    graph_of = frozen if isinstance(obs, Tensor) else Positional(frozen, names)
    batch = torch.export.Dim("batch")
    sizes = ({0: batch},) * len(example)
    try:
        with quiet():
            program = torch.export.export(
                graph_of,
                example,
                dynamic_shapes=sizes if graph_of is frozen else (sizes,),
            )
    except Exception as error:  # the exporter raises many unrelated types
        raise TrimtabError(
            f"export: a {policy.kind} policy cannot become a program: {str(error)[:200]}"
        ) from error
    golden = golden_rows(policy)
    inputs = [golden[name] for name in (*names, "noise")]
    with torch.no_grad():
        worst = float((program.module()(*inputs) - golden["action"]).abs().max())
    if not worst <= TOLERANCE:
        raise TrimtabError(f"export: {path}: the program's actions differ by {worst:.3g}")
    with atomic_file(path) as beside, open(beside, "wb") as stream:
        torch.export.save(program, stream)
    return worst
