"""The wheel and the sdist, built from a copy of the tree, hold everything and run alone.

Nothing is fetched: the builds use the setuptools that the lock pins, and installing is unpacking.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import EntryPoint, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import trimtab
from trimtab.benchmarks.cli.main import main

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
LOCKS = {
    "3.11": "requirements.lock",
    "3.12": "requirements-3.12.lock",
    "3.13": "requirements-3.13.lock",
}
every_lock = pytest.mark.parametrize("python", LOCKS)
LINKED = ("envs", "datasets", "policies", "algorithms", "benchmarks", "conf")


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run a command, with ``path`` first among what Python imports; return what it prints."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


def copy_of_the_tree(root: Path, target: Path) -> Path:
    """Copy what packaging reads, links as links, without caches or anybody's runs."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for name in (*LINKED, "src"):
        shutil.copytree(root / name, target / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(root / name, target / name)
    return target


def members(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel by its name, but for the list of hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "RECORD" not in name}


def package_sources(root: Path) -> dict[str, bytes]:
    """What a wheel must hold: every file of the package but notes, results and caches.

    A data file of a kind that pyproject.toml does not name yet is therefore missed at once.
    """
    top = [path for path in (root / "src" / "trimtab").iterdir() if path.is_file()]
    files = {path: f"trimtab/{path.name}" for path in top}
    for folder in LINKED:
        for path in (root / folder).rglob("*"):
            files[path] = f"trimtab/{path.relative_to(root).as_posix()}"
    return {
        name: path.read_bytes()
        for path, name in files.items()
        if path.is_file()
        and path.suffix not in {".md", ".pyc"}
        and not name.startswith("trimtab/benchmarks/results/")
    }


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``tree`` (one wheel), and ``sdist`` (the sdist and the wheel made from it)."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = copy_of_the_tree(root, folder / "copy")
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--outdir", folder / "sdist", cwd=tree)
    run(*build, "--wheel", "--outdir", folder / "tree", cwd=tree)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel that was built from the tree."""
    (path,) = (built / "tree").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's metadata."""
    files = members(wheel)
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(files[name].decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, built: Path) -> Path:
    """A folder that holds the wheel's files and nothing else, as pip installs them."""
    target = built / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", target, wheel, cwd=built)
    return target


def locked(root: Path, python: str = HERE) -> dict[str, str]:
    """The pins of a Python's lock, name to version, in the order of the file."""
    lines = (root / LOCKS[python]).read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins)
    return {canonicalize_name(name): version for name, version in pins}


def test_wheel_holds_every_source_file_as_it_is(wheel: Path, root: Path) -> None:
    expected = package_sources(root)
    for folder in LINKED:
        assert any(name.startswith(f"trimtab/{folder}/") for name in expected)
    assert {name for name in expected if not name.endswith(".py")} >= {"trimtab/py.typed"}
    files = members(wheel)
    found = {name: data for name, data in files.items() if name.startswith("trimtab/")}
    assert sorted(found) == sorted(expected)
    assert found == expected


def test_wheel_from_the_sdist_equals_the_wheel_from_the_tree(built: Path, wheel: Path) -> None:
    (from_sdist,) = (built / "sdist").glob("*.whl")
    assert members(from_sdist) == members(wheel)


def test_sdist_holds_plain_files(built: Path) -> None:
    (sdist,) = (built / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        entries = archive.getmembers()
    assert all(entry.isfile() or entry.isdir() for entry in entries)
    names = {entry.name.partition("/")[2] for entry in entries}
    assert {"src/trimtab/conf/__init__.py", "src/trimtab/py.typed", "LICENSE"} <= names


def test_metadata_says_what_is_needed(metadata: Message) -> None:
    assert metadata["Version"] == trimtab.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    core = {need.name: need for need in needs if need.marker is None}
    assert str(core["torch"].specifier) == "==2.13.0"
    assert not {"metaworld", "minari", "pytest", "robosuite"} & core.keys()
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"all", "dev", "metaworld", "minari", "robotics"} <= extras


def test_extra_all_holds_every_other_extra_for_users(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    collected = set().union(*(Requirement(text).extras for text in extras["all"]))
    assert collected == extras.keys() - {"all", "dev", "docs", "others", "peers"}


def test_every_import_is_declared(metadata: Message, root: Path) -> None:
    """Nothing is imported that is only there because something else needs it."""
    needs = (Requirement(text) for text in metadata.get_all("Requires-Dist", []))
    declared = {canonicalize_name(need.name) for need in needs} | {"trimtab"}
    brought = packages_distributions()
    found = set()
    for folder in LINKED:
        for path in (root / folder).rglob("*.py"):
            if "results" in path.parts:  # beside rows, and in no wheel
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    found.add(node.module.partition(".")[0])
    theirs = found - sys.stdlib_module_names - {"trimtab"}
    assert {"numpy", "omegaconf", "scipy", "yaml"} <= theirs
    for name in theirs:
        if name not in brought and name in declared:  # a peer of `trimtab speed`, not in the lock
            continue
        assert {canonicalize_name(one) for one in brought[name]} & declared, name


def test_installed_wheel_is_what_python_imports(installed: Path) -> None:
    code = "import trimtab, trimtab.policies.base as base; print(trimtab.__file__, base.__file__)"
    printed = run(sys.executable, "-P", "-c", code, cwd=installed.parent, path=installed)
    assert [Path(word).is_relative_to(installed) for word in printed.split()] == [True, True]


def test_installed_command_line_answers(installed: Path) -> None:
    (info,) = installed.glob("*.dist-info")
    (script,) = re.findall(r"^trimtab = (.+)$", (info / "entry_points.txt").read_text(), re.M)
    entry = EntryPoint("trimtab", script, "console_scripts")
    alone = {"cwd": installed.parent, "path": installed}
    assert "bench" in run(sys.executable, "-P", "-m", entry.module, "--help", **alone)
    # The script calls this very function.
    code = f"import sys, {entry.module} as cli; sys.argv[1:] = ['--help']; cli.{entry.attr}()"
    assert "bench" in run(sys.executable, "-P", "-c", code, **alone)


def test_installed_wheel_lists_what_the_tree_lists(
    installed: Path, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("list", "algorithm", "format=json")
    command = (sys.executable, "-P", "-m", "trimtab.benchmarks.cli.main", *words)
    alone = run(*command, cwd=installed.parent, path=installed)
    assert Path(trimtab.__file__).is_relative_to(root / "src")  # what this process lists
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0 and capfd.readouterr().out == alone


def read(page: Path, place: Path, files: int) -> str:
    """Write the files of a page; return its commands.

    Args:
        page: the document.
        place: an empty folder.
        files: how many files the page has.
    """
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == files
    for name, body in found:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(body)
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


IN_ONE_PROCESS = r"""
import contextlib, os, runpy, subprocess, sys
from trimtab.benchmarks.cli.main import run
os.cpu_count = lambda: 1  # so a suite has one worker, which imports everything once more
for line in sys.argv[1:]:
    line, _, file = line.partition(" > ")
    shell = ["bash", "-ec", "printf '%s\\0' " + line]
    read = subprocess.run(shell, stdout=subprocess.PIPE, check=True, text=True).stdout
    program, *words = read.split("\0")[:-1]
    out = open(file, "w") if file else contextlib.nullcontext(sys.stdout)
    with out as shown, contextlib.redirect_stdout(shown):
        if program == "export":  # for the processes that follow
            os.environ.update([words[0].split("=", 1)])
        elif program == "trimtab":
            assert run(words) == 0, line
        else:
            assert program == "python", line
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
"""
"""Carries out lines for a shell, in an interpreter that imports everything once."""


def followed(page: Path, installed: Path, place: Path, files: int, *apart: str) -> str:
    """Carry out a page's commands with the wheel alone, in one process; return what it said.

    Args:
        page: the document.
        installed: the wheel's files.
        place: an empty folder.
        files: how many files the page has.
        apart: the page's last line, where it needs a process of its own: a program and its words.
    """
    lines = read(page, place, files).replace("\\\n", " ").splitlines()
    lines = [line for line in lines if line]
    if apart:
        assert lines.pop() == " ".join(apart)
    told = run(sys.executable, "-c", IN_ONE_PROCESS, *lines, cwd=place, path=installed)
    return told + (run(sys.executable, *apart[1:], cwd=place, path=installed) if apart else "")


def test_a_suite_of_ones_own_is_planned_run_and_compared(
    installed: Path, root: Path, tmp_path: Path
) -> None:
    told = followed(root / "docs" / "suites.md", installed, tmp_path, 4)
    assert re.search(r"^success: 6 of \d+ attempts \(", told, re.MULTILINE)
    assert "algorithm.noise: 0.02" in told
    assert "4 runs, 400 updates and 0 environment steps" in told
    (sentence,) = re.findall(r"^smoothed_bc .* bc in robotics/PointMaze.*$", told, re.MULTILINE)
    assert "paired by the 2 seeds" in sentence and "95 percent interval" in sentence
    table = (tmp_path / "table.tex").read_text()
    assert r"smoothed\_bc & " in table and table.count(r"\toprule") == 1
    board = (tmp_path / "runs" / "suites" / "mine" / "leaderboard.md").read_text()
    assert re.search(r"^\| smoothed_bc \| .* \| bc \| ", board, re.MULTILINE)  # a gain over bc


def test_own_data_becomes_a_bundle_that_moves(installed: Path, root: Path, tmp_path: Path) -> None:
    told = followed(root / "docs" / "own-data.md", installed, tmp_path, 3)
    errors = dict(re.findall(r"(error|nearest neighbour|mean action) ([\d.]+)", told))
    assert float(errors["error"]) < float(errors["nearest neighbour"])
    assert "observes ['shoulder', 'elbow', 'shoulder_mark', 'elbow_mark'] ['rad', 'rad'" in told
    (distance,) = re.findall(r"the arm is ([\d.]+) rad from the mark", told)
    assert float(distance) < 0.15  # it began 1.3 away
    assert "a step of 20 Hz has 50.0 ms" in told


def test_the_first_hour_is_carried_out(installed: Path, root: Path, tmp_path: Path) -> None:
    robot = ("python", "robot.py", "runs/suites/carts/bundle")  # it imports no torch
    told = followed(root / "docs" / "first-hour.md", installed, tmp_path, 6, *robot)
    assert "no fault found" in told and "smoothed_bc" in told
    (reached,) = re.findall(r"reached the mark in (\d+) of 10 episodes", told)
    assert int(reached) >= 8
    assert list((tmp_path / "runs").rglob("trackers/tensorboard/events.*"))
    assert (tmp_path / "board" / "leaderboard.md").is_file()


@every_lock
def test_lock_is_sorted_plain_pins(root: Path, python: str) -> None:
    text = (root / LOCKS[python]).read_text(encoding="utf-8")
    assert f"on Python {python}, Linux." in text
    pins = locked(root, python)
    assert list(pins) == sorted(pins)
    assert pins["torch"] == "2.13.0"
    assert not re.search(r"[/@+]|file:|trimtab==", re.sub(r"^#.*$", "", text, flags=re.M))


@every_lock
def test_lock_meets_every_requirement(metadata: Message, root: Path, python: str) -> None:
    pins = locked(root, python)
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    outside = [need for need in needs if canonicalize_name(need.name) != "trimtab"]
    assert len(outside) > 20
    for need in outside:
        if 'extra == "peers"' in str(need.marker):  # what is only measured against is not locked
            continue
        version, lock = pins.get(canonicalize_name(need.name)), LOCKS[python]
        assert version is not None, f"{need}: not in {lock}; run make lock"
        assert Version(version) in need.specifier, f"{need}: {lock} has {version}; run make lock"


def test_locks_differ_by_what_a_python_cannot_have(root: Path) -> None:
    pins = {python: locked(root, python) for python in LOCKS}
    compiled = {"evdev", "pynput", "python-xlib", "six"}
    assert pins["3.11"].keys() - pins["3.12"].keys() == compiled
    assert pins["3.12"].keys() - pins["3.13"].keys() == {"labmaze", "mink"}
    for python in ("3.12", "3.13"):
        other = {name for name, version in pins[python].items() if pins["3.11"][name] != version}
        # The newest zarr wants NumPy 2.
        wanted = {"numpy", "zarr"} if python == "3.13" else set()
        assert other == wanted, f"run make lock for {python}"
    assert Version(pins["3.13"]["numpy"]).major == 2


def test_what_is_installed_is_what_the_lock_says(root: Path) -> None:
    pins = locked(root)
    installed = {name: Version(distribution(name).version).public for name in pins}
    assert installed == pins, "run make install"


@every_lock
def test_every_pin_of_a_lock_accepts_the_oldest_of_its_python(
    metadata: Message, root: Path, python: str
) -> None:
    """Debian 12 has Python 3.11.2, where a pin for 3.11.5 and later ends ``make install``."""
    assert metadata["Requires-Python"] == ">=3.11"
    here = locked(root)
    pins = [name for name, version in locked(root, python).items() if here.get(name) == version]
    assert len(pins) > 190  # what is installed says which Pythons it accepts
    needed = {name: distribution(name).metadata["Requires-Python"] or "" for name in pins}
    refused = [name for name, said in needed.items() if f"{python}.0" not in SpecifierSet(said)]
    assert refused == []


@pytest.mark.parametrize(
    ("there", "words", "told"),
    [
        (("3.12",), (), "install --no-deps -r requirements-3.12.lock"),
        (("3.13",), (), "install --no-deps -r requirements-3.13.lock"),
        (("3.13", "3.11"), (), "install --no-deps -r requirements.lock"),
        (("3.13", "3.11"), ("PYTHON=python3.13",), "install --no-deps -r requirements-3.13.lock"),
        (("3.14",), ("PYTHON=python3.14",), "there is no lock for Python 3.14: install one of"),
        (("3.11",), ("PYTHON=python3",), "python3 was not found: install one of python3.11"),
        ((), (), "python3.11 was not found: install one of python3.11 python3.12 python3.13"),
    ],
)
def test_make_takes_the_first_python_that_is_there(
    root: Path, tmp_path: Path, there: tuple[str, ...], words: tuple[str, ...], told: str
) -> None:
    for version in there:  # tells its version and its name, and installs nothing
        script = tmp_path / f"python{version}"
        answers = f"*version*) echo {version};; *print*) echo python{version};; *) exit 1;;"
        script.write_text(f'#!/bin/sh\ncase "$2" in {answers} esac\n')
        script.chmod(0o755)
    make = shutil.which("make")
    assert make is not None
    command = [make, "install", f"VENV={tmp_path}/made", *words]
    if "--no-deps" in told:
        command.append("-n")
    done = subprocess.run(
        command, cwd=root, env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert told in done.stdout + done.stderr
    assert done.returncode == (0 if "--no-deps" in told else 2)


def test_ci_and_build_run_in_a_fresh_clone(root: Path) -> None:
    assert os.access(root / ".ci" / "run", os.X_OK)
    planned = run("make", "-n", "test", "VENV=elsewhere", "PYTHON=python3.11", cwd=root)
    steps = [
        "-m venv elsewhere",
        "install --no-deps -r requirements.lock",
        "-e .",
        "ruff check",
        "mypy",
    ]
    places = [planned.index(step) for step in [*steps, "bin/pytest"]]
    assert places == sorted(places)
