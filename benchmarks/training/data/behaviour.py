"""A trained policy as a recipe's controller: data of a known competence.

The policies that come with the package lie in ``datasets/behaviour/<environment>/<tier>``, as
bundles: safetensors and JSON, with how they were trained.
The controller is here and not beside the scripted ones because ``datasets`` imports no policies.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import trimtab
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import bundle_hash, load_bundle

__all__ = ["BehaviourPolicy", "behaviour_folder"]


def _packaged(name: str) -> Path | None:
    """Return the bundle of a policy that comes with the package, or None."""
    if Path(name).is_absolute():
        return None
    folders = (Path(root) / "datasets" / "behaviour" / name for root in trimtab.__path__)
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def behaviour_folder(name: str) -> Path:
    """Return the bundle of a behaviour policy: one of the package's, or a folder anywhere.

    Args:
        name: ``<environment>/<tier>``, such as ``hopper/medium``, or the path of a bundle.

    Raises:
        TrimtabError: if there is none.
    """
    packaged = _packaged(name)
    if packaged is not None:
        return packaged
    if (Path(name) / "config.json").is_file():
        return Path(name)
    places = [Path(root) / "datasets" / "behaviour" for root in trimtab.__path__]
    known = sorted(
        path.parent.relative_to(place).as_posix()
        for place in places
        for path in place.glob("*/*/config.json")
    )
    raise TrimtabError(
        f"behaviour policy {name}: neither a bundle nor one of {', '.join(known) or 'none'}"
    )


@functools.cache
def _policy(name: str) -> Policy:
    policy = load_bundle(behaviour_folder(name)).policy
    if policy.spec.horizon != 1:
        raise TrimtabError(
            f"behaviour policy {name}: it gives chunks of {policy.spec.horizon} actions; "
            "a recipe plays single ones"
        )
    policy_inputs = policy.inputs
    if policy_inputs.observed or policy_inputs.history > 1 or policy_inputs.memories(1):
        raise TrimtabError(
            f"behaviour policy {name}: it reads parts or a history; a recipe gives one flat "
            "observation"
        )
    return policy


class BehaviourPolicy:
    """Acts as a policy does that was trained before, with its own noise.

    Args:
        task: not used.
        generator: decides which policy acts in an episode, and its noise.
        policies: names of policies, see :func:`behaviour_folder`; each episode has one of them.
        noise_scale: factor to the policy's noise; 0 acts as the policy is judged, without any.

    Raises:
        TrimtabError: if there is no such policy, or it gives chunks of actions.
    """

    name: ClassVar[str] = "behaviour_policy"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        policies: Sequence[str],
        noise_scale: float = 1.0,
    ) -> None:
        if not policies:
            raise TrimtabError("dataset.controller.policies: name at least one")
        self.policy = _policy(policies[int(generator.integers(len(policies)))])
        self.generator, self.noise_scale = generator, noise_scale

    @staticmethod
    def identity(settings: Mapping[str, Any]) -> list[str]:
        """Return hashes of the policies: other weights under the same name are other data."""
        return [bundle_hash(behaviour_folder(name)) for name in settings.get("policies") or ()]

    @staticmethod
    def placeless(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings without paths: of a policy that lies anywhere, its hash is enough."""
        names = [name if _packaged(name) else None for name in settings.get("policies") or ()]
        return {**settings, "policies": names}

    @torch.no_grad()
    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the policy's action ``[A]``, raw units."""
        shape = (1, *self.policy.noise_shape)
        noise = self.generator.standard_normal(shape, dtype=np.float32)
        noise *= np.float32(self.noise_scale)
        chunk = self.policy(torch.from_numpy(obs)[None], torch.from_numpy(noise))
        action: NDArray[Any] = chunk[0, 0].numpy()
        return action
