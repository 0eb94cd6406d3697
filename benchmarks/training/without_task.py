"""Runs without a task: what a policy reads and commands, told from the data and ``contract.yaml``.

Such a run learns from a file or folder alone. Shapes, limits, rate and names are the data's; the
contract, a small file beside the data, says what the data does not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.naming import names_in
from trimtab.envs.core.spec import EnvSpec
from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.bundle.limits import Limits
from trimtab.policies.bundle.workspace import Workspace
from trimtab.policies.imports.contract import read_entries

__all__ = [
    "CONTRACT_FILE", "NO_TASK", "described_by", "has_task", "limits_in", "rate_in", "read_contract",
    "spec_of_data",
]  # fmt: skip

logger = logging.getLogger(__name__)

NO_TASK = "data"
"""Stands where the family of a task stands: in ids, and in the folders of runs."""
CONTRACT_FILE = "contract.yaml"

_SIDES: Mapping[str, frozenset[str]] = {
    "observation": frozenset({"names", "units"}),
    "action": frozenset({"names", "units", "low", "high"}),
}
"""Entries of a contract for each side of the policy; beside them: ``control_rate``, ``limits``."""


def has_task(env: str) -> bool:
    """Return whether an id, of a run's or a bundle's ``env``, is that of a task."""
    return not env.startswith(f"{NO_TASK}:")


def spec_of_data(config: RunConfig, dataset: Dataset) -> tuple[EnvSpec, dict[str, Any]]:
    """Return the data in the place of a task, and what it is called by in a bundle's contract.

    Args:
        config: settings of the run; ``contract`` may name the file of that name.
        dataset: the data.

    Returns:
        Shapes, limits and rate; and ``obs_names``, ``obs_units``, ``action_names``,
        ``action_units`` and ``limits`` of a robot's commands, those that are known.

    Raises:
        TrimtabError: if the contract is missing, cannot be read or contradicts the data, or an
            action has no finite limit.
    """
    place = _contract_file(config)
    said = {} if place is None else read_contract(place)
    where = f"contract {place}"
    widths = {"observation": dataset.obs_dim, "action": dataset.action_dim}
    described = described_by(said, widths, names_in(dataset), where)
    low, high = _limits(said.get("action", {}), dataset, where)
    rate = _rate(said.get("control_rate"), dataset, where)
    if said.get("limits") is not None:
        # They are refused here, before hours of training.
        limits = Limits.parse(said["limits"], where).fitting(low, high, rate, where)
        if limits.workspace is not None:
            _check_workspace(limits.workspace, dataset.obs_dim, described, where)
        described["limits"] = limits.to_json()
    spec = EnvSpec(
        id=f"{NO_TASK}:{dataset.id}",
        family=NO_TASK,
        task=dataset.id,
        obs_dim=dataset.obs_dim,
        obs_parts={"observation": tuple(range(dataset.obs_dim))},
        action_dim=dataset.action_dim,
        action_low=low,
        action_high=high,
        control_rate=rate,
        horizon=max(len(episode) for episode in dataset.episodes),
        success_key=None,
        score_references={},
        tags=(),
    )
    return spec, described


def _check_workspace(
    workspace: Workspace, width: int, described: Mapping[str, Any], where: str
) -> None:
    names = described.get("obs_names") or [f"{FLAT}[{place}]" for place in range(width)]
    units = described.get("obs_units") or [""] * width
    try:
        workspace.box({FLAT: width}, names, units)
    except TrimtabError as error:
        raise TrimtabError(f"{where}: {error}") from error


def described_by(
    said: Mapping[str, Any], widths: Mapping[str, int], names: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return names and units of a contract, as a bundle calls them.

    Args:
        said: what the contract says.
        widths: numbers of an ``observation`` and of an ``action``.
        names: of both, where they are known without the contract.
        where: names the contract in errors.

    Raises:
        TrimtabError: if a list has another length, or is none of texts.
    """
    described: dict[str, Any] = {}
    for side, short in (("observation", "obs"), ("action", "action")):
        own = said.get(side, {})
        found = {
            "names": _texts(own, "names", side, widths[side], where) or names.get(side),
            "units": _texts(own, "units", side, widths[side], where),
        }
        described |= {f"{short}_{key}": value for key, value in found.items() if value}
    return described


def _contract_file(config: RunConfig) -> Path | None:
    """Return the contract that a run names, or the one beside its data; None where none is."""
    if config["contract"] is not None:
        return Path(config["contract"]).expanduser()
    data = Path(config["dataset"]["path"]).expanduser()
    beside = (data if data.is_dir() else data.parent) / CONTRACT_FILE
    if not beside.exists():
        return None
    logger.info("contract: %s", beside)
    return beside


def read_contract(place: Path, also: Iterable[str] = ()) -> dict[str, Any]:
    """Return what a contract says, its names checked.

    Args:
        place: of the file.
        also: entries that it may have besides.

    Raises:
        TrimtabError: if it cannot be read, or has an entry that no contract has.
    """
    value = read_entries(place)
    if not isinstance(value, dict):
        raise TrimtabError(f"contract {place}: must be a mapping, such as control_rate: 30")
    _check_names(value, {*_SIDES, "control_rate", "limits", *also}, f"contract {place}")
    for side, known in _SIDES.items():
        own = value.get(side, {})
        if not isinstance(own, dict):
            raise TrimtabError(
                f"contract {place}: {side} must be a mapping of {', '.join(sorted(known))}"
            )
        _check_names(own, known, f"contract {place}: {side}")
    return value


def _check_names(value: Mapping[Any, Any], known: set[str] | frozenset[str], where: str) -> None:
    for name in value:
        if name not in known:
            raise TrimtabError(
                f"{where}: there is no entry {name!r}; {nearest(str(name), sorted(known))}"
            )


def _texts(own: Mapping[str, Any], key: str, side: str, width: int, where: str) -> list[str] | None:
    """Return a list of ``width`` texts; one text stands for all units."""
    value = own.get(key)
    if value is None:
        return None
    listed = [value] * width if key == "units" and isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) and one for one in listed):
        raise TrimtabError(f"{where}: {side}.{key} must be a list of {width} texts, got {value!r}")
    _check_width(listed, f"{side}.{key}", width, side, where)
    twice = next((one for one in listed if key == "names" and listed.count(one) > 1), None)
    if twice is not None:
        raise TrimtabError(f"{where}: {side}.names has {twice!r} twice; give each its own name")
    return listed


def _check_width(listed: Sequence[Any], name: str, width: int, side: str, where: str) -> None:
    if len(listed) != width:
        raise TrimtabError(f"{where}: {name} has {len(listed)} entries, and the {side} has {width}")


def _limits(
    own: Mapping[str, Any], dataset: Dataset, where: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the limits of the actions: the contract's, or else the data's.

    Raises:
        TrimtabError: if they are no numbers, are not finite, or the data leaves them.
    """
    width = dataset.action_dim
    sides = {"low": dataset.action_low, "high": dataset.action_high}
    sides |= limits_in(own, width, where)
    low, high = sides["low"], sides["high"]
    for index, (least, most) in enumerate(zip(low, high, strict=True)):
        if not (math.isfinite(least) and math.isfinite(most) and least < most):
            raise TrimtabError(
                f"dataset {dataset.id}: action {index} has limits {least:g} and {most:g}, and a "
                f"policy needs finite ones, the lower first; give action.low and action.high in "
                f"{CONTRACT_FILE}"
            )
    if own.get("low") is not None or own.get("high") is not None:
        reached = [(e.actions.min(0), e.actions.max(0)) for e in dataset.episodes]
        # In the data's own precision: 0.1 in a file of float32 is more than 0.1.
        under = np.min([lowest for lowest, _ in reached], axis=0) < np.array(low, np.float32)
        over = np.max([highest for _, highest in reached], axis=0) > np.array(high, np.float32)
        if (under | over).any():
            index = int(np.flatnonzero(under | over)[0])
            raise TrimtabError(
                f"{where}: action {index} is limited to {low[index]:g} to {high[index]:g}, and the "
                "data leaves that; correct the limits, or cut the data's actions"
            )
    return low, high


def limits_in(own: Mapping[str, Any], width: int, where: str) -> dict[str, tuple[float, ...]]:
    """Return ``low`` and ``high`` of a contract's ``action``, those that it says.

    Raises:
        TrimtabError: if they are not ``width`` numbers, or one for all.
    """
    sides: dict[str, tuple[float, ...]] = {}
    for key in [key for key in ("low", "high") if own.get(key) is not None]:
        value = own[key] if isinstance(own[key], list) else [own[key]] * width
        if not all(_is_number(x) for x in value):
            raise TrimtabError(
                f"{where}: action.{key} must be {width} finite numbers, got {own[key]!r}"
            )
        _check_width(value, f"action.{key}", width, "action", where)
        sides[key] = tuple(map(float, value))
    return sides


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that float32 has, and finite."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= float(np.finfo(np.float32).max)


def _rate(value: Any, dataset: Dataset, where: str) -> float | None:
    """Return the actions a second, by the contract or the data, which must not contradict it."""
    if value is None:
        return dataset.control_rate
    rate = rate_in(value, where)
    if dataset.control_rate is not None and not math.isclose(rate, dataset.control_rate):
        raise TrimtabError(
            f"{where}: control_rate is {rate:g}, and the data has {dataset.control_rate:g}; "
            "correct one of them"
        )
    return rate


def rate_in(value: Any, where: str) -> float:
    """Return the actions a second that a contract says.

    Raises:
        TrimtabError: if it is no number above 0.
    """
    if not _is_number(value) or value <= 0:
        raise TrimtabError(f"{where}: control_rate must be actions a second, got {value!r}")
    return float(value)
