"""Find what is wrong with a machine or an installation before a run does."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trimtab.benchmarks.artefacts.headless import REMEDY, VARIABLE, Trial, candidates, try_renderers
from trimtab.benchmarks.cli.robot import Finding
from trimtab.envs.core.needs import unmet
from trimtab.envs.registry import list_families
from trimtab.files import existing, unwritable
from trimtab.processor import processor_kind

LEAST_FREE_GIGABYTES = 2.0
_CORE = ("torch", "numpy", "gymnasium", "hydra-core", "h5py", "pyarrow", "onnxruntime")


def examine(out: Path) -> list[Finding]:
    """Look at the installation, the simulators and the folder that runs are written to."""
    return [
        _python(),
        *_core(),
        mujoco_whole(),
        *one_cuda(torch_cuda()),
        *_families(),
        drawing(try_renderers(candidates(), timeout=8.0)),
        video_writer(),
        writable(out),
        free_space(out),
        *_threads(),
    ]


def _python() -> Finding:
    return Finding("ok", "python", ".".join(str(part) for part in sys.version_info[:3]))


def _core() -> list[Finding]:
    findings = []
    for package in _CORE:
        module = {"hydra-core": "hydra"}.get(package, package)
        try:
            importlib.import_module(module)
            version = importlib.metadata.version(package)
            findings.append(Finding("ok", package, version))
        except Exception as error:  # a broken package may raise anything at import
            line = " ".join(str(error).split())
            findings.append(
                Finding("error", package, f"cannot be imported ({line}); run make install")
            )
    return findings


def mujoco_whole(version_of: Callable[[str], str] = importlib.metadata.version) -> Finding:
    """Return whether MuJoCo is one whole version that runs."""
    remedy = "make a fresh environment (rm -r .venv; make install)"
    try:
        import mujoco

        installed, loaded = version_of("mujoco"), mujoco.__version__
        model = mujoco.MjModel.from_xml_string("<mujoco><worldbody/></mujoco>")
        mujoco.mj_step(model, mujoco.MjData(model))
    except Exception as error:  # a broken binding may raise anything
        return Finding("error", "mujoco", f"does not run ({error}); {remedy}")
    if loaded != installed:
        return Finding(
            "error", "mujoco", f"the files are {loaded}, the package says {installed}; {remedy}"
        )
    try:
        mjx = version_of("mujoco-mjx")
    except importlib.metadata.PackageNotFoundError:
        mjx = installed
    if mjx != installed:
        return Finding(
            "warning", "mujoco", f"{installed} beside mujoco-mjx {mjx}: C and MJX physics differ"
        )
    return Finding("ok", "mujoco", installed)


def torch_cuda() -> str:
    """Return the version of CUDA that torch was built for; empty if it was built for none."""
    import torch

    return torch.version.cuda or ""


def one_cuda(
    torch_cuda: str, version_of: Callable[[str], str] = importlib.metadata.version
) -> list[Finding]:
    """Return a warning where torch and JAX bring libraries of two versions of CUDA.

    Both unpack cuDNN and NCCL into the same folders, where the later one takes the other's place.
    """
    found = []
    for number in ("12", "13"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version_of(f"jax-cuda{number}-plugin")
            found.append(number)
    major = torch_cuda.partition(".")[0]
    if not major or set(found) <= {major}:
        return []
    told = f"torch is built for CUDA {torch_cuda} and JAX for CUDA {', '.join(found)}, whose "
    told += f"libraries replace each other: install torch's build for CUDA {found[0]}"
    return [Finding("warning", "cuda", told)]


def _families() -> list[Finding]:
    findings = []
    for family in list_families():
        missing, what = unmet(family), f"envs {family.name}/"
        if missing:
            text = f"needs {', '.join(missing)}: pip install '{family.install}'"
            findings.append(Finding("note", what, text))
        else:
            findings.append(Finding("ok", what, f"{len(family.tasks)} tasks"))
    return findings


def drawing(trials: Sequence[Trial]) -> Finding:
    """Return what ``trimtab evaluate video=true`` will draw with: the first trial that works.

    Only videos need drawing. If nothing works, that is a note. If the user has set ``MUJOCO_GL``
    and it does not work, that is a warning.
    """
    works = [trial.renderer for trial in trials if trial.works]
    failed = [f"{trial.renderer} fails ({trial.reason})" for trial in trials if not trial.works]
    if works:
        also = [f"{renderer} works too" for renderer in works[1:]]
        return Finding("ok", "drawing", "; ".join([f"{VARIABLE}={works[0]}", *also, *failed]))
    if os.environ.get(VARIABLE):
        why = f"{VARIABLE} is set: {'; '.join(failed)}"
        return Finding("warning", "drawing", f"no videos: {why}; unset it, or {REMEDY}")
    return Finding("note", "drawing", f"no videos: {'; '.join(failed)}; {REMEDY}")


def video_writer() -> Finding:
    """Return whether there is an ffmpeg to write videos with."""
    try:
        import imageio_ffmpeg

        version = imageio_ffmpeg.get_ffmpeg_version()
    except (ImportError, RuntimeError, OSError) as error:
        line = " ".join(str(error).split())
        text = f"no videos: pip install 'trimtab[video]' ({line})"
        return Finding("note", "ffmpeg", text)
    return Finding("ok", "ffmpeg", version.split()[0])


def writable(folder: Path) -> Finding:
    """Return whether files can be made in ``folder``, or in the nearest folder above it."""
    reason = unwritable(folder)
    if reason is not None:
        return Finding("error", str(folder), f"cannot be written ({reason}); choose out=…")
    return Finding("ok", str(folder), "can be written")


def free_space(folder: Path) -> Finding:
    """Return whether the disk of ``folder`` has room for runs."""
    free = shutil.disk_usage(existing(folder)).free / 1e9
    level = "ok" if free >= LEAST_FREE_GIGABYTES else "warning"
    return Finding(level, "disk", f"{free:.1f} GB free")


def _threads() -> list[Finding]:
    cores = os.cpu_count() or 1
    return [
        Finding("ok", "processor", f"{cores} cores; a run uses one, a suite all of them"),
        Finding("ok", "processor kind", f"{processor_kind()}; equal bits need an equal kind"),
    ]
