"""What every method keeps to: Trimtab's own, by its tests, and one of a user's, by ``check``."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.phases import Budget, Trials
from trimtab.benchmarks.contracts.base import Broken, Checks, difference, require
from trimtab.benchmarks.contracts.made_up import SPEC, data_for, learns_from_trials, made_batch, on
from trimtab.benchmarks.contracts.recorded_graph import RecordedGraph
from trimtab.benchmarks.training.checkpoint import as_read_back
from trimtab.benchmarks.training.graphs import CapturedUpdate, is_capturable, replay_minibatches
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import check_bundle, save_bundle
from trimtab.policies.features import observations
from trimtab.policies.registry import build_policy, check_is_kind
from trimtab.types import Batch, Metrics, PolicySpec, Rollout

__all__ = ["CHECKS", "Subject", "explores", "learns", "rebuilt", "written"]

_UNSAVED = (
    "differs after a load: something that it needs is not saved; save it by state(), or by "
    "state_dict() and load_state_dict()"
)
_UPDATES = 20
"""Some methods update their actor once for several updates of their critics."""


@dataclass(frozen=True)
class Subject:
    """A method that is looked at.

    Attributes:
        make: makes it: ``(seed, device)``.
        name: what messages call it.
        spec: shapes of the made-up task.
    """

    make: Callable[[int, str], Algorithm]
    name: str
    spec: PolicySpec = SPEC

    def taught(self, seed: int, updates: int, device: str = "cpu") -> Algorithm:
        """Return it after some updates on made-up data."""
        return self.teach(self.make(seed, device), updates, device)

    def teach(self, algorithm: Algorithm, updates: int, device: str = "cpu") -> Algorithm:
        """Return a method after some updates on made-up data."""
        for step in range(updates):
            algorithm.update(on(data_for(algorithm, step, self.spec), device))
        return algorithm


def learns(algorithm: Algorithm) -> bool:
    """Return whether a method has something that changes."""
    return bool(algorithm.state())


def explores(algorithm: Algorithm) -> bool:
    """Return whether a method acts while it learns."""
    return type(algorithm).explore is not Algorithm.explore


def check_metrics(subject: Subject) -> str:
    """Metrics are finite scalars of the same names in every update, without gradients."""
    algorithm = subject.make(0, "cpu")
    names: list[str] | None = None
    for step in range(3):
        metrics = algorithm.update(data_for(algorithm, step, subject.spec))
        require(isinstance(metrics, Mapping), f"update() returns {metrics!r}; return named scalars")
        if names is not None and names != list(metrics):
            raise Broken(f"update() returns {list(metrics)} after {names}; return the same names")
        names = list(metrics)
        for name, value in metrics.items():
            number = isinstance(value, Tensor | int | float) and torch.as_tensor(value).numel() == 1
            require(number, f"metric {name} is no scalar but {type(value).__name__}")
            graph = isinstance(value, Tensor) and value.requires_grad
            require(not graph, f"metric {name} has a gradient; return {name}.detach()")
            require(math.isfinite(float(value)), f"metric {name} is {float(value)}")
    require(
        bool(names) == learns(algorithm),
        f"state() is {'empty' if names else 'not empty'}, and update() has "
        f"{'metrics' if names else 'none'}; what learns has both",
    )
    require(
        algorithm.pace.batch_size >= 1 and algorithm.pace.warmup_steps >= 0, "batch_size is below 1"
    )
    online = algorithm.pace.updates_per_decision > 0 or algorithm.pace.rollout_steps > 0
    require(
        explores(algorithm) == online,
        "explore() is there"
        + ("" if explores(algorithm) else " not")
        + ", and updates_per_decision "
        f"is {algorithm.pace.updates_per_decision}; a method that learns online has both",
    )
    return ", ".join(names or ["none"])


def check_seeds(subject: Subject) -> str:
    """The same seed gives the same numbers, and another seed others.

    An environment may seed NumPy's or Python's global generator at any time, so no number of a
    method may depend on these. Torch's is kept apart from what environments do with it.
    """
    states, tried = [], []
    for number, seed in enumerate((3, 3, 4)):
        algorithm = subject.make(seed, "cpu")
        np.random.seed(number)
        random.seed(number)
        states.append(subject.teach(algorithm, 3))
        if explores(algorithm):
            obs = made_batch(algorithm, spec=subject.spec).obs
            tried.append(algorithm.explore(obs, warmup=False))
    name = difference(states[0].state_dict(), states[1].state_dict())
    if name is None and tried and difference(tried[0], tried[1]) is not None:
        name = "explore()"
    if name is not None:
        raise Broken(
            f"the same seed gives other numbers: {name}; draw from torch's global generator, or "
            "from one of its own that it saves: environments seed those of NumPy and Python"
        )
    other = difference(states[0].state_dict(), states[2].state_dict()) is not None
    require(other == learns(states[0]), "another seed gives the same numbers")
    return "the same seed gives the same numbers"


def check_learning(subject: Subject) -> str:
    """Updates change the policy that is judged, if there is something to learn."""
    algorithm = subject.make(0, "cpu")
    before = copy.deepcopy(algorithm.policy.state_dict())
    moved = False
    for step in range(_UPDATES):
        algorithm.update(data_for(algorithm, step, subject.spec))
        moved = difference(before, algorithm.policy.state_dict()) is not None
        if moved:
            break
    require(
        moved == learns(algorithm),
        f"{_UPDATES} updates leave self.policy as it was"
        if learns(algorithm)
        else "updates change self.policy, and state() is empty; return what changes",
    )
    return "updates change the policy" if moved else "nothing is learned"


def check_state(subject: Subject) -> str:
    """A method that takes on a saved state goes on as the one that was saved."""
    first = subject.taught(1, 2)
    if explores(first):
        first.explore(made_batch(first, spec=subject.spec).obs, warmup=False)
    state = copy.deepcopy(first.state_dict())
    third = subject.make(2, "cpu")  # its weights began elsewhere
    _take_on(third, state, subject.name)
    for step in (2, 3):
        metrics = []
        for algorithm in (first, third):
            torch.manual_seed(70 + step)
            metrics.append(dict(algorithm.update(data_for(algorithm, step, subject.spec))))
        if (name := difference(metrics[0], metrics[1])) is not None:
            raise Broken(f"metric {name} {_UNSAVED}")
    if (name := difference(first.state_dict(), third.state_dict())) is not None:
        raise Broken(f"{name} {_UNSAVED}")
    return "whole: what takes it on goes on to the same bits"


def _take_on(learner: Algorithm, state: Any, name: str) -> None:
    """Have a method take on a state as it is read from a checkpoint.

    Raises:
        TrimtabError: if a checkpoint cannot hold the state, or the method cannot take it on.
    """
    try:
        learner.load_state_dict(as_read_back(state))
    except Exception as error:  # whatever a method of a user's own raises
        raise Broken(
            f"{name}: its load_state_dict() does not take what its state_dict() returned "
            f"({type(error).__name__}: {error}); return tensors, arrays, numbers and text, nested "
            "in mappings and lists, and read no name that was not returned"
        ) from error


def check_exploring(subject: Subject) -> str:
    """Actions that are tried are of the task's shapes, within its limits, and differ."""
    algorithm, spec = subject.make(0, "cpu"), subject.spec
    if not explores(algorithm):
        return "none: it learns from a dataset only"
    obs = made_batch(algorithm, count=7, spec=spec).obs
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    for warmup in (True, False):
        action, aux = algorithm.explore(obs, warmup=warmup)
        shape = (7, spec.horizon, spec.action_dim)
        require(action.shape == shape, f"explore() gives shape {tuple(action.shape)} for {shape}")
        require(not action.requires_grad, "explore() gives a gradient; use torch.no_grad()")
        within = bool(((action >= low) & (action <= high)).all())
        require(within, "explore() gives actions outside of the task's limits")
        spread = bool(action.flatten(1).std(0).min() > 0)
        require(spread, "explore() gives the same action for every observation")
        shapes = {name: tuple(value.shape[1:]) for name, value in aux.items()}
        require(
            shapes == dict(algorithm.aux_shapes) and all(len(value) == 7 for value in aux.values()),
            f"explore() gives {shapes} to store, and aux_shapes says {dict(algorithm.aux_shapes)}",
        )
        require(
            not any(value.requires_grad for value in aux.values()),
            "explore() gives values to store that have a gradient; use torch.no_grad()",
        )
        again, _ = algorithm.explore(obs, warmup=warmup)
        require(not torch.equal(action, again), "explore() gives the same actions twice")
    return f"shapes [N, {spec.horizon}, {spec.action_dim}], within the limits"


def check_device(subject: Subject) -> str:
    """An update runs on torch's ``meta`` device: it keeps to its device and reads nothing back."""
    try:
        algorithm = subject.make(0, "meta")
        for seed in range(2):
            data = on(data_for(algorithm, seed, subject.spec), "meta")
            if isinstance(data, Batch):
                data = dataclasses.replace(data, whole=seed == 0)
            elif isinstance(data, Rollout):
                rows = torch.zeros(3, dtype=torch.long, device="meta")
                data = dataclasses.replace(data, cut_rows=rows, ended_rows=rows)
            metrics = algorithm.update(data)
            placed = {one.device.type for one in tensors(metrics)}
            require(
                placed <= {"meta"}, "update() returns tensors of another device than setup.device"
            )
        if explores(algorithm):
            for warmup in (True, False):
                obs = torch.zeros(3, subject.spec.obs_dim, device="meta")
                placed = {one.device.type for one in tensors(algorithm.explore(obs, warmup=warmup))}
                require(placed == {"meta"}, "explore() gives tensors of another device")
    except Broken:
        raise
    except (NotImplementedError, RuntimeError) as error:
        raise Broken(
            "on torch's meta device, which has shapes and no numbers, it fails "
            f"({' '.join(str(error).split())[:200]}): it reads a number back (.item(), float(), "
            "if, .cpu()), or makes a tensor on another device than setup.device"
        ) from error
    placed = {one.device.type for one in tensors(algorithm.state_dict())}
    require(placed <= {"meta"}, "state() has tensors of another device than setup.device")
    return "an update keeps to its device and reads nothing back"


def check_captured(subject: Subject) -> str:
    """Updates and their minibatches are captured as on a GPU, and replayed to the same bits."""
    first = subject.make(0, "cpu")
    if not is_capturable(first):
        return "none: it does not say that it is capturable"
    replay = functools.partial(CapturedUpdate, make_graph=RecordedGraph, warmup=1)
    number = len(_updates_on_batches(first))
    for place in range(number):
        eager, captured = subject.make(0, "cpu"), subject.make(0, "cpu")
        updates = [_updates_on_batches(one)[place] for one in (eager, captured)]
        _compare_replay(subject, eager, captured, updates[0], replay(captured, updates[1]))
    if first.minibatch_updates:
        eager, captured = subject.make(0, "cpu"), subject.make(0, "cpu")
        replay_minibatches(captured, replay)
        _compare_replay(subject, eager, captured, eager.update, captured.update)
        for name in first.minibatch_updates:
            require(
                getattr(captured, name).branches > 0,
                f"an update does not take its steps on minibatches by {name}(), which "
                "minibatch_updates names",
            )
    require(
        bool(number or first.minibatch_updates),
        "it says that it is capturable, and learns from rollouts or trials as a whole",
    )
    return "replayed kernels lead to the same bits"


def _compare_replay(
    subject: Subject,
    eager: Algorithm,
    captured: Algorithm,
    update: Callable[[Any], Metrics],
    replay: Callable[[Any], Metrics],
) -> None:
    """Check that two equal methods stay equal, one of which replays.

    Raises:
        Broken: if they do not.
    """
    on_rollouts = update == eager.update and eager.pace.rollout_steps
    for step in range(3 * eager.actor_every + 4):
        data = data_for if on_rollouts else made_batch
        batch = data(eager, seed=step, spec=subject.spec)
        if isinstance(batch, Batch):
            batch = dataclasses.replace(batch, fixed=True)
        found = []
        for learner, learn in ((eager, update), (captured, replay)):
            torch.manual_seed(80 + step)
            metrics = {name: float(value) for name, value in learn(batch).items()}
            state = {**learner.state_dict(), "last_metrics": None}  # numbers or tensors
            found.append({"metric": metrics, **state})
        if (name := difference(found[0], found[1])) is not None:
            raise Broken(
                f"{name} differs where the kernels of {update.__name__}() are replayed: it "
                "depends on what Python computes or decides. Say what it decides by in branch, "
                "compute what changes from a tensor (UpdateCount), change tensors in place; or "
                "set capturable = False"
            )


def _updates_on_batches(algorithm: Algorithm) -> list[Callable[[Batch], Metrics]]:
    """Return the updates of all phases that get batches, each once."""
    found: list[Callable[[Batch], Metrics]] = []
    for budget in (Budget(40, 40), Budget(40, 0), Budget(0, 40)):
        try:
            phases = algorithm.phases(budget)
        except TrimtabError:  # it needs steps of the other kind
            continue
        for phase in phases:
            if phase.update is None or isinstance(phase.feed, Trials):
                continue
            on_rollouts = algorithm.pace.rollout_steps and phase.update == algorithm.update
            if not on_rollouts and phase.update not in found:
                found.append(phase.update)
    if not found and not algorithm.pace.rollout_steps and not learns_from_trials(algorithm):
        found.append(algorithm.update)  # the made-up task does not fit its phases
    return found


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in something nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(part)


def check_export(subject: Subject) -> str:
    """The policy that is judged is rebuilt from its settings and weights, also from a bundle."""
    return written(rebuilt(subject.taught(0, 1).policy, subject.spec))


def rebuilt(policy: Policy, task: PolicySpec) -> Policy:
    """Check that a policy fits its task and is rebuilt to the same actions; return it.

    Raises:
        Broken: if not.
    """
    require(isinstance(policy, Policy), f"self.policy is {type(policy).__name__}, no Policy")
    check_is_kind(policy)
    spec = policy.spec
    observed = sum(part.size for part in spec.observed.values())
    limits = (spec.action_low, spec.action_high) == (task.action_low, task.action_high)
    require(
        (observed, spec.action_dim) == (task.obs_dim, task.action_dim) and limits,
        f"self.policy has the shapes and limits {spec}, and setup.spec is {task}",
    )
    require(spec.horizon >= task.horizon, "self.policy gives shorter chunks than are executed")
    again = build_policy(json.loads(json.dumps(policy.config())))
    again.load_state_dict(policy.state_dict())
    with torch.no_grad():
        flat = torch.rand(4, spec.obs_dim, generator=torch.Generator().manual_seed(0))
        given = observations(flat, spec)
        noise = policy.sample_noise(4)
        action = policy(given, noise)
        require(
            torch.equal(again(given, noise), action),
            "the policy, built again from its config() and state_dict(), acts otherwise; what "
            "decides its actions is a keyword of super().__init__(), a parameter or a buffer",
        )
    shape = (4, spec.horizon, spec.action_dim)
    require(action.shape == shape, f"the policy gives shape {tuple(action.shape)} for {shape}")
    return policy


def written(policy: Policy) -> str:
    """Write a policy as a bundle with ONNX and replay it; return how exactly it does.

    Raises:
        TrimtabError: if it cannot be written, or does not replay.
    """
    with tempfile.TemporaryDirectory() as folder:
        contract = {"env": "made-up", "control_rate": None, "act_steps": 1}
        bundle = save_bundle(policy, Path(folder) / "bundle", contract=contract)
        errors = check_bundle(bundle)
    shown = ", ".join(f"{error:.0e} ({backend})" for backend, error in errors.items())
    return f"a bundle with ONNX replays within {shown}"


CHECKS: Checks = {
    "metrics": check_metrics,
    "seeds": check_seeds,
    "learning": check_learning,
    "state": check_state,
    "exploring": check_exploring,
    "device": check_device,
    "captured": check_captured,
    "export": check_export,
}
"""What a method is checked for, apart from a whole run."""
