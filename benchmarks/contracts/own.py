"""Carry out the contract of a method, a policy or data that ``trimtab check`` names."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import torch

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.contracts import data, methods, policies
from trimtab.benchmarks.contracts.base import CheckResult, examine
from trimtab.benchmarks.contracts.made_up import fitted, make_setup, spec_with
from trimtab.benchmarks.contracts.resuming import check_resuming, small_run
from trimtab.benchmarks.training.plan import make_method, method_of, policy_maker
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy

__all__ = ["outcomes"]


def outcomes(words: Sequence[str], skip: Collection[str] = ()) -> Iterator[CheckResult]:
    """Yield what each check finds: of the method that is named; else of the policy, or the data.

    Args:
        words: of a run, such as ``algorithm=./mine.yaml``; what else it needs is chosen.
        skip: names of checks to leave out.

    Raises:
        TrimtabError: if a word is wrong, nothing is named, or no check has a name in ``skip``.
    """
    given = {word.partition("=")[0] for word in words}
    subject: methods.Subject | policies.Subject | data.Subject
    whole: Callable[[], str] | None = None
    if "algorithm" in given:
        checks, subject = methods.CHECKS, _method(words)
        whole = functools.partial(check_resuming, words)
    elif "policy" in given:
        checks, subject = policies.CHECKS, _policy(words)
        kind = examine("kind", policies.check_kind, subject)
        yield kind
        if not kind.passed:  # no file could be opened again
            return
        whole = functools.partial(check_resuming, [*words, "algorithm=bc"])
    elif "dataset" in given:
        checks, subject = data.CHECKS, data.Subject(words)
    else:
        raise TrimtabError("check: give env=…, algorithm=…, policy=… or dataset=…")
    known = [*checks, *({} if whole is None else {"resume"})]
    for name in skip:
        if name not in known:
            raise TrimtabError(f"check: skip={name}: {nearest(name, known)}")
    for name, function in checks.items():
        if name not in skip:
            yield examine(name, function, subject)
    if whole is not None and "resume" not in skip:
        yield examine("resume", whole)


def _composed(words: Sequence[str]) -> RunConfig:
    with tempfile.TemporaryDirectory() as folder:
        return compose_run(small_run(words, folder))


def _method(words: Sequence[str]) -> methods.Subject:
    """Return the method that is named, with the settings of a small run."""
    config = _composed(words)
    method, chosen = method_of(config), config["act_steps"] or 1
    spec = spec_with(chosen)

    def make(seed: int, device: str) -> Algorithm:
        setup = make_setup(
            method.needs.required,
            policy=policy_maker(config),
            spec=spec,
            plan=chosen,
            start=method.needs.base_kind,
            device=device,
        )
        torch.manual_seed(seed)
        np.random.seed(seed)
        return make_method(config, method, setup)

    return methods.Subject(make, config.algorithm, spec)


def _policy(words: Sequence[str]) -> policies.Subject:
    """Return the policy that is named."""
    make = policy_maker(_composed([*words, "algorithm=bc"]))
    assert make is not None

    def made() -> Policy:
        torch.manual_seed(3)
        return fitted(make(spec_with(2)))

    return policies.Subject(made)
