"""Whether a steering method has a latent for each action of a chunk, or one for all of them."""

from __future__ import annotations

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy

EACH, REPEATED = "each", "repeated"


def with_noise_chunk(base: Policy, noise_chunk: str) -> Policy:
    """Return ``base``, or the same policy with one noise vector that is repeated over its chunk.

    Args:
        base: the policy that is steered.
        noise_chunk: ``each`` action of a chunk has noise of its own, or one is ``repeated``.

    Raises:
        TrimtabError: on another word.
    """
    if noise_chunk not in (EACH, REPEATED):
        raise TrimtabError(f"algorithm.noise_chunk={noise_chunk}: must be {EACH} or {REPEATED}")
    return RepeatedNoisePolicy(base) if noise_chunk == REPEATED else base
