"""Which kinds of policy there are, and building one from JSON.

A kind is a module of ``policies/kinds/`` with one concrete :class:`~trimtab.policies.base.Policy`;
adding a module adds a kind. JSON names kinds, never import paths, so a bundle cannot name foreign
code.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trimtab.discovery import modules_in
from trimtab.errors import TrimtabError, nearest
from trimtab.policies.base import Policy
from trimtab.types import PolicySpec


def policy_kinds() -> dict[str, type[Policy]]:
    """Return every kind of policy by name."""
    kinds: dict[str, type[Policy]] = {}
    for loaded in modules_in("policies", "kinds"):
        for value in vars(loaded).values():
            if (
                inspect.isclass(value)
                and issubclass(value, Policy)
                and not inspect.isabstract(value)
                and value.__module__ == loaded.__name__
            ):
                kinds[loaded.__name__.rpartition(".")[2]] = value
    return kinds


def check_is_kind(policy: Policy) -> None:
    """Check that a policy of this class is found again by what a bundle names it.

    Raises:
        TrimtabError: if not, saying where its class belongs.
    """
    made_by = type(policy)
    if policy_kinds().get(policy.kind) is not made_by:
        raise TrimtabError(
            f"policy: {made_by.__module__}.{made_by.__qualname__} is no kind of policy that a "
            "bundle could name; put its module, with this class alone, into policies/kinds/ of a "
            "plug-in (trimtab --with ./mine, docs/plug-ins.md)"
        )


def build_policy(config: Mapping[str, Any]) -> Policy:
    """Return the policy that :meth:`Policy.config` described, with fresh weights.

    Raises:
        TrimtabError: on an unknown kind, or settings that its constructor does not take.
    """
    keywords = dict(config)
    kinds = policy_kinds()
    kind = keywords.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise TrimtabError(f"policy: unknown kind {kind!r}; {nearest(str(kind), kinds)}")
    try:
        for key, value in keywords.items():
            if key == "spec":
                keywords[key] = PolicySpec(**value)
            elif isinstance(value, Mapping) and "kind" in value:
                keywords[key] = build_policy(value)
        return kinds[kind](**keywords)
    except (TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        if isinstance(error, TrimtabError):
            raise
        raise TrimtabError(f"policy: settings of kind {kind} do not fit: {error}") from error
