"""What a bundle's files must be: the contract, the hashes and the golden rows.

Shared by the torch side (:mod:`trimtab.policies.bundle.bundle`) and by the robot's side
(:mod:`trimtab.policies.runtime`), so it needs numpy and the standard library alone. Each file is
read once: the bytes that were hashed are the bytes that are used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.files import MOST_BYTES, MOST_JSON, read_bytes, sha256_json
from trimtab.limits import inward
from trimtab.observations import FLAT, RESERVED, Part
from trimtab.policies.agent import PolicyInputs
from trimtab.policies.bundle.limits import Limits
from trimtab.policies.bundle.workspace import Box, Workspace
from trimtab.policies.memory import following, state_parts
from trimtab.settings import Bounds, Count, Natural, check_fields, fits

Array = NDArray[np.float32]

FORMAT = "trimtab-bundle"
VERSION = 1
CONFIG, MODEL, ONNX, GOLDEN, WARNING, CARD = (
    "config.json", "model.safetensors", "policy.onnx", "golden.safetensors", "warning.safetensors",
    "README.md",
)  # fmt: skip
HASHED = (MODEL, ONNX, GOLDEN, WARNING)
"""The model card is for people and may be edited; everything that a machine reads is hashed."""

TOLERANCE = 1e-4
"""Largest difference, in raw action units, between a golden action and its replay."""
MOST_TOLERANCE = 0.05
"""The most that a bundle may allow whose sampler magnifies last bits, a share of the limits."""

GOLDEN_ROWS = 16
"""The fewest golden rows that a bundle may have."""

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "U8": np.dtype("u1")}
"""Types of tensors that a bundle's files may hold."""

UNTOLD = "not told"
"""The unit of an entry where only others have one."""

_AGAIN = "export the bundle again or fetch a fresh copy"
_MALFORMED = (
    struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading a structure that is not as it should be may raise."""


_MOST_NUMBERS = 1 << 20
"""Of an input that is no picture."""


@dataclass(frozen=True)
class Contract:
    """The part of ``config.json`` that a loader acts on.

    Attributes:
        obs_dim: how many numbers the policy reads: the length O of a flat observation.
        horizon: length H of a predicted chunk.
        act_steps: how many actions of a chunk are played before the next prediction.
        action_dim: length A of an action.
        noise_shape: shape of one row's noise, standard normal; zeros mean deterministic.
        action_low: lower limits ``[A]``, raw units.
        action_high: upper limits ``[A]``, raw units.
        control_rate: actions a second in Hz, or None where the task has no clock.
        evaluate_deterministic: whether this policy is judged with zero noise.
        parts: the parts of an observation by name; empty where it is one flat vector.
        history: observations that the policy reads, those of the last decisions.
        every_tick: whether they are those of the last control ticks.
        tolerance: largest difference of a replayed golden action, raw units.
        limits: of a robot's commands; None if the bundle states none.
        obs_names: of the numbers that are observed at a tick, pictures left out; empty if unknown.
        obs_units: of the same numbers, each empty where it is not told.
    """

    obs_dim: Count
    horizon: Count
    act_steps: Count
    action_dim: Count
    noise_shape: tuple[Natural, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_rate: Annotated[float, Bounds(above=0, most=1e9)] | None
    evaluate_deterministic: bool
    parts: Mapping[str, Part] = field(default_factory=dict)
    history: Count = 1
    tolerance: float = TOLERANCE
    limits: Limits | None = None
    every_tick: bool = False
    obs_names: tuple[str, ...] = ()
    obs_units: tuple[str, ...] = ()

    @classmethod
    def parse(cls, config: Mapping[str, Any], where: str) -> Contract:
        """Return the contract in a bundle's config.

        Raises:
            TrimtabError: if an entry is missing or contradicts another; ``where`` names the file.
        """
        try:
            history, every_tick = config.get("history", 1), config.get("history_of_ticks", False)
            if not (fits(history, int) and history >= 1):
                raise TrimtabError(f"history={history!r:.80}: must be a whole number, at least 1")
            if not isinstance(every_tick, bool):
                raise TrimtabError(f"history_of_ticks={every_tick!r:.80}: must be true or false")
            parts = _parts(config["inputs"], history)
            noise = config["inputs"]["noise"]["shape"]
            action, rate = config["outputs"]["action"], config["control_rate"]
            _, horizon, action_dim = action["shape"]
            observed = sum(part.size for part in parts.values() if part.given is None)
            given = sum(part.size for part in parts.values() if part.given is not None)
            for end in ("low", "high"):  # in an array, true would be 1
                if not fits([*action[end]], list[float]):
                    raise TrimtabError(f"action.{end}={action[end]!r:.80}: must be numbers")
            low, high = inward(*(np.array(action[end], np.float64) for end in ("low", "high")))
            told = [_told(name, config["inputs"][name], part) for name, part in parts.items()]
            contract = cls(
                obs_dim=history * observed + given,
                parts={} if list(parts) == [FLAT] else parts,
                history=history,
                horizon=horizon,
                act_steps=config["chunking"]["act_steps"],
                action_dim=action_dim,
                noise_shape=tuple(noise[1:]),
                action_low=tuple(low.tolist()),
                action_high=tuple(high.tolist()),
                control_rate=float(rate) if fits(rate, int) else rate,
                evaluate_deterministic=config["evaluate_deterministic"],
                tolerance=config.get("tolerance", TOLERANCE),
                every_tick=every_tick,
                obs_names=tuple(name for names, _ in told for name in names),
                obs_units=tuple(unit for _, units in told for unit in units),
            )
        except KeyError as error:
            raise TrimtabError(f"{where}: has no entry {error}; {_AGAIN}") from error
        except TrimtabError as error:
            raise TrimtabError(f"{where}: {error}") from error
        except _MALFORMED as error:
            raise TrimtabError(f"{where}: shapes or limits are malformed; {_AGAIN}") from error
        contract._check(where)
        if (stated := config.get("limits")) is None:
            return contract
        limits = Limits.parse(stated, where).fitting(low, high, contract.control_rate, where)
        if limits.workspace is not None:
            try:
                contract.box(limits.workspace)
            except TrimtabError as error:
                raise TrimtabError(f"{where}: {error}") from error
        return replace(contract, limits=limits)

    @property
    def inputs(self) -> PolicyInputs:
        """What the policy reads at each decision."""
        return PolicyInputs(self.noise_shape, self.parts, self.history, every_tick=self.every_tick)

    @property
    def observed(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of one observation of a tick, by the names of its parts."""
        if not self.parts:
            return {FLAT: ((self.obs_dim // self.history,), "float32")}
        return {
            name: (part.shape, part.dtype)
            for name, part in self.parts.items()
            if part.given is None
        }

    @property
    def numbers(self) -> dict[str, int]:
        """How many numbers of a tick each part of an observation has, pictures left out."""
        found = self.observed.items()
        return {name: math.prod(shape) for name, (shape, dtype) in found if dtype == "float32"}

    def box(self, workspace: Workspace) -> Box:
        """Return a workspace with its places in an observation.

        Raises:
            TrimtabError: if it does not fit what is observed.
        """
        return workspace.box(self.numbers, self.obs_names, self.obs_units)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each input of the policy, by its name in the graph."""
        if not self.parts:
            past = (self.history,) if self.history > 1 else ()
            return {FLAT: (*past, self.obs_dim // self.history), "noise": self.noise_shape}
        shapes = {
            name: ((self.history,) if self.history > 1 and part.given is None else ()) + part.shape
            for name, part in self.parts.items()
        }
        return {**shapes, "noise": self.noise_shape}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each output of the policy, by its name in the graph."""
        handed_on = {following(name): part.shape for name, part in state_parts(self.parts).items()}
        return {"action": (self.horizon, self.action_dim), **handed_on}

    @property
    def input_types(self) -> dict[str, str]:
        """Type of each input of the policy."""
        return {name: "float32" for name in self.input_shapes} | {
            name: part.dtype for name, part in self.parts.items()
        }

    def _span(self) -> float:
        low, high = np.array(self.action_low), np.array(self.action_high)
        return float((high - low).max()) if low.shape == high.shape and low.size else 0.0

    def _check(self, where: str) -> None:
        check_fields(self, where)
        limits = (*self.action_low, *self.action_high)
        wrong = {
            "no part of the observation is the environment's": bool(self.parts)
            and all(part.given is not None for part in self.parts.values()),
            f"act_steps must be from 1 to the horizon {self.horizon}, got {self.act_steps}": not (
                1 <= self.act_steps <= self.horizon
            ),
            "action limits must be one finite pair for each action dimension, low to high": not (
                len(self.action_low) == len(self.action_high) == self.action_dim
                and all(map(math.isfinite, limits))
                and all(a <= b for a, b in zip(self.action_low, self.action_high, strict=True))
            ),
            f"tolerance must be at least {TOLERANCE:g} and at most {MOST_TOLERANCE:g} of the "
            f"distance of the action limits, got {self.tolerance}": self.tolerance != TOLERANCE
            and not TOLERANCE < self.tolerance <= 1.0001 * MOST_TOLERANCE * self._span(),
        }
        for message, applies in wrong.items():
            if applies:
                raise TrimtabError(f"{where}: {message}")


def _parts(inputs: Mapping[str, Any], history: int) -> dict[str, Part]:
    """Return what each input but the noise is, from a bundle's config."""
    observed = {name: entry for name, entry in inputs.items() if name not in RESERVED}
    if not observed:
        raise KeyError(FLAT)
    found = {}
    for name, entry in observed.items():
        shape, given = tuple(entry["shape"][1:]), entry.get("given")
        if history > 1 and given is None:
            past, *row = shape
            if past != history:
                raise ValueError(f"{name} has {past} observations, the history is {history}")
            shape = tuple(row)
        choices = tuple(entry.get("choices", ()))
        found[name] = Part(shape, entry["dtype"], given, entry.get("remembered", ""), choices)
    return found


def _told(name: str, entry: Mapping[str, Any], part: Part) -> tuple[list[str], list[str]]:
    """Return the names and the units of the numbers of a part; none of an input or a picture."""
    if part.given is not None or part.dtype != "float32":
        return [], []
    if part.size > _MOST_NUMBERS:  # their names would fill the memory
        raise TrimtabError(f"{name} has {part.size} numbers; at most {_MOST_NUMBERS} are read")
    names, units = (
        told if isinstance(told := entry.get(key), list) and len(told) == part.size else None
        for key in ("order", "units")
    )
    places = range(part.size)
    return (
        [str(one) for one in names] if names else [f"{name}[{place}]" for place in places],
        ["" if one == UNTOLD else str(one) for one in units] if units else ["" for _ in places],
    )


def described_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return names, units and limits of a ``config.json``, as :func:`save_bundle` takes them."""
    found = {"limits": config["limits"]} if "limits" in config else {}
    for side, port in (
        ("obs", config["inputs"].get(FLAT)),
        ("action", config["outputs"]["action"]),
    ):
        for key, entry in (("names", "order"), ("units", "units")):
            if port is not None and isinstance(port.get(entry), list):
                found[f"{side}_{key}"] = port[entry]
    return found


def sealed(config: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return ``config`` with the hashes of ``files``, and with a hash of itself."""
    body = {key: value for key, value in config.items() if key not in ("files", "sha256")}
    body["files"] = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    return {**body, "sha256": _digest(body)}


def write_files(
    folder: Path, config: Mapping[str, Any], files: Mapping[str, bytes], card: str
) -> None:
    """Write a bundle's files, its config and its model card into a folder."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False) + "\n")
    (folder / CARD).write_text(card, encoding="utf-8")


def read_files(folder: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read a bundle's config and every file that it names, and check all their hashes.

    Returns:
        The config, and the bytes of each file by name.

    Raises:
        TrimtabError: if the folder is no bundle, or a file is missing or was changed.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TrimtabError(
            f"bundle: of type {type(folder).__name__}; give the folder of a bundle, as text or as "
            "a pathlib.Path"
        )
    folder = Path(folder)
    path = folder / CONFIG
    inside = folder / "policy"
    if not path.exists() and (inside / CONFIG).is_file():
        raise TrimtabError(
            f"bundle {folder}: is a run; trimtab export makes a bundle of it, and its weights are "
            f"in {inside}"
        )
    read = _parse_json(_read(path, f"bundle {folder}", MOST_JSON), str(path))
    config = checked_config(read, str(path))
    files = {}
    for name, expected in config["files"].items():
        files[name] = _read(folder / name, f"bundle {folder}")
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise TrimtabError(f"{folder / name}: was changed (its hash differs); {_AGAIN}")
    return config, files


def checked_config(config: Any, where: str) -> dict[str, Any]:
    """Return a bundle's config if it is one that this Trimtab reads, and as it was written.

    Args:
        config: what was read.
        where: names it.

    Raises:
        TrimtabError: if it is another document, of another version or changed.
    """
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise TrimtabError(
            f"{where}: is not the config of a Trimtab bundle; give a bundle's folder"
        )
    if config.get("version") != VERSION:
        raise TrimtabError(
            f"{where}: bundle version {config.get('version')!r}; this Trimtab reads version "
            f"{VERSION}, so use the Trimtab that wrote it, or export it again"
        )
    body = {key: value for key, value in config.items() if key != "sha256"}
    if config.get("sha256") != _digest(body):
        raise TrimtabError(f"{where}: was changed after the export (its hash differs); {_AGAIN}")
    _check_origin(config, where)
    hashes = config.get("files")
    names = set(hashes) if isinstance(hashes, dict) else set()
    if not (GOLDEN in names and names & {MODEL, ONNX} and names <= set(HASHED)):
        raise TrimtabError(f"{where}: its entry 'files' does not list a bundle's files; {_AGAIN}")
    return config


def policy_hash(config: Mapping[str, Any]) -> str:
    """Return the identity of a bundle's policy: a SHA-256 over its weights and its settings.

    The model card, the golden rows and the ONNX file do not affect it. For a black box, which has
    no weights, it covers the ONNX file instead.
    """
    hashes = config["files"]
    weights = hashes[MODEL] if MODEL in hashes else hashes[ONNX]
    return sha256_json({"policy": config.get("policy"), "model": weights})


def _check_origin(config: Mapping[str, Any], where: str) -> None:
    """Check what a bundle says of the task and of the training that its policy comes from.

    Raises:
        TrimtabError: naming the entry that is missing or of another type.
    """
    env = config.get("env")
    if not isinstance(env, dict):
        raise TrimtabError(f"{where}: its entry 'env' must describe a task, got {env!r}; {_AGAIN}")
    entries: dict[str, tuple[Any, type[Any] | UnionType, str]] = {
        "env.id": (env.get("id"), str, "the id of a task"),
        "env.options": (env.get("options"), dict, "options by name"),
        "env.horizon": (env.get("horizon"), int | None, "a number of steps"),
        "env.fingerprint": (env.get("fingerprint"), str | None, "text"),
        "training": (config.get("training"), dict | None, "facts by name"),
    }
    for name, (value, kind, what) in entries.items():
        if not isinstance(value, kind):
            raise TrimtabError(f"{where}: its entry '{name}' must be {what}; {_AGAIN}")


def read_golden(data: bytes, contract: Contract, where: str) -> dict[str, NDArray[Any]]:
    """Return the golden rows: each input ``[R, ...]`` by name, and ``action [R, H, A]``.

    Raises:
        TrimtabError: if a tensor is missing, has another shape or type, or is not finite.
    """
    tensors = read_safetensors(data, where)
    rows = min((len(tensor) if tensor.ndim else 0 for tensor in tensors.values()), default=0)
    shapes = {**contract.input_shapes, **contract.output_shapes}
    types = {**contract.input_types, **dict.fromkeys(contract.output_shapes, "float32")}
    if set(tensors) != set(shapes) or rows < GOLDEN_ROWS:
        *names, last = shapes
        raise TrimtabError(
            f"{where}: needs the tensors {', '.join(names)} and {last} with at least {GOLDEN_ROWS} "
            f"rows, has {', '.join(sorted(tensors)) or 'none'} with {rows} rows; {_AGAIN}"
        )
    for name, shape in shapes.items():
        if tensors[name].shape != (rows, *shape) or tensors[name].dtype != types[name]:
            raise TrimtabError(
                f"{where}: {name} has shape {tensors[name].shape}, the contract says "
                f"{(rows, *shape)} of {types[name]}; {_AGAIN}"
            )
        if not np.isfinite(tensors[name]).all():
            raise TrimtabError(f"{where}: {name} has values that are not finite; {_AGAIN}")
    return tensors


def inputs_of(golden: Mapping[str, NDArray[Any]], contract: Contract) -> tuple[Any, Array]:
    """Return the observation, flat or of parts, and the noise of golden rows."""
    obs = {name: golden[name] for name in contract.parts} if contract.parts else golden[FLAT]
    return obs, golden["noise"]


def replay_error(
    replayed: NDArray[Any], golden: Array, where: str, backend: str, tolerance: float = TOLERANCE
) -> float:
    """Return the largest difference between replayed and golden actions.

    Raises:
        TrimtabError: if it is above ``tolerance``, not a number, or the shapes differ.
    """
    if replayed.shape != golden.shape:
        raise TrimtabError(
            f"{where}: {backend} gives actions {replayed.shape}, the golden rows have "
            f"{golden.shape}; {_AGAIN}"
        )
    error = float(np.abs(replayed.astype(np.float64) - golden).max())
    if not error <= tolerance:  # a NaN is no smaller than anything, so it lands here too
        raise TrimtabError(
            f"{where}: golden rows do not replay with {backend}: actions differ by {error:.3g}, "
            f"allowed {tolerance:g}; {_AGAIN}"
        )
    return error


def read_safetensors(data: bytes, where: str) -> dict[str, NDArray[Any]]:
    """Read tensors of float32 numbers or bytes from the bytes of a safetensors file.

    The layout is an 8-byte little-endian length, a JSON header of that length, then the tensors'
    bytes; the header must account for every byte exactly once.

    Raises:
        TrimtabError: if the bytes are not that layout.
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        header, start = json.loads(data[8 : 8 + length].decode()), 8 + length
        header.pop("__metadata__", None)
        tensors, position = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if entry["dtype"] not in _TYPES or any(type(n) is not int or n < 0 for n in shape):
                raise ValueError(f"tensor {name} is not float32 or has no valid shape")
            dtype = _TYPES[entry["dtype"]]
            if begin != position or end - begin != dtype.itemsize * math.prod(shape):
                raise ValueError(f"tensor {name} does not fill its place")
            tensors[name] = np.frombuffer(
                data, dtype=dtype, count=math.prod(shape), offset=start + begin
            ).reshape(shape)
            position = end
        if start + position != len(data):
            raise ValueError("bytes are missing or left over")
    except _MALFORMED as error:
        raise TrimtabError(
            f"{where}: is not a readable safetensors file ({error}); {_AGAIN}"
        ) from error
    return tensors


def _read(path: Path, what: str, most: int = MOST_BYTES) -> bytes:
    try:
        return read_bytes(path, most)
    except FileNotFoundError as error:
        raise TrimtabError(f"{what}: has no {path.name}; check the path, or {_AGAIN}") from error
    except OSError as error:
        raise TrimtabError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _parse_json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise TrimtabError(f"{where}: is not readable JSON ({error}); {_AGAIN}") from error


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
