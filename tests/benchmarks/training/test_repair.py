"""A run folder that lacks a part, or holds junk, is mended by one command and ends as it was."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.checkpoint import Checkpoints
from trimtab.benchmarks.training.folder import inspect_run
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.repair import repair
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.rundir import in_use, locked
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.types import TrimtabError


def said(*words: str) -> str:
    """Carry out a command; return what it wrote to standard output."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)  # so that no line is folded
        assert trimtab(words) == 0
    return shown.getvalue()


def refused(*words: str) -> str:
    """Return the one line with which a command is refused."""
    with pytest.raises(TrimtabError) as error:
        trimtab(words)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    return str(error.value)


def words_of(tiny: Any, out: Path) -> list[str]:
    return [*tiny.cloning(out), "offline_steps=60", "eval_every=25", "checkpoint_every=15"]


@pytest.fixture(scope="module")
def whole(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs in which one run came to its end undisturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(compose_run(words_of(tiny, out)))
    return out


@pytest.fixture(scope="module")
def begun(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs in which one run was killed after its second checkpoint."""
    out = tmp_path_factory.mktemp("begun")
    save, saved = Checkpoints.save, []

    def kill(*args: Any) -> None:
        save(*args)
        saved.append(args)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", kill)
        patch.setattr(loop, "LOG_EVERY", 10)
        train(compose_run(words_of(tiny, out)))
    return out


def copied(out: Path, to: Path) -> Path:
    """Return the folder of the one run in a copy of a folder of runs."""
    shutil.copytree(out, to)
    (folder,) = (path.parent for path in to.rglob("config.yaml"))
    return folder


def numbers(folder: Path) -> tuple[bytes, list[dict[str, Any]], dict[str, Any]]:
    """Return all of a run that does not depend on the clock."""
    rows = read_episodes(folder / "episodes.parquet").drop_columns(["seconds"]).to_pylist()
    result = json.loads((folder / "result.json").read_text())
    for value in (result, *result["evaluations"]):
        del value["seconds"]
    return (folder / "policy" / "model.safetensors").read_bytes(), rows, result


def end_of(out: Path) -> tuple[bytes, list[dict[str, Any]], dict[str, Any]]:
    (folder,) = (path.parent for path in out.rglob("result.json"))
    return numbers(folder)


def junk(name: str, text: str = "{") -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (path,) = folder.glob(name)
        path.write_text(text)

    return damage


def gone(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return damage


def both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


# What is done to a run at its end; the part that is named; where it goes on from.
DONE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no policy": (gone("policy"), "policy is missing", "its checkpoint at"),
    "a policy cut": (junk("policy/model.safetensors"), "policy is damaged", "its checkpoint at"),
    "no rows": (gone("episodes.parquet"), "episodes.parquet is missing", "its checkpoint at"),
    "junk rows": (junk("episodes.parquet"), "episodes.parquet is damaged", "its checkpoint at"),
    "a junk result": (junk("result.json"), "result.json is damaged", "its checkpoint at"),
    "a wrong result": (
        junk("result.json", '{"return": "x", "episodes": null}'),
        "result.json is damaged (result.json lacks env_steps)",
        "its checkpoint at",
    ),
    "a folder for a result": (
        both(gone("result.json"), lambda folder: (folder / "result.json").mkdir()),
        "result.json is damaged",
        "its checkpoint at",
    ),
    "folders for a result and a log": (
        both(
            gone("result.json", "metrics.jsonl"),
            lambda folder: (folder / "result.json").mkdir(),
            lambda folder: (folder / "metrics.jsonl").mkdir(),
        ),
        "metrics.jsonl is damaged (it is no file)",
        "its checkpoint at",
    ),
    "junk provenance": (
        junk("provenance.json"),
        "provenance.json is damaged",
        "its end: provenance.json will be written anew",
    ),
    "a list for provenance": (junk("provenance.json", "[]"), "is damaged", "its end"),
    "junk settings": (junk("config.yaml"), "config.yaml is damaged", "its end: config.yaml"),
    "a checkpoint emptied": (
        junk("checkpoint/step-*/state.json", ""),
        "checkpoint is damaged",
        "there is nothing more to do",
    ),
    "nothing but rows": (
        both(gone("policy"), junk("checkpoint/step-*/arrays.safetensors", "")),
        "policy is missing",
        "its start",
    ),
}


@pytest.mark.bits
@pytest.mark.parametrize("case", DONE)
def test_a_run_that_was_done_is_done_again(case: str, whole: Path, tmp_path: Path) -> None:
    damage, named, goes_on = DONE[case]
    folder = copied(whole, tmp_path / "runs")
    damage(folder)
    found = inspect_run(folder)
    assert found.state == "broken" and named in found.broken
    shown = said("runs", str(tmp_path))
    assert named in shown and f"mend it with: trimtab runs repair {folder}" in shown
    shown = said("runs", "repair", str(folder))
    assert named in shown and goes_on in shown and f"set aside in {folder}/broken-1" in shown
    command = [line for line in shown.splitlines() if line.startswith("trimtab train ")]
    if goes_on == "there is nothing more to do":
        assert not command and inspect_run(folder).state == "done"
    else:
        again = train(compose_run(shlex.split(command[0])[2:]))
        assert again.folder == folder and again.already_done == goes_on.startswith("its end")
    assert inspect_run(folder).state == "done" and not inspect_run(folder).faults
    assert numbers(folder) == end_of(whole)
    assert [path.name for path in folder.glob("broken-*")] == ["broken-1"]


@pytest.mark.parametrize("case", [case for case in DONE if case != "junk settings"])
def test_who_comes_upon_a_broken_run_names_what_mends_it(
    case: str, whole: Path, tmp_path: Path
) -> None:
    damage, named, _ = DONE[case]
    folder = copied(whole, tmp_path / "runs")
    damage(folder)
    remedy = f"mend it with: trimtab runs repair {folder}"
    words = shlex.split(json_of(folder)["command"])[1:]
    if "checkpoint" not in named:
        assert refused(*words).endswith(remedy)
    if "policy" in named:
        assert refused("evaluate", f"policy={folder}", "episodes=1").endswith(remedy)
        assert refused("export", f"run={folder}", f"out={tmp_path}/b").endswith(remedy)
    if "result" in named and (folder / "result.json").is_file():
        assert refused("export", f"run={folder}", f"out={tmp_path}/b").endswith(remedy)
    if "episodes" in named:
        assert remedy in refused("leaderboard", f"runs={tmp_path}")
    assert not list(tmp_path.rglob("b/*"))


def json_of(folder: Path) -> dict[str, Any]:
    (line,) = json.loads(said("runs", str(folder), "format=json"))
    assert isinstance(line, dict)
    return line


@pytest.mark.bits
@pytest.mark.parametrize(
    ("damage", "named", "goes_on"),
    [
        (lambda folder: None, "nothing is wrong", "its checkpoint at 0 environment steps and 30"),
        (junk("metrics.jsonl", ""), "metrics.jsonl is damaged", "its checkpoint at"),
        (junk("metrics.jsonl", "junk" * 9999), "metrics.jsonl is damaged", "its checkpoint at"),
        (junk("checkpoint/step-*/state.json"), "checkpoint is damaged", "its start"),
        (junk("checkpoint/step-*/arrays.safetensors"), "checkpoint is damaged", "its start"),
        (junk("provenance.json"), "provenance.json is damaged", "its checkpoint at"),
        (gone("provenance.json", "config.yaml", "checkpoint"), "nothing is wrong", "its start"),
    ],
)
def test_a_run_that_was_begun_comes_to_the_same_end(
    damage: Callable[[Path], None], named: str, goes_on: str, tiny: Any, begun: Path, whole: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    folder = copied(begun, tmp_path / "runs")
    assert inspect_run(folder).state == "stopped"
    damage(folder)
    shown = said("runs", "repair", str(folder))
    assert named in shown and f"goes on from {goes_on}" in shown
    assert inspect_run(folder).state == "stopped"
    train(compose_run(words_of(tiny, tmp_path / "runs")))
    assert numbers(folder) == end_of(whole) and inspect_run(folder).state == "done"
    assert json.loads((folder / "provenance.json").read_text())["config_hash"]


def test_a_checkpoint_that_only_its_hash_gives_away_is_set_aside(
    begun: Path, tmp_path: Path
) -> None:
    folder = copied(begun, tmp_path / "runs")
    (arrays,) = folder.rglob("arrays.safetensors")
    data = bytearray(arrays.read_bytes())
    data[-1] ^= 1
    arrays.write_bytes(data)
    assert inspect_run(folder).state == "stopped"  # a list reads no arrays
    assert "was changed since it was written" in said("runs", "repair", str(folder))
    assert (folder / "broken-1" / "checkpoint").is_dir() and not (folder / "checkpoint").exists()


@pytest.mark.parametrize(
    "part", ["config.yaml", "metrics.jsonl", "checkpoint/*/arrays.safetensors"]
)
def test_a_pipe_in_a_files_place_is_not_waited_for(part: str, begun: Path, tmp_path: Path) -> None:
    """Who reads it would wait for ever."""
    folder = copied(begun, tmp_path / "runs")
    (path,) = folder.glob(part)
    path.unlink()
    os.mkfifo(path)
    said("runs", str(tmp_path))
    assert path.relative_to(folder).parts[0] in said("runs", "repair", str(folder))
    assert not os.path.lexists(path) and inspect_run(folder).state == "stopped"


def test_where_nothing_is_left_all_is_set_aside(tiny: Any, whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "runs")
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.write_text("")
    assert "the trimtab train command that it was made with" in said("runs", "repair", str(folder))
    left = {path.name for path in folder.iterdir()}
    assert left == {"broken-1", "run.lock"}
    assert "set aside earlier" in said("runs", str(folder))
    assert train(compose_run(words_of(tiny, tmp_path / "runs"))).folder == folder
    assert numbers(folder) == end_of(whole)


def test_a_repair_that_is_interrupted_is_repeated(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(whole, tmp_path / "runs")
    junk("episodes.parquet")(folder)
    junk("config.yaml")(folder)
    moved, rename = [], os.rename

    def once(source: Path, target: Path) -> None:
        if moved:
            raise OSError(5, "Input/output error", str(source))
        moved.append(source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", once)
        assert "cannot move" in refused("runs", "repair", str(folder))
    assert moved == [folder / "result.json"]  # what says that the run is done goes first
    mended = repair(folder)
    assert mended.state == "stopped" and set(mended.moved) == {"episodes.parquet", "config.yaml"}
    assert {path.name for path in folder.glob("broken-*")} == {"broken-1", "broken-2"}
    assert mended.command is not None and f"out={tmp_path / 'runs'}" in mended.command


def test_a_run_in_use_is_not_mended(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "runs")
    gone("policy")(folder)
    before = sorted(folder.rglob("*"))
    with locked(folder):
        assert in_use(folder) and inspect_run(folder).state == "running"
        assert "is in use by another process" in refused("runs", "repair", str(folder))
    assert not in_use(folder) and sorted(folder.rglob("*")) == before


def test_provenance_is_not_written_anew_of_another_base(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run was started from is in its checkpoint too."""
    words = [*tiny.task(tmp_path / "runs"), "algorithm=frozen", f"base={tiny.base}"]
    folder = train(compose_run(words)).folder
    gone("result.json", "provenance.json")(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "start", {"base": "another", "dataset": None})
        with pytest.raises(TrimtabError, match="was started from another base"):
            train(compose_run(words))
    assert not (folder / "provenance.json").exists()
    train(compose_run(words))
    assert json.loads((folder / "provenance.json").read_text())["restored"] is True


def test_a_run_that_noted_no_command_says_what_it_knows(begun: Path, tmp_path: Path) -> None:
    """Earlier versions noted none."""
    folder = copied(begun, tmp_path / "runs")
    provenance = json.loads((folder / "provenance.json").read_text())
    del provenance["command"]
    (folder / "provenance.json").write_text(json.dumps(provenance))
    config = (folder / "config.yaml").read_text()
    assert config.startswith("# trimtab train env=")
    noted = said("runs", "repair", str(folder)).splitlines()[-1]  # from above the settings
    assert noted.startswith("trimtab train env=") and f"out={tmp_path / 'runs'}" in noted
    (folder / "config.yaml").write_text(config.partition("\n")[2])
    told = "the trimtab train command that it was made with"
    assert told in said("runs", "repair", str(folder))
