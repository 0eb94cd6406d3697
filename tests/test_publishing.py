"""Rows are added to committed ones, and tables written, on a small made-up folder of results."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.compute as pc
import pytest

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.arena.next_looks import NextLook
from trimtab.benchmarks.training.rows import (
    EpisodeRow,
    collect_episodes,
    episodes_table,
    in_order,
    read_episodes,
    write_episodes,
)
from trimtab.errors import TrimtabError
from trimtab.processor import processor_kind

HOPPER, CHEETAH = "gym/Hopper-v5", "gym/HalfCheetah-v5"
METHODS = ("ppo", "sb3_ppo", "sac", "sb3_sac", "td3", "sb3_td3")


def rows_of(method: str, env: str, digest: str, seeds: Sequence[int], level: float
            ) -> list[EpisodeRow]:  # fmt: skip
    return [
        EpisodeRow(
            suite="online_parity",
            env=env,
            algorithm=method,
            policy="tanh_gaussian",
            seed=seed,
            env_steps=steps,
            updates=0,
            eval_episode=episode,
            eval_seed=100 + episode,
            return_=level + 10.0 * seed + episode / 3.0 + steps / 1000.0,
            length=5,
            config_hash=digest,
        )
        for seed in seeds
        for steps in (0, 1000)
        for episode in range(2)
    ]


@dataclass(frozen=True)
class Place:
    """Made-up results, the page with their table, and the folder of a suite's finished part."""

    publish: ModuleType
    results: Path
    project: Path
    part: Path

    @property
    def page(self) -> Path:
        """The page with the table."""
        return self.project / "docs" / "online-methods.md"

    @property
    def result(self) -> Path:
        return self.results / "online-parity"

    def add(self) -> None:
        self.publish.add(self.part, self.results, self.project)

    def made_by(self, command: str = "trimtab bench suite=online_parity only=sac*") -> None:
        board = {"command": command, "versions": {"numpy": "3"}}
        (self.part / "leaderboard.json").write_text(json.dumps(board))

    def run_again(self, rows: Sequence[EpisodeRow]) -> None:
        """Write what a suite leaves of these rows: each hash in a run's folder of its own."""
        write_episodes(self.part / "episodes.parquet", rows)
        folders = {}
        for digest in sorted({row.config_hash for row in rows}):
            run = self.part.parent / "runs" / digest
            run.mkdir(parents=True)
            provenance = {"config_hash": digest, "identity": {"document": digest}}
            (run / "provenance.json").write_text(json.dumps(provenance))
            folders[f"{digest}/0"] = str(run)
        (self.part / "suite.json").write_text(json.dumps({"digest": "x", "folders": folders}))

    def files(self) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in [*self.result.iterdir(), self.page]}

    def documents(self) -> Any:
        return json.loads((self.result / "configurations.json").read_text())


@pytest.fixture
def place(root: Path, tmp_path: Path) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "scripts")
        found = Place(
            publish=importlib.import_module("publish"),
            results=tmp_path / "results",
            project=tmp_path,
            part=tmp_path / "suites" / "online_parity",
        )
        found.result.mkdir(parents=True)
        found.part.mkdir(parents=True)
        rows = [row for method in METHODS for env in (HOPPER, CHEETAH)
                for row in rows_of(method, env, f"old-{method}", (0, 1), 50.0)]  # fmt: skip
        write_episodes(found.result / "episodes.parquet", in_order(episodes_table(rows)))
        documents = {f"old-{method}": {"document": method} for method in METHODS}
        (found.result / "configurations.json").write_text(json.dumps(documents))
        board = {"command": "trimtab bench suite=online_parity", "versions": {"numpy": "2"},
                 "title": "Online parity"}  # fmt: skip
        (found.result / "leaderboard.json").write_text(json.dumps(board))
        found.page.parent.mkdir()
        found.page.write_text(
            "before\n<!-- online-parity table: written by scripts/publish.py -->\nold\n"
            "<!-- end of table -->\nafter\n"
        )
        yield found


def of_sac() -> list[EpisodeRow]:
    """Return rows of two seeds of SAC: one that is committed, and a further one."""
    return rows_of("sac", HOPPER, "old-sac", (1, 2), 900.0)


def test_tables_are_written_anew_and_recomputed_to_the_same(place: Place) -> None:
    place.run_again(of_sac())
    place.made_by()
    place.add()
    board = json.loads((place.result / "leaderboard.json").read_text())
    assert board["versions"] == {"numpy": "3"}
    assert board["command"] == "trimtab bench suite=online_parity"
    (hopper,) = [table for table in board["tables"] if table["env"] == HOPPER]
    (sac,) = [entry for entry in hopper["entries"] if entry["label"] == "sac"]
    level = 1.0 + 1.0 / 6.0  # steps and episodes
    assert sac["mean"]["value"] == pytest.approx((50.0 + 910.0 + 920.0) / 3 + level)
    written = place.files()
    assert written.keys() >= {"leaderboard.md", "leaderboard.csv", "figure.png"}
    before, table, after = place.page.read_text().partition("| `gym/Hopper-v5` | sac | 628 [")
    assert table and before.startswith("before\n") and after.endswith("\nafter\n")
    place.publish.recompute(place.results, place.project)
    assert place.files() == written


def test_tables_of_results_without_a_leaderboard_are_recomputed_too(
    place: Place, root: Path
) -> None:
    alone = {"speed", "speed-amd", "gpu"}
    tables = [table for table in place.publish.TABLES if alone & {*table.folders}]
    assert {folder for table in tables for folder in table.folders} == alone
    for table in tables:
        for folder in table.folders:
            (place.results / folder).mkdir(exist_ok=True)
            committed = root / "benchmarks" / "results" / folder / table.file
            shutil.copy(committed, place.results / folder / table.file)
        page = place.project / table.page
        page.parent.mkdir(parents=True, exist_ok=True)
        before, start, rest = (root / table.page).read_text().partition(table.start)
        page.write_text(f"{before}{start}\nold\n<!-- end of table -->{rest.split('-->', 1)[1]}")
    place.publish.recompute(place.results, place.project)
    for table in tables:
        assert (place.project / table.page).read_text() == (root / table.page).read_text()


def test_further_runs_are_added_and_a_run_that_was_made_again_has_its_new_rows(
    place: Place,
) -> None:
    before = read_episodes(place.result / "episodes.parquet")
    rows = [
        *rows_of("sac", HOPPER, "old-sac", (1, 2), 7.0),
        *rows_of("td3", HOPPER, "x", (0,), 3.0),
    ]
    place.run_again(rows)
    place.made_by()
    for _ in range(2):  # the second time changes nothing
        place.add()
        after = read_episodes(place.result / "episodes.parquet")
        assert after.equals(collect_episodes(place.result / "episodes.parquet"))
        seed_1 = pc.and_(pc.equal(before["config_hash"], "old-sac"), pc.equal(before["seed"], 1))
        assert after.num_rows == before.filter(pc.invert(seed_1)).num_rows + len(rows)
        sac = after.filter(pc.equal(after["config_hash"], "old-sac")).to_pylist()
        assert {row["return"] < 60 for row in sac if row["seed"] == 1} == {True}
        assert {row["seed"] for row in sac} == {0, 1, 2}
        assert {"x", "old-sac", "old-ppo"} <= place.documents().keys()
    machine = json.loads((place.result / "machine.json").read_text())
    assert machine == {"processor": processor_kind()}
    (place.result / "machine.json").write_text(json.dumps({"processor": "another"}))
    place.add()
    machine = json.loads((place.result / "machine.json").read_text())
    assert machine == {"processor": "another", "others": [processor_kind()]}


def test_a_run_whose_settings_changed_leaves_no_rows_of_the_old_ones(place: Place) -> None:
    rows = episodes_table(
        [*rows_of("dppo", HOPPER, "old", (0, 1), 1.0), *rows_of("dppo", HOPPER, "new", (0,), 2.0)]
    )
    kept = place.publish.recorded_rows(
        rows, [{"config_hash": "new", "seed": 0}, {"config_hash": "old", "seed": 1}]
    )
    found = zip(kept["config_hash"].to_pylist(), kept["seed"].to_pylist(), strict=True)
    assert {*found} == {("new", 0), ("old", 1)} and kept.num_rows == rows.num_rows * 2 // 3


def test_a_part_that_does_not_belong_there_is_refused_and_nothing_is_written(place: Place) -> None:
    before = place.files()

    def refused(what: str) -> None:
        with pytest.raises(TrimtabError, match=what):
            place.add()
        assert place.files() == before

    refused("is no folder of a suite")
    place.run_again([replace(row, suite="mine") for row in of_sac()])
    refused(r"leaderboard\.json")
    (place.part / "leaderboard.json").write_text("[]")
    refused(r"leaderboard\.json has no command; run the suite again")
    place.made_by("trimtab bench suite=mine")
    refused("its rows are of mine, not of a suite")
    shutil.rmtree(place.part.parent / "runs")
    place.run_again(rows_of("sac", HOPPER, "unknown", (0,), 1.0))
    place.made_by("trimtab bench suite=online_parity scale=ci")
    refused("scale=ci; run it without scale=")
    place.made_by()
    (place.part.parent / "runs" / "unknown" / "provenance.json").unlink()
    refused("what unknown was computed from")


def test_a_suite_takes_the_place_of_its_committed_runs(place: Place) -> None:
    place.run_again(rows_of("sac", HOPPER, "new", (0,), 1.0))
    place.made_by("trimtab bench suite=online_parity")
    (place.result / "machine.json").write_text(json.dumps({"processor": "another"}))
    place.publish.publish(place.part, place.results, place.project)
    rows = read_episodes(place.result / "episodes.parquet")
    assert {*rows["config_hash"].to_pylist()} == {"new"} == {*place.documents()}
    machine = json.loads((place.result / "machine.json").read_text())
    assert machine == {"processor": processor_kind()}


def test_a_part_of_a_suite_does_not_take_the_place_of_its_committed_runs(place: Place) -> None:
    place.run_again(of_sac())
    place.made_by("trimtab bench suite=online_parity only='sac*'")
    before = place.files()
    with pytest.raises(TrimtabError, match="a part of the suite; add "):
        place.publish.publish(place.part, place.results, place.project)
    assert place.files() == before


def test_what_cannot_be_published_is_one_line_and_changes_nothing(
    place: Place, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    publish = place.publish
    (tmp_path / "project").mkdir()
    for name in ("speed", "quickstart", "families"):
        shutil.copytree(root / "benchmarks" / "results" / name, tmp_path / name)
        (tmp_path / name / "suite.json").write_text(json.dumps({"folders": {"a run": "no run"}}))
    (tmp_path / "speed" / "machine.json").unlink()
    (tmp_path / "quickstart" / "figure.png").unlink()
    for words, told in (
        ([], "name one folder"),
        (["one", "two"], "name one folder"),
        ([str(tmp_path / "nowhere")], "is no folder of a suite"),
        ([str(tmp_path / "project")], "is no folder of a suite"),
        ([str(tmp_path / "speed")], "machine.json is missing"),
        ([str(tmp_path / "quickstart")], "figure.png is missing"),
        ([str(tmp_path / "families")], "no run's provenance.json says what"),
    ):
        assert publish.main(words, tmp_path / "project", tmp_path) == 2
        shown = capfd.readouterr()
        assert told in shown.err and len(shown.err.splitlines()) == 1 and not shown.out
        assert not list((tmp_path / "project").iterdir())
    assert publish.main(["--help"]) == 0
    assert "python scripts/publish.py" in capfd.readouterr().out


@pytest.mark.parametrize("word", ["plan", "out=elsewhere"])
def test_the_runs_of_looks_are_made_and_nothing_older_is_added(
    place: Place, word: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = place.files()
    claim = Claim("SAC", "", "ours", "higher", "sac", "ppo", suite="from_nothing")
    look = NextLook(claim, 3, (("push-sac", 2),), 0.1)
    monkeypatch.setattr(place.publish, "next_looks", lambda results: [look])
    monkeypatch.chdir(place.project)
    assert place.publish.main(["looks", "run", word], place.results, place.project) == 2
    refused, told = capfd.readouterr().err.splitlines()
    assert word.partition("=")[0] in refused and "the suite did not end" in told
    assert place.files() == before
