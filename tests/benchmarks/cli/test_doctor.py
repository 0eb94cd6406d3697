"""The doctor: what it finds on a whole machine and on broken ones."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.benchmarks.artefacts.headless import Trial
from trimtab.benchmarks.cli import doctor, robot
from trimtab.benchmarks.cli.main import run
from trimtab.errors import TrimtabError
from trimtab.processor import processor_kind


def versions(**known: str) -> object:
    def version_of(package: str) -> str:
        if package in known:
            return known[package]
        raise importlib.metadata.PackageNotFoundError(package)

    return version_of


def test_this_installation_is_whole(tmp_path: Path) -> None:
    findings = doctor.examine(tmp_path)
    assert [finding for finding in findings if finding.level == "error"] == []
    assert {"envs gym/", "envs metaworld/", "envs robotics/"} <= {f.what for f in findings}
    kind = next(finding for finding in findings if finding.what == "processor kind")
    assert kind.level == "ok" and kind.message.startswith(processor_kind())
    assert {"drawing": "ok", "ffmpeg": "ok"}.items() <= {f.what: f.level for f in findings}.items()


def test_a_mujoco_whose_files_are_of_another_version_is_found() -> None:
    other = doctor.mujoco_whole(versions(mujoco="3.2.9"))  # type: ignore[arg-type]
    assert other.level == "error"
    assert "the package says 3.2.9" in other.message


def test_a_missing_mujoco_is_found() -> None:
    assert doctor.mujoco_whole(versions()).level == "error"  # type: ignore[arg-type]


def test_mjx_of_another_version_is_a_warning() -> None:
    import mujoco

    known = {"mujoco": mujoco.__version__, "mujoco-mjx": "9.9.9"}
    assert doctor.mujoco_whole(versions(**known)).level == "warning"  # type: ignore[arg-type]


def test_libraries_of_two_versions_of_cuda_are_named() -> None:
    with_jax = versions(**{"jax-cuda12-plugin": "0.7.1"})
    (found,) = doctor.one_cuda("13.0", with_jax)  # type: ignore[arg-type]
    assert found.level == "warning" and "CUDA 13.0 and JAX for CUDA 12" in found.message
    assert doctor.one_cuda("12.6", with_jax) == []  # type: ignore[arg-type]
    assert doctor.one_cuda("", with_jax) == []  # type: ignore[arg-type]


def test_a_missing_extra_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def without(package: str) -> str:
        if package == "metaworld":
            raise importlib.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(importlib.metadata, "version", without)
    (finding,) = (f for f in doctor._families() if f.what == "envs metaworld/")
    assert finding.level == "note"
    assert "pip install 'trimtab[metaworld]'" in finding.message


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    # The process file system refuses new files to everyone, root included.
    assert doctor.writable(Path("/proc/trimtab/runs")).level == "error"
    assert doctor.writable(tmp_path / "not" / "yet" / "there").level == "ok"


def test_what_draws_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    good, bad = Trial("osmesa", ""), Trial("egl", "no device")
    found = doctor.drawing([bad, good])
    assert found.level == "ok"
    assert found.message == "MUJOCO_GL=osmesa; egl fails (no device)"
    assert doctor.drawing([bad]).level == "note"
    monkeypatch.setenv("MUJOCO_GL", "egl")
    chosen = doctor.drawing([bad])
    assert chosen.level == "warning" and "unset it" in chosen.message


def test_a_missing_ffmpeg_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.video_writer().level == "ok"
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert doctor.video_writer().level == "note"
    assert "pip install 'trimtab[video]'" in doctor.video_writer().message


ON_A_ROBOT = """
import sys
for name in ("torch", "gymnasium", "hydra", "rich", "yaml", "omegaconf", "safetensors", "mujoco"):
    sys.modules[name] = None  # an import of it fails
import importlib.util
there = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if sys.modules.get(name, 0) is None else there(name)
from trimtab.benchmarks.cli.main import main
main(sys.argv[1:])
"""


def test_a_robot_is_asked_for_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_A_ROBOT, "doctor"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    needed = {"numpy", "onnxruntime", "threads", "bundle"}
    assert needed <= {*done.stdout.split()}
    assert "torch" not in done.stdout and "gymnasium" not in done.stdout
    (tmp_path / "config.json").write_text("{}")
    words = ["doctor", f"bundle={tmp_path}", "--format=json"]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_ROBOT, *words], capture_output=True, text=True
    )
    found = {one["what"]: one for one in json.loads(done.stdout)}
    assert (done.returncode, done.stderr) == (1, "") and needed <= found.keys()
    assert "is not the config of a Trimtab bundle" in found["bundle"]["message"]
    with pytest.raises(TrimtabError, match="bundle=nowhere: has no config.json") as raised:
        run(["doctor", "bundle=nowhere"])
    assert raised.value.exit_code == 2


def test_a_decision_that_fits_is_no_warning() -> None:
    """Less than the step is none; more than half of it is told, with what is left."""
    found = robot._latency(0.0126, 0.02, "12.60 ms of 20.0 ms", fewer_steps=True)
    assert found.level == "note" and found.message.endswith("leaves 7.4 ms for sensors and motors")


def test_a_robot_is_told_what_is_old_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3")
    levels = {finding.what: finding for finding in robot.examine_robot(None)}
    assert "pip install 'onnxruntime>=" in levels["onnxruntime"].message
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert robot.examine_robot(None)[2].level == "error"
    assert robot.examine_robot(Path("/nowhere"))[-1].what == "threads"  # no bundle without it
