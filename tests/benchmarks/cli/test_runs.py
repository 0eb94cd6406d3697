"""``trimtab runs``, and a leaderboard of runs that differ by a setting or are unfinished."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.commands.runs import _row
from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.cli.words import Command, Setting, parse
from trimtab.benchmarks.training.locking import locked
from trimtab.benchmarks.training.overview import lines_of
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


@pytest.fixture(scope="module")
def swept(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A folder of two runs that differ by a learning rate, and the runs' folders."""
    out = tmp_path_factory.mktemp("swept")
    words = [*tiny.cloning(out), "offline_steps=2", "eval_episodes=1"]
    rates = ("0.001", "0.002")
    done = [train(compose_run([*words, f"algorithm.learning_rate={rate}"])) for rate in rates]
    return out, [result.folder for result in done]


def listed(place: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a list as JSON, by the run's folder."""
    return {line["run"]: line for line in json.loads(said("runs", str(place), "format=json"))}


def unfinished(folder: Path) -> None:
    """Leave of a run what there is of one that was killed after its first evaluation."""
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "policy")


def test_runs_are_listed_with_what_tells_them_apart(swept: tuple[Path, list[Path]]) -> None:
    out, (one, two) = swept
    lines = listed(out)
    assert {run: line["settings"] for run, line in lines.items()} == {
        str(one): {"algorithm.learning_rate": 0.001},
        str(two): {"algorithm.learning_rate": 0.002},
    }
    result = json.loads((one / "result.json").read_text())
    line = lines[str(one)]
    assert (line["state"], line["updates"], line["env_steps"]) == ("done", 2, 0)
    assert (line["return"], line["success"]) == (result["return"], result["success"])
    assert line["seconds"] == result["seconds"] and line["note"] == ""
    assert "algorithm.learning_rate=0.001" in line["command"]
    shown = said("runs", str(out))
    assert "algorithm.learning_rate=0.002" in shown and str(two.relative_to(out)) in shown


def test_a_line_names_few_settings_of_runs_that_differ_in_many(
    swept: tuple[Path, list[Path]],
) -> None:
    (line, _) = lines_of(swept[1])
    many = {f"algorithm.setting_{number}": number for number in range(20)}
    row = _row(replace(line, settings=many), swept[0])
    assert "algorithm.setting_7=7 and 12 more" in row["settings"]
    assert "algorithm.setting_8=8" not in row["settings"]


def test_every_state_is_told(swept: tuple[Path, list[Path]], tmp_path: Path) -> None:
    shutil.copytree(swept[0], tmp_path / "runs")
    one, two = sorted(path.parent for path in tmp_path.rglob("config.yaml"))
    unfinished(one)
    lines = listed(tmp_path / "runs")
    assert [lines[str(run)]["state"] for run in (one, two)] == ["stopped", "done"]
    assert lines[str(one)]["updates"] == 2 and lines[str(one)]["return"] is not None
    assert "resume it with: trimtab train " in said("runs", str(one))
    with locked(one):
        assert listed(tmp_path)[str(one)]["state"] == "running"
    (two / "result.json").write_text('{"return": "x", "episodes": null}')
    shown = said("runs", str(tmp_path))
    assert "broken" in shown and "result.json lacks env_steps" in shown


@pytest.mark.parametrize("wrong", [{"command": 5}, {"command": [5]}, {"plugins": [5]},
                                   {"dataset": "x"}])  # fmt: skip
def test_a_run_whose_provenance_is_damaged_is_listed_as_broken(
    wrong: dict[str, Any], swept: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    shutil.copytree(swept[0], tmp_path / "runs")
    file = next((tmp_path / "runs").rglob("provenance.json"))
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    line = listed(file.parent)[str(file.parent)]
    assert line["state"] == "broken" and "provenance.json is damaged" in line["note"]
    assert line["command"] is None


def test_two_runs_are_compared(swept: tuple[Path, list[Path]], tmp_path: Path) -> None:
    one, two = map(str, swept[1])
    shown = said("runs", "diff", one, two)
    assert "algorithm.learning_rate" in shown and "0.001" in shown and "0.002" in shown
    assert "batch_size" not in shown
    assert json.loads(said("runs", "diff", one, two, "format=json")) == {
        "algorithm.learning_rate": [0.001, 0.002]
    }
    assert "the same settings" in said("runs", "diff", one, one)
    (tmp_path / "seed0").mkdir()
    shutil.copy(Path(two) / "provenance.json", tmp_path / "seed0")
    (tmp_path / "seed0" / "config.yaml").write_text("{")  # its provenance still says the most
    changed = json.loads(said("runs", "diff", one, str(tmp_path / "seed0"), "format=json"))
    assert changed["algorithm.learning_rate"] == [0.001, 0.002]


def test_wrong_words_are_one_line(swept: tuple[Path, list[Path]], tmp_path: Path) -> None:
    out, (one, _) = swept
    assert "nowhere does not exist; name a folder of runs" in refused("runs", "nowhere")
    assert "did you mean diff?" in refused("runs", "dif")
    assert "did you mean diff?" in refused("runs", "dif", str(one))
    assert f"there is no run in {tmp_path}" in refused("runs", str(tmp_path))
    assert "give the folders of two runs" in refused("runs", "diff", str(one))
    assert f"holds 2 runs; name one of them, such as {one.parents[1]}" in refused(
        "runs", "diff", str(out), str(one)
    )
    assert "one word too many" in refused("runs", "diff", "a", "b", "c")
    assert "is no folder" in refused("runs", str(one / "config.yaml"))
    assert "b: one word too many" in refused("runs", "diff", "a", "b", "where=c")
    assert not list(tmp_path.iterdir())


def test_bare_words_stand_for_settings_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"do": Setting("a", "", ("a", "b")), "at": Setting("x", "where it is", of=("a",))}
    command = Command("", "", (), settings, bare=("do",), by="do", bare_of={"a": ("at",)})

    def parsed(*words: str) -> dict[str, Any]:
        return parse("it", command, words)

    assert parsed("b") == {"do": "b", "at": "x"}
    assert parsed("a", "y") == parsed("y", "do=a") == parsed("at=y") == {"do": "a", "at": "y"}
    (tmp_path / "c, d=e").mkdir()
    assert parsed("a", "c, d=e") == {"do": "a", "at": "c, d=e"}
    for words, said in (
        (["c"], "it: c: did you mean|it: c: there are"),
        (["a", "y", "z"], "z: one word too many"),
        (["at="], "it: at= is empty; leave it out, .*: where it is"),
        (["b", "at=y"], "it: at= belongs to do=a, not to do=b"),
        (["ta=y"], "it: no setting 'ta'"),
    ):
        with pytest.raises(TrimtabError, match=said):
            parsed(*words)


def test_a_folder_is_asked_for_in_place_of_a_pattern_and_a_run_in_place_of_a_folder(
    swept: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    out, (one, _) = swept
    told = refused("leaderboard", f"runs={out}/*")
    assert f"give a folder, all of whose runs are taken, such as runs={out}, where there" in told
    assert str(one) in told
    told = refused("export", f"run={out}", f"out={tmp_path / 'bundle'}")
    assert f"{out} holds runs; give the folder of one: " in told and str(one) in told
    told = refused("leaderboard", f"runs={out}", f"out={one / 'policy'}")
    assert "is a policy's bundle; name a folder for the leaderboard" in told
    (tmp_path / "leaderboard.md").write_text("mine")
    told = refused("leaderboard", f"runs={out}", f"out={tmp_path}")
    assert "something is there that this command has not made" in told
    assert [path.name for path in tmp_path.iterdir()] == ["leaderboard.md"]


def test_a_leaderboard_of_a_sweep_names_the_setting(swept: tuple[Path, list[Path]]) -> None:
    (table,) = json.loads(said("leaderboard", f"runs={swept[0]}", "format=json"))["tables"]
    labels = {entry["label"] for entry in table["entries"]}
    assert labels == {"bc (learning_rate=0.001)", "bc (learning_rate=0.002)"}


def test_an_unfinished_run_is_named_beside_the_tables(
    swept: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    shutil.copytree(swept[0], tmp_path / "runs")
    one, two = sorted(path.parent for path in tmp_path.rglob("config.yaml"))
    unfinished(one)
    board = json.loads(said("leaderboard", f"runs={tmp_path}", "format=json"))
    assert len(board["tables"][0]["entries"]) == 2
    told = "is unfinished (stopped at 0 environment steps and 2 updates): it"
    assert f"{one} {told} counts with its last evaluation." in board["notes"]
    (one / "episodes.parquet").unlink()
    board = json.loads(said("leaderboard", f"runs={tmp_path}", "format=json"))
    assert len(board["tables"][0]["entries"]) == 1
    assert f"{one} {told} has no evaluation yet and no row." in board["notes"]
    (two / "episodes.parquet").unlink()
    assert f"{one} {told}" in refused("leaderboard", f"runs={tmp_path}")
    assert f"move {two} away" in refused("leaderboard", f"runs={two}")
