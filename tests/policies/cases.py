"""A small policy of every kind, the same weights every time; each is exported in these tests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from trimtab.policies.base import Policy
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.kinds.action_transformer import ActionTransformerPolicy
from trimtab.policies.kinds.best_draw import BestDrawPolicy
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.constant_noise import ConstantNoisePolicy
from trimtab.policies.kinds.controlled_diffusion import ControlledDiffusionPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.edited import EditedPolicy, editor_of
from trimtab.policies.kinds.edited_ascent import EditedAscentPolicy
from trimtab.policies.kinds.edited_best_of import EditedBestOfPolicy
from trimtab.policies.kinds.edited_latent import EditedLatentPolicy, modulation_spec
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.guided_flow import GuidedFlowPolicy
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy
from trimtab.policies.kinds.squashed import SquashedPolicy
from trimtab.policies.kinds.stochastic_flow import StochasticFlowPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.kinds.tuned_diffusion import TunedDiffusionPolicy
from trimtab.policies.kinds.unet_diffusion import UNetDiffusionPolicy
from trimtab.policies.registry import policy_kinds
from trimtab.types import PolicySpec, Statistics

LIMITS = (-1.0, -1 / 3), (1.1, 2.0)
"""Lower and upper ones; the float32 numbers nearest to two of them lie outside."""
SPEC = PolicySpec(6, 4, 2, *LIMITS)
SMALL: dict[str, Any] = {"hidden": (24, 24)}
_SHORT = {"sampling_steps": 2, "layers": 2}  # for time: each makes a graph longer
FILES = ("config.json", "model.safetensors", "policy.onnx", "golden.safetensors", "README.md")
"""Of a bundle."""


def _fitted(policy: Policy) -> Policy:
    low, high = -torch.arange(1.0, 7.0), torch.arange(2.0, 8.0)
    limits = torch.tensor(SPEC.action_low) * 0.9, torch.tensor(SPEC.action_high) * 0.8
    policy.fit_normalizer(Statistics(low * 0, low * 0 + 1, low, high, *limits))
    return policy


def _base() -> Policy:
    return _fitted(FlowPolicy(SPEC, **SMALL, sampling_steps=1))


def _steered() -> Policy:
    base = _base()
    return LatentPolicy(TanhGaussianPolicy(latent_spec(base, 1.5), **SMALL), base)


def _ticket() -> Policy:
    policy = ConstantNoisePolicy(_base())
    policy.latent.normal_()
    return policy


def _tuned(sampler: str) -> Policy:
    base = DiffusionPolicy(SPEC, **SMALL, sampler=sampler, sampling_steps=2, train_steps=2)
    policy = TunedDiffusionPolicy(_fitted(base), tuned_steps=1)
    with torch.no_grad():
        for weight in policy.tuned.parameters():
            weight.add_(0.03 * torch.randn_like(weight))
    return policy


def _controlled() -> Policy:
    policy = ControlledDiffusionPolicy(SPEC, **SMALL, steps=2)
    with torch.no_grad():
        for weight in policy.parameters():  # which begin so small that nothing is controlled
            weight.add_(0.1 * torch.randn_like(weight))
    return _fitted(policy)


def _edited() -> Policy:
    base = _base()
    return EditedPolicy(base, editor_of(base, 3, sees_chunk=True, **SMALL), scale=0.3)


def _squashed() -> Policy:
    bound = (10.0,) * SPEC.action_dim
    wide = replace(SPEC, action_low=tuple(-one for one in bound), action_high=bound)
    base = FlowPolicy(wide, **SMALL, sampling_steps=2)
    base.normalizer.action_scale.fill_(2.0)
    policy = SquashedPolicy(SPEC, base)
    policy.take(base)
    return _fitted(policy)


@functools.cache
def _graph() -> bytes:
    torch.manual_seed(3)
    return export_onnx(_base(), {})


def _black_box() -> Policy:
    return BlackBoxPolicy.of(SPEC, (SPEC.horizon, SPEC.action_dim), _graph())


def _edited_best_of() -> Policy:
    base = _base()
    editor = editor_of(base, 3, sees_chunk=True, **SMALL)
    return EditedBestOfPolicy(base, editor, scale=0.3, candidates=3, hidden=(16,), critics=4)


def _edited_latent() -> Policy:
    base = _base()
    actor = TanhGaussianPolicy(modulation_spec(base, 3, 1.5), **SMALL)
    return EditedLatentPolicy(actor, base, scale=0.3, act_steps=3)


# Kinds made of other policies cannot be built from a spec, so they stand here; so do those that
# do not act on what they read before they have learned.
_SPECIAL: dict[str, Callable[[], Policy]] = {
    "latent": _steered,
    "constant_noise": _ticket,
    "controlled_diffusion": _controlled,
    "black_box": _black_box,
    "repeated_noise": lambda: RepeatedNoisePolicy(_base()),
    "edited": _edited,
    "edited_ascent": lambda: EditedAscentPolicy(
        _base(), act_steps=3, candidates=5, kept=3, ascent_steps=1, step_size=0.05, hidden=(16,),
        critics=3,
    ),
    "edited_best_of": _edited_best_of,
    "edited_latent": _edited_latent,
    "squashed": _squashed,
    "best_of": lambda: BestOfPolicy(_base(), candidates=4, hidden=(16,)),
    "best_draw": lambda: BestDrawPolicy(
        _fitted(DiffusionPolicy(SPEC, **SMALL, sampling_steps=2)), candidates=3, hidden=(16,)
    ),
    "ddpm": lambda: _fitted(DiffusionPolicy(SPEC, **SMALL, sampler="ddpm", sampling_steps=2,
                                            train_steps=4)),
    "stochastic_flow": lambda: StochasticFlowPolicy(
        _fitted(FlowPolicy(SPEC, **SMALL, sampling_steps=2)), level=0.3
    ),
    "tuned_diffusion": lambda: _tuned("ddim"),
    "tuned_ddpm": lambda: _tuned("ddpm"),
    "gaussian": lambda: _fitted(GaussianPolicy(SPEC, **SMALL)),
    "action_transformer": lambda: _fitted(ActionTransformerPolicy(
        SPEC, sizes=(4, 2), width=8, heads=2, feedforward=8, encoders=1,
    )),
    "unet_diffusion": lambda: _fitted(UNetDiffusionPolicy(
        SPEC, hidden=(8,), groups=4, step_dim=8, past=1, train_steps=3, sampling_steps=1,
        beta_schedule="linear",  # which magnifies no last bits
    )),
    "guided_flow": lambda: _fitted(GuidedFlowPolicy(SPEC, **SMALL, sampling_steps=2)),
}  # fmt: skip


def policy_of(case: str) -> Policy:
    """Return the policy of one of :data:`CASES`."""
    torch.manual_seed(3)
    if case in _SPECIAL:
        return _SPECIAL[case]()
    kind: Any = policy_kinds()[case]
    known = inspect.signature(kind).parameters
    assert "spec" in known, f"say in {__file__} how to build a {case}"
    small = {name: value for name, value in {**SMALL, **_SHORT}.items() if name in known}
    return _fitted(kind(SPEC, **small))


# A remote policy has a server, no weights and no graph: tests/policies/serving are about it. Those
# that read a robot's plan, too, are in tests/policies/robot/test_real_time.py, and those with
# settings that are chosen while they run in test_run_time.py beside it.
_ELSEWHERE = {"remote", "real_time_chunking", "real_time_iteration", "choice", "mixed"}
CASES = sorted({*policy_kinds(), *_SPECIAL} - _ELSEWHERE)
