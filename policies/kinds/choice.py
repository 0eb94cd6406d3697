"""A policy some of whose settings are chosen while it runs: steps, scheduler, candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.black_box import OPERATOR
from trimtab.policies.memory import state_parts
from trimtab.policies.registry import build_policy
from trimtab.types import Obs

MOST = 32
"""Combinations of one policy: each has a sampler of its own in the graph, and a golden row."""


class ChoicePolicy(ComposedPolicy):
    """One set of weights that acts by one of several combinations of settings.

    Each setting is an input of the policy, whose value is the number of a choice
    (:attr:`trimtab.observations.Part.choices`). In a batch, every row may have other ones. A row
    acts as a policy that was exported with its combination alone, bit for bit; a combination that
    no row asks for takes no time. In an ONNX graph, each combination is the branch of an ``If``,
    and the weights stand there once.

    A combination with fewer candidates takes the first ones of the noise.

    Args:
        base: with the first choice of every setting.
        choices: by setting, what can be chosen; the first one is the default.
        variants: configs of the base with the other combinations, in the order of
            ``itertools.product`` of the choices.

    Raises:
        TrimtabError: if they take noise of different kinds, the base hands on a state, there are
            too few or too many variants, or one has other weights than the base.
    """

    built_by_method = True
    adjustable_inside = False  # its variants would go on as before

    def __init__(
        self,
        base: Policy,
        *,
        choices: Mapping[str, Sequence[float | str]],
        variants: Sequence[Mapping[str, Any]],
    ) -> None:
        spec = base.spec
        if state_parts(spec.parts):
            raise TrimtabError(f"choices: a {base.kind} policy hands on its state; leave them out")
        if check_combinations(choices) != len(variants) + 1:
            raise TrimtabError(f"choices: {len(variants)} variants are not the other combinations")
        for name, values in choices.items():
            spec = spec.with_input(name, 0.0, choices=tuple(values))
        policies = [base, *(_share_weights(build_policy(config), base) for config in variants)]
        shapes = sorted({one.noise_shape for one in policies})
        if len({shape[1:] for shape in shapes}) > 1:
            raise TrimtabError(
                f"choices: {', '.join(choices)}: need noise of different kinds, {shapes[0]} and "
                f"{shapes[-1]}; leave out one kind"
            )
        super().__init__(
            spec, shapes[-1], choices={name: list(values) for name, values in choices.items()}
        )
        self.evaluate_deterministic = base.evaluate_deterministic
        self.base, self.choices = base.requires_grad_(False).eval(), dict(choices)
        # A plain list: registered, their weights, which are the base's, would be saved again.
        self.variants = [one.eval() for one in policies]
        # Samplers save nothing, so that registering them adds nothing to what is saved.
        self.samplers = nn.ModuleList(
            one
            for policy in policies
            for one in policy.modules()
            if [*one.buffers()] and not one.state_dict()
        )
        self.first_graph = 0  # number of the base's graph among those of an export
        self.normalizer.take_maps(base.normalizer)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        given = {FLAT: obs} if isinstance(obs, Tensor) else obs
        inner = self.base.spec.parts
        own = {name: given[name] for name in inner if name in given} if inner else given[FLAT]
        rows = noise.shape[0]
        number = noise.new_zeros(rows)
        for name, values in self.choices.items():
            choice = given[name][:, 0] if name in given else noise.new_zeros(rows)
            number = number * len(values) + choice.round().clamp(0, len(values) - 1)
        action = noise.new_zeros(rows, self.spec.horizon, self.spec.action_dim)
        for place, policy in enumerate(self.variants):
            mine = number == place
            read = noise[:, : policy.noise_shape[0]]
            if torch.compiler.is_exporting():  # the exporter puts a branch in this node's place
                parts = list(own.values()) if isinstance(own, Mapping) else [own]
                chunk = torch.onnx.ops.symbolic(
                    OPERATOR,
                    [mine.any(), action, *parts, read],
                    attrs={"number": self.first_graph + place, "optional": 1},
                    dtype=torch.float32,
                    shape=[rows, self.spec.horizon, self.spec.action_dim],
                    version=1,
                )
            elif bool(mine.any()):
                chunk = policy(own, read)
            else:
                continue
            action = torch.where(mine[:, None, None], chunk, action)
        return action


def check_combinations(choices: Mapping[str, Sequence[Any]]) -> int:
    """Return how many combinations there are.

    Raises:
        TrimtabError: if there is only one, or too many.
    """
    combinations = math.prod(map(len, choices.values()))
    if not 1 < combinations <= MOST:
        raise TrimtabError(f"choices: make {combinations} combinations; give 2 to {MOST}")
    return combinations


def _share_weights(one: Policy, base: Policy) -> Policy:
    """Give a policy the weights, buffers and networks of ``base``, from now on; return it.

    Args:
        one: of the same config but for settings of how it acts, so that only its samplers differ.
        base: owns the weights.

    Raises:
        TrimtabError: if it has other weights.
    """
    shapes = [{n: x.shape for n, x in p.state_dict().items()} for p in (one, base)]
    if shapes[0] != shapes[1]:
        raise TrimtabError("choices: a variant has other weights than the base; export it again")
    one._parameters, one._buffers = base._parameters, base._buffers
    for name, child in one._modules.items():
        if child is not None and child.state_dict():  # not a sampler, which follows from settings
            there = base._modules[name]
            if isinstance(child, Policy) and isinstance(there, Policy):
                _share_weights(child, there)
            else:
                one._modules[name] = there
    return one
