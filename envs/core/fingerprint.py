"""What an environment's physics is known by: its definition, its name, and what confirms them.

The **definition** is a JSON document of what the physics follows from: engine and package versions,
task, options, time step, frame skip, integrator, horizon and our own revision. No bit that a
processor decides enters it. The **name** stands in every result row: twelve hexadecimal digits, the
published ones for every definition in ``physics/names.json``, a hash of the definition otherwise.
A short seeded **trajectory** confirms a published name: it has to agree with the committed one
within :data:`TOLERANCE`, whatever the processor. Where it does not, something changed that the
definition does not tell (a model was edited under the same version), and the name is another one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from trimtab.envs.core.spec import EnvSpec, Family, RawEnv
from trimtab.errors import TrimtabError
from trimtab.files import read_json
from trimtab.limits import inward

__all__ = [
    "FOLDER",
    "TOLERANCE",
    "Confirmation",
    "bits",
    "compare",
    "confirmation",
    "definition",
    "fingerprint",
    "known_versions",
    "name",
    "other_name",
    "published_name",
    "reference",
    "reference_key",
    "relative_deviations",
    "source_digest",
    "trajectory",
    "versions",
]

logger = logging.getLogger(__name__)

Numbers = NDArray[np.float64]

FOLDER = Path(__file__).parents[1] / "physics"
"""Names (``names.json``) and reference trajectories (one safetensors file a family)."""
TOLERANCE = 1e-5
"""Largest deviation of a number from its reference, as a share of that number's scale.

Committed numbers move by less than a twentieth of it when positions and velocities are disturbed by
1e-12 at every step of physics, which is thousands of times a processor's last bit; numbers that
contacts enlarge beyond that are left out of the reference. A gravity that is changed by one part in
a thousand moves them by more.
"""
_EPISODES = 2
_RECORDED = (0, 1, 2, 4, 8, 16)
"""Steps after which numbers are recorded; 0 is the reset."""
_LEAST_SCALE = 1e-2
"""Numbers of less than this size are compared as if they were of this size."""


@dataclass(frozen=True)
class Confirmation:
    """Whether an environment moves as its reference says.

    Attributes:
        agrees: whether every compared number is within the tolerance; None without a reference.
        deviation: largest deviation from the reference, as a share of a number's scale; infinite
            where the shapes or the ends of the episodes differ, 0 without a reference.
        tolerance: the largest deviation that still agrees.
        bits: 12 hexadecimal digits of a SHA-256 over the trajectory's float64 bits: equal on one
            kind of processor (:func:`trimtab.processor.processor_kind`), often others on the next.
    """

    agrees: bool | None
    deviation: float
    tolerance: float
    bits: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; an infinite deviation, which JSON has not, as None."""
        finite = self.deviation if np.isfinite(self.deviation) else None
        return {**asdict(self), "deviation": finite}


def definition(spec: EnvSpec, family: Family, source: str | None = None) -> dict[str, Any]:
    """Return what the physics of an environment follows from, as JSON values.

    Args:
        spec: everything but its fingerprint is known.
        family: whose task it is.
        source: another ``Family.source`` than the family's. None for the family's, which our own
            have not: their changes raise ``Family.revision``.

    Raises:
        TrimtabError: as :func:`versions`.
    """
    source = source or family.source
    found = {
        "id": spec.id,
        "options": dict(spec.options),
        "packages": versions(family),
        "revision": family.revision,
        "horizon": spec.horizon,
        "timestep": spec.physics["timestep"],
        "frame_skip": spec.physics["frame_skip"],
        "integrator": spec.physics["integrator"],
        "success_key": spec.success_key,
    }
    values: dict[str, Any] = json.loads(json.dumps(found | ({"source": source} if source else {})))
    return values


def versions(family: Family) -> dict[str, str]:
    """Return the version of each distribution that decides a family's physics.

    Raises:
        TrimtabError: if one is not installed.
    """
    found = {}
    for package in family.packages:
        try:
            found[package] = importlib.metadata.version(package)
        except (importlib.metadata.PackageNotFoundError, ValueError) as error:
            raise TrimtabError(
                f"the family {family.name} names {package!r} in its packages, but no distribution "
                f"of that name is installed; pip install '{family.install}', or correct the name "
                "(pip list shows those that are installed)"
            ) from error
    return found


def source_digest(module_name: str) -> str:
    """Return the SHA-256 of a module's source file; of its name where it has no file."""
    path = getattr(importlib.import_module(module_name), "__file__", None)
    data = Path(path).read_bytes() if path and Path(path).is_file() else module_name.encode()
    return hashlib.sha256(data).hexdigest()


def name(known: Mapping[str, Any]) -> str:
    """Return the 12 digits that name a definition: the published ones, or those of its hash."""
    return published_name(known) or _digits(_canonical(known))


def other_name(known: Mapping[str, Any], moved: Numbers, expected: Numbers) -> str:
    """Return 12 digits for physics that does not move as its definition's reference says.

    Three significant digits count, of those numbers that the reference compares: numbers that
    contacts enlarge would make a name of the processor's last bits. A number at a rounding's
    boundary still can, which is rare, and then refuses to mix what might have been mixed.

    Args:
        known: the definition.
        moved: the trajectory.
        expected: the reference, NaN where it does not compare.
    """
    steady = moved[~np.isnan(expected)] if moved.shape == expected.shape else moved.ravel()
    rounded = np.round(steady, 6) + 0.0  # adding 0.0 makes -0.0 the same as 0.0
    return _digits(_canonical(known) + ",".join(f"{value:.2e}" for value in rounded).encode())


def published_name(known: Mapping[str, Any]) -> str | None:
    """Return the name that a definition was published under, or None."""
    entries = _names().get(str(known["id"]), [])
    return next((str(e["name"]) for e in entries if e["definition"] == known), None)


def known_versions(id: str) -> dict[str, str]:
    """Return the versions of packages that a task was last published with; none if it was not."""
    entries = _names().get(id, [])
    return dict(entries[-1]["definition"]["packages"]) if entries else {}


@functools.cache
def _names() -> dict[str, list[dict[str, Any]]]:
    if not (FOLDER / "names.json").is_file():
        return {}
    names: dict[str, list[dict[str, Any]]] = read_json(FOLDER / "names.json", "names of physics")
    return names


def _canonical(known: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(known), sort_keys=True, separators=(",", ":")).encode()


def _digits(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def bits(moved: Numbers) -> str:
    """Return 12 hexadecimal digits over every bit of a trajectory."""
    return _digits(np.ascontiguousarray(moved, np.float64).tobytes())


def trajectory(env: RawEnv) -> Numbers:
    """Play the first steps of two seeded episodes under seeded uniform actions.

    Returns:
        [2, 6, O + 2]: observation [O], reward and whether it terminated, at the reset and after 1,
        2, 4, 8 and 16 steps. Rewards are native, without our own time limit. What lies behind an
        end is NaN.
    """
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    generator = np.random.default_rng(0)
    low, high = inward(space.low, space.high)
    episodes = []
    for episode in range(_EPISODES):
        obs, _ = env.reset(seed=episode)
        first = np.asarray(obs, np.float64).ravel()
        records = np.full((len(_RECORDED), first.size + 2), np.nan)
        records[0] = [*first, 0.0, 0.0]
        for step in range(1, _RECORDED[-1] + 1):
            action = np.clip(generator.uniform(space.low, space.high).astype(np.float32), low, high)
            obs, reward, terminated, _, _ = env.step(action)
            if step in _RECORDED or terminated:
                place = int(np.searchsorted(_RECORDED, step))
                flat = np.asarray(obs, np.float64).ravel()
                records[place] = [*flat, float(reward), float(terminated)]
            if terminated:
                break
        episodes.append(records)
    return np.stack(episodes)


def compare(moved: Numbers, expected: Numbers) -> float:
    """Return the largest deviation of a trajectory from a reference, as a share of the scale.

    The scale of a number is its largest size within the reference, over both episodes, and not
    below 0.01. Numbers that are NaN in the reference are not compared.

    Args:
        moved: [episodes, records, O + 2].
        expected: the same shape.
    """
    deviations = relative_deviations(moved, expected)
    return float(deviations.max(initial=0.0))


def relative_deviations(moved: Numbers, expected: Numbers) -> Numbers:
    """Return :func:`compare`'s deviation of each number; 0 where it is not compared."""
    if moved.shape != expected.shape:
        return np.array([np.inf])
    compared = ~np.isnan(expected)
    sizes = np.where(compared, np.abs(expected), 0.0).max(axis=(0, 1))
    scale = np.broadcast_to(np.maximum(sizes, _LEAST_SCALE), expected.shape)
    apart = np.abs(np.where(compared, moved - expected, 0.0)) / scale
    deviations: Numbers = np.nan_to_num(apart, nan=np.inf, posinf=np.inf)
    return deviations


def reference_key(known: Mapping[str, Any], own_options: Mapping[str, Any]) -> str:
    """Return the name of a reference: the id, and digits over what the simulation follows from.

    The horizon, a sparse reward and an end at success are our wrapper's: they change what is made
    of the simulation and not the simulation, so one reference serves them all.

    Args:
        known: the definition.
        own_options: options that the task itself understands and that differ from their defaults.
    """
    parts = ("packages", "revision", "timestep", "frame_skip", "integrator", "source")
    simulated = {part: known[part] for part in parts if part in known}
    digits = _digits(_canonical({**simulated, "options": dict(own_options)}))
    return f"{known['id']} {digits}"


def reference(family: str, key: str) -> Numbers | None:
    """Return the committed trajectory [episodes, records, O + 2], or None where there is none."""
    path = FOLDER / f"{family}.safetensors"
    if not path.is_file():
        return None
    with safe_open(path, framework="numpy") as file:
        if key not in file.keys():  # noqa: SIM118  # it is no mapping
            return None
        return np.asarray(file.get_tensor(key), np.float64)


_PLAYED: dict[tuple[str, str], tuple[Numbers, float | None]] = {}
"""Trajectories of this process, with their deviations, by family and name of the reference."""


def _played(family: Family, key: str, raw: Callable[[], RawEnv]) -> tuple[Numbers, float | None]:
    """Return a task's trajectory and its deviation from the reference, None if there is none."""
    if (family.name, key) not in _PLAYED:
        bare = raw()
        moved = trajectory(family.probe(bare) if family.probe is not None else bare)
        expected = reference(family.name, key)
        deviation = None if expected is None else compare(moved, expected)
        _PLAYED[family.name, key] = moved, deviation
    return _PLAYED[family.name, key]


def confirmation(family: Family, key: str, raw: Callable[[], RawEnv]) -> Confirmation:
    """Return how a task's trajectory stands to its reference; played once a process.

    Args:
        family: the task's.
        key: name of the reference.
        raw: makes the bare environment; the caller closes it.
    """
    moved, deviation = _played(family, key, raw)
    return Confirmation(
        agrees=None if deviation is None else deviation <= TOLERANCE,
        deviation=deviation or 0.0,
        tolerance=TOLERANCE,
        bits=bits(moved),
    )


def fingerprint(known: Mapping[str, Any], family: Family, key: str, raw: RawEnv) -> str:
    """Return the 12 digits that name an environment's physics, confirmed where it is published.

    Args:
        known: the definition.
        family: the task's.
        key: name of the reference.
        raw: the bare environment; the caller closes it.
    """
    published = published_name(known)
    if published is None:
        return name(known)
    moved, deviation = _played(family, key, lambda: raw)
    if deviation is None or deviation <= TOLERANCE:
        return published
    expected = reference(family.name, key)
    assert expected is not None  # there is a deviation from it
    other = other_name(known, moved, expected)
    logger.warning(
        "%s does not move as its published physics %s does: it deviates by %.1e where %.0e is "
        "allowed, so a model or a package was changed under the same version; its results are "
        "named %s here and cannot be compared with published ones",
        known["id"], published, deviation, TOLERANCE, other,
    )  # fmt: skip
    return other
