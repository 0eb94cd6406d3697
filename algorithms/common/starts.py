"""What a method starts from: the kind of policy that it can tune."""

from __future__ import annotations

from typing import TypeVar

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy

__all__ = ["any_start_of", "make_trainable_start"]

Kind = TypeVar("Kind", bound=Policy)


def make_trainable_start(method: Algorithm, setup: Setup, kind: type[Kind]) -> Kind:
    """Return a trainable copy of what a method starts from.

    Args:
        method: the method that starts; the error names it.
        setup: has a base, or a policy with a dataset.
        kind: class that the policy must have.

    Raises:
        TrimtabError: if it is of another kind, or plans less than what is executed.
    """
    start = any_start_of(setup)
    wanted = kind.__module__.rpartition(".")[2]
    if not isinstance(start, kind):
        data = "" if method.needs.from_nothing else " with a dataset"
        raise TrimtabError(
            f"{type(method).__name__} tunes a {wanted} policy, not one of kind {start.kind}; "
            f"give base= of a run with policy={wanted}, or policy={wanted}{data}"
        )
    return start


def any_start_of(setup: Setup) -> Policy:
    """Return a trainable copy of what a method starts from, of whatever kind.

    Raises:
        TrimtabError: if it plans less than what is executed.
    """
    start = setup.start()
    if start.spec.horizon < setup.spec.horizon:
        raise TrimtabError(
            f"act_steps={setup.spec.horizon}: the policy plans only {start.spec.horizon} actions"
        )
    return start
