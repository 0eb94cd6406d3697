"""The doctor: what it finds on a whole machine and on broken ones."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from trimtab.benchmarks import doctor


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


def test_a_mixed_mujoco_is_found() -> None:
    mixed = doctor.mujoco_whole(versions(**{"mujoco": "3.3.0", "mujoco-core": "4.0.0"}))  # type: ignore[arg-type]
    assert mixed.level == "error"
    assert "mixed with mujoco-core 4.0.0" in mixed.message


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
