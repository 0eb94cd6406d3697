"""Bundles: a policy as a folder that every machine can load and verify.

A bundle holds ``config.json`` (the contract), ``model.safetensors`` (weights), ``policy.onnx``
(observation and noise to action), ``golden.safetensors`` (inputs with their actions, which every
loader recomputes) and ``README.md`` (a model card). Nothing in it is code. Robots load it with
:func:`trimtab.policies.runtime.load_policy`, which needs no torch.

A bundle without weights is a black box (:mod:`trimtab.policies.bundle.withheld`).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from trimtab.errors import TrimtabError, nearest
from trimtab.files import atomic_directory, resolved
from trimtab.observations import FLAT, Part, tree_map
from trimtab.policies.base import Policy
from trimtab.policies.bundle.files import (
    CARD,
    CONFIG,
    FORMAT,
    GOLDEN,
    HASHED,
    MODEL,
    ONNX,
    VERSION,
    WARNING,
    Contract,
    inputs_of,
    policy_hash,
    read_files,
    read_golden,
    replay_error,
    sealed,
    write_files,
)
from trimtab.policies.bundle.golden import golden_rows, replay_tolerance
from trimtab.policies.bundle.inputs import CheckedInputs
from trimtab.policies.bundle.model_card import model_card
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.bundle.onnx_policy import OnnxPolicy
from trimtab.policies.bundle.withheld import black_box
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.registry import build_policy
from trimtab.version import __version__

_REQUIRED_ENTRIES = ("env", "control_rate", "act_steps")
_ENTRIES = (
    *_REQUIRED_ENTRIES, "env_options", "env_horizon", "fingerprint", "obs_names", "obs_units",
    "action_names", "action_units", "limits", "training", "changed",
)  # fmt: skip

_WARNING_TITLE = "## A warning of what is unlike the data"


@dataclass(frozen=True)
class Bundle:
    """An opened bundle.

    Attributes:
        policy: the policy in evaluation mode, on the CPU.
        config: all of ``config.json``.
        folder: where it was read from; the address, as text, of one that a server has.
    """

    policy: Policy
    config: Mapping[str, Any]
    folder: Path | str

    @property
    def hash(self) -> str:
        """The identity of its policy (:func:`policy_hash`)."""
        return policy_hash(self.config)


@torch_defaults()
def save_bundle(
    policy: Policy,
    folder: str | Path,
    *,
    contract: Mapping[str, Any],
    results: Mapping[str, Any] | None = None,
    onnx: bool = True,
) -> Path:
    """Write a bundle, read it back, replay its golden rows, and only then put it in place.

    Args:
        policy: the policy, which is not changed. Global random generators are not used.
        folder: path of the bundle; an older bundle there is replaced.
        contract: facts that the policy does not contain. Required: ``env`` (id), ``control_rate``
            (Hz or None), ``act_steps`` (executed actions of each chunk). Optional: ``env_options``,
            ``env_horizon`` (steps), ``fingerprint``, ``obs_names``, ``obs_units``, ``action_names``
            and ``action_units`` (one text for each dimension; those of observations are used only
            if the observation is flat), ``limits`` (entries of :class:`Limits` by name, of the
            robot's commands), ``training`` (provenance: algorithm, dataset, base, seed,
            steps, config_hash, packages), ``changed`` (sampling settings that were changed after
            training, by name).
        results: rows of the results table in the model card, by name.
        onnx: whether to write ``policy.onnx``; without it only torch can load the bundle.

    Returns:
        The folder.

    Raises:
        TrimtabError: if the contract does not fit the policy, the policy cannot be exported, its
            golden rows do not replay within the tolerance on torch or onnxruntime, or the folder
            cannot be written or holds other files. Nothing is written then.
    """
    folder = resolved(folder)
    check_target(folder)
    golden = golden_rows(policy)
    config = make_config(policy, contract) | replay_tolerance(policy, golden)
    files = {MODEL: safetensors.torch.save(_state(policy)), GOLDEN: safetensors.torch.save(golden)}
    if onnx:
        files[ONNX] = export_onnx(policy, {"trimtab": json.dumps(config, sort_keys=True)})
    config = sealed(config, files)
    with atomic_directory(folder) as draft:
        write_files(draft, config, files, model_card(config, results))
        try:
            check_bundle(draft)
        except TrimtabError as error:
            # Name the user's folder, not the draft's.
            raise TrimtabError(str(error).replace(str(draft), str(folder))) from error
    return folder


def add_warning(
    source: str | Path, folder: str | Path, entry: Mapping[str, Any], tensors: bytes
) -> Path:
    """Write a copy of a bundle that also has a warning; return its folder.

    Args:
        source: a bundle.
        folder: where the copy goes; an older bundle there, also ``source``, is replaced.
        entry: what the contract says of the warning.
        tensors: what it compares with, as safetensors.

    Raises:
        TrimtabError: if ``source`` is no bundle, or ``folder`` cannot be written or holds other
            files.
    """
    folder = resolved(folder)
    check_target(folder)
    config, files = read_files(source)
    card = Path(source) / CARD
    text = card.read_text(encoding="utf-8") if card.is_file() else model_card(config)
    text = text.partition(_WARNING_TITLE)[0].rstrip() + "\n\n" + _WARNING_TITLE
    rows = "\n".join(f"- {name}: {json.dumps(value)}" for name, value in entry.items())
    files = {**files, WARNING: tensors}
    config = sealed({**config, "warning": dict(entry)}, files)
    with atomic_directory(folder) as draft:
        write_files(draft, config, files, f"{text}\n\n{rows}\n")
        read_files(draft)
    return folder


@torch_defaults()
def load_bundle(folder: str | Path) -> Bundle:
    """Load a bundle with torch; verify every file, key, shape and value, and the golden rows.

    The policy checks its inputs as the robot's runtime does. It takes tensors or NumPy arrays, and
    returns the same type.

    Raises:
        TrimtabError: if anything is missing, was changed, does not fit or does not replay.
    """
    opened = _open(folder)
    opened.bundle.policy.input_check = CheckedInputs(opened.contract)
    return opened.bundle


@torch_defaults()
def open_bundle(folder: str | Path) -> Bundle:
    """Load a bundle as :func:`load_bundle` does, for callers whose inputs need no check."""
    return _open(folder).bundle


@torch_defaults()
def check_bundle(folder: str | Path) -> dict[str, float]:
    """Replay a bundle's golden rows, and return the largest error of each backend.

    Returns:
        ``{"torch": ..., "onnx": ...}`` in raw action units; ``onnx`` only where the bundle has it.

    Raises:
        TrimtabError: as :func:`load_bundle`, and if onnxruntime does not replay within the
            contract's tolerance.
    """
    opened = _open(folder)
    errors = {"torch": opened.error}
    if ONNX in opened.files:
        graph = OnnxPolicy(opened.contract, opened.files[ONNX], f"bundle {folder}")
        errors["onnx"] = graph.check(opened.golden)
    return errors


def bundle_hash(folder: str | Path) -> str:
    """Return the identity of a bundle's policy (:func:`policy_hash`), after a look at its files.

    Raises:
        TrimtabError: if a file is missing or was changed.
    """
    return policy_hash(read_files(folder)[0])


@dataclass(frozen=True)
class _Opened:
    """A verified bundle and what was read of it; ``error`` is that of its golden rows on torch."""

    bundle: Bundle
    contract: Contract
    files: Mapping[str, bytes]
    golden: Mapping[str, NDArray[Any]]
    error: float


def _open(folder: str | Path) -> _Opened:
    """Read, verify and build a bundle, and replay its golden rows."""
    folder = Path(folder)
    config, files = read_files(folder)
    contract = Contract.parse(config, str(folder / CONFIG))
    golden = read_golden(files[GOLDEN], contract, str(folder / GOLDEN))
    if MODEL in files:
        policy = _build(config.get("policy"), str(folder / CONFIG))
        _check_fit(policy, contract, str(folder / CONFIG))
        _load_state(policy, files[MODEL], str(folder / MODEL))
    else:
        policy = black_box(contract, files[ONNX], golden, str(folder / ONNX))
    policy.evaluate_deterministic = bool(config["evaluate_deterministic"])
    error = _replay(policy, golden, contract, str(folder))
    return _Opened(Bundle(policy, config, folder), contract, files, golden, error)


def _build(config: Any, where: str) -> Policy:
    if not isinstance(config, dict):
        raise TrimtabError(
            f"{where}: its entry 'policy' is missing or malformed; export the bundle again"
        )
    try:
        with OwnDraws():  # these weights are replaced: leave torch's generator alone
            return build_policy(config).cpu().eval()
    except TrimtabError as error:
        raise TrimtabError(f"{where}: {error}") from error
    except Exception as error:  # unexpected settings may raise anything
        raise TrimtabError(f"{where}: the policy's settings cannot be used: {error}") from error


def _check_fit(policy: Policy, contract: Contract, where: str) -> None:
    """Compare the shapes and limits of the contract with the policy that was built."""
    pairs = {name: (getattr(contract, name), value) for name, value in vars(policy.spec).items()}
    pairs["order of parts"] = list(contract.parts), list(policy.spec.parts)
    pairs["noise_shape"] = contract.noise_shape, policy.noise_shape
    for name, (stated, built) in pairs.items():
        if stated != built:
            raise TrimtabError(
                f"{where}: the contract's {name} is {stated}, the policy's is {built}; export the "
                "bundle again"
            )


def _load_state(policy: Policy, data: bytes, where: str) -> None:
    """Fill ``policy`` from safetensors: the same names, shapes and types, all finite."""
    try:
        state = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise TrimtabError(
            f"{where}: is not a readable safetensors file ({error}); export the bundle again"
        ) from error
    expected = policy.state_dict()
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    for names, what in ((missing, "lacks"), (extra, "has unknown tensors")):
        if names:
            raise TrimtabError(f"{where}: {what} {', '.join(names)}; export the bundle again")
    for name, value in state.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise TrimtabError(
                f"{where}: {name} is {value.dtype} {tuple(value.shape)}, the policy needs "
                f"{expected[name].dtype} {tuple(expected[name].shape)}; export the bundle again"
            )
        if not bool(torch.isfinite(value).all()):
            raise TrimtabError(f"{where}: {name} has NaN or infinite values; train it again")
    policy.load_state_dict(state)


def _replay(
    policy: Policy, golden: Mapping[str, NDArray[Any]], contract: Contract, where: str
) -> float:
    """Return the largest difference of the policy's actions from the golden ones."""
    # torch.tensor copies; torch.from_numpy does not support read-only arrays.
    given, drawn = inputs_of(golden, contract)
    obs, noise = tree_map(torch.tensor, given), torch.tensor(drawn)
    try:
        with torch.no_grad():
            action = policy(obs, noise).numpy()
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        if isinstance(error, TrimtabError):
            raise
        raise TrimtabError(
            f"bundle {where}: the policy fails on its golden rows "
            f"({str(error)[:200]}); export the bundle again"
        ) from error
    return replay_error(action, golden["action"], f"bundle {where}", "torch", contract.tolerance)


def _state(policy: Policy) -> dict[str, Tensor]:
    """Return copies of the policy's tensors on the CPU; safetensors refuses shared memory."""
    return {
        name: value.detach().cpu().clone().contiguous()
        for name, value in policy.state_dict().items()
    }


def make_config(policy: Policy, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json``, without the hashes.

    Raises:
        TrimtabError: on an unknown, missing or impossible entry of ``given``.
    """
    for key in given:
        if key not in _ENTRIES:
            hint = nearest(str(key), _ENTRIES)
            raise TrimtabError(f"bundle contract: unknown entry {key!r}; {hint}")
    for key in _REQUIRED_ENTRIES:
        if key not in given:
            raise TrimtabError(f"bundle contract: entry {key!r} is missing; add it")
    spec, units = policy.spec, f"raw units of {given['env']}"
    config = {
        "format": FORMAT,
        "version": VERSION,
        "policy": policy.config(),
        "inputs": {
            **_describe_observation(policy, units, given),
            "noise": {
                "dtype": "float32",
                "shape": ["batch", *policy.noise_shape],
                "distribution": "standard normal",
                "deterministic": "zeros",
                "generator": "numpy Generator(Philox(seed)).standard_normal, float32",
            },
        },
        "outputs": {
            "action": {
                "dtype": "float32",
                "shape": ["batch", spec.horizon, spec.action_dim],
                "units": _listed(given, "action_units", spec.action_dim) or units,
                "order": _listed(given, "action_names", spec.action_dim) or "index",
                "low": list(spec.action_low),
                "high": list(spec.action_high),
            }
        },
        **({"history": spec.history} if spec.history > 1 else {}),
        **({"history_of_ticks": True} if spec.every_tick else {}),
        **({"limits": given["limits"]} if given.get("limits") is not None else {}),
        "control_rate": given["control_rate"],
        "chunking": {"horizon": spec.horizon, "act_steps": given["act_steps"]},
        "evaluate_deterministic": policy.evaluate_deterministic,
        "env": {
            "id": given["env"],
            "options": dict(given.get("env_options") or {}),
            "horizon": given.get("env_horizon"),
            "fingerprint": given.get("fingerprint"),
        },
        "training": {"packages": _packages(), **(given.get("training") or {})},
        **({"changed": dict(given["changed"])} if given.get("changed") else {}),
    }
    try:
        # A round trip through JSON, so that the checked and the written values are the same.
        plain: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TrimtabError(f"bundle contract: cannot be written as JSON ({error})") from error
    Contract.parse(plain, "bundle contract")
    return plain


def _describe_observation(policy: Policy, units: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contract's entry for each part of the observation, by name."""
    spec, entries = policy.spec, {}
    for name, part in spec.layout.items():
        past = [spec.history] if spec.history > 1 and part.given is None else []
        own_units = _listed(given, "obs_units", part.size) if name == FLAT else None
        names = _listed(given, "obs_names", part.size) if name == FLAT else None
        entries[name] = {
            "dtype": part.dtype,
            "shape": ["batch", *past, *part.shape],
            "units": own_units or _units(part, units),
            "order": names or "index",
            **({} if part.given is None else {"given": part.given}),
            **({"remembered": part.remembered} if part.remembered else {}),
            **({"choices": list(part.choices)} if part.choices else {}),
        }
    return entries


def _units(part: Part, units: str) -> str:
    if part.remembered:
        return "remembered by what acts"
    if part.choices:
        return "number of a choice, from 0"
    return units if part.given is None else "chosen by the user"


def _listed(given: Mapping[str, Any], key: str, count: int) -> list[str] | None:
    """Return a contract entry that has one text for each dimension; None if it is not given."""
    texts = given.get(key)
    if texts is None:
        return None
    if isinstance(texts, str) or not isinstance(texts, Sequence) or len(texts) != count:
        raise TrimtabError(f"bundle contract: {key} must be {count} texts, got {texts!r:.80}")
    return [str(text) for text in texts]


def _packages() -> dict[str, str]:
    names = ("numpy", "onnx", "onnxruntime", "safetensors", "torch")
    versions = {name: metadata.version(name) for name in names}
    return {"python": platform.python_version(), "trimtab": __version__, **versions}


def check_target(folder: Path) -> None:
    """Check that a folder holds nothing but a bundle's files, so that it may be replaced."""
    if folder.exists() and not folder.is_dir():
        raise TrimtabError(f"bundle {folder}: is a file; choose another folder")
    try:
        inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise TrimtabError(f"bundle {folder}: {error.strerror}; choose another folder") from error
    foreign = sorted(inside - {CONFIG, CARD, *HASHED})
    if foreign:
        raise TrimtabError(
            f"bundle {folder}: the folder holds {foreign[0]}, which is no part of a bundle; choose "
            "a new or empty folder"
        )
