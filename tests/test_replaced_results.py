"""Committed rows of some methods are replaced, on a small made-up folder of results."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from trimtab.benchmarks.board.replacement import recorded_rows
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

    def replace(self, *methods: str) -> None:
        self.publish.replace(self.part, methods, self.results, self.project)

    def made_by(self, command: str) -> None:
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


def ppo_again(digest: str = "new-ppo", envs: Sequence[str] = (HOPPER, CHEETAH),
              seeds: Sequence[int] = (0, 1, 2)) -> list[EpisodeRow]:  # fmt: skip
    return [row for env in envs for row in rows_of("ppo", env, digest, seeds, 900.0)]


def of(table: pa.Table, method: str, *, others: bool = False) -> pa.Table:
    mine = pc.equal(table["algorithm"], method)
    return table.filter(pc.invert(mine) if others else mine)


def test_named_rows_are_replaced_and_all_others_stay(place: Place) -> None:
    before = read_episodes(place.result / "episodes.parquet")
    place.run_again([*ppo_again(), *rows_of("sac", HOPPER, "new-sac", (0,), 1.0)])
    place.replace("ppo")
    after = read_episodes(place.result / "episodes.parquet")
    assert of(after, "ppo", others=True).equals(of(before, "ppo", others=True))
    made = collect_episodes(place.part / "episodes.parquet")
    assert of(after, "ppo").equals(of(made, "ppo"))
    assert after.equals(collect_episodes(place.result / "episodes.parquet"))  # they are in order


def test_documents_are_those_of_the_rows(place: Place) -> None:
    place.run_again([*ppo_again(), *rows_of("sac", HOPPER, "new-sac", (0,), 1.0)])
    place.replace("ppo")
    kept = {f"old-{method}": {"document": method} for method in METHODS if method != "ppo"}
    assert place.documents() == kept | {"new-ppo": {"document": "new-ppo"}}


def test_a_hash_that_another_method_still_has_keeps_its_document(place: Place) -> None:
    rows = [row for env in (HOPPER, CHEETAH) for row in rows_of("ppo", env, "old-sac", (0, 1), 1.0)]
    place.run_again(rows)
    place.replace("ppo")
    assert "old-sac" in place.documents() and "old-ppo" not in place.documents()


def test_tables_are_written_anew(place: Place) -> None:
    place.run_again(ppo_again())
    place.replace("ppo")
    board = json.loads((place.result / "leaderboard.json").read_text())
    assert (board["title"], board["versions"]) == ("Online parity", {"numpy": "2"})
    assert board["command"] == "trimtab bench suite=online_parity"
    (hopper,) = [table for table in board["tables"] if table["env"] == HOPPER]
    (ppo,) = [entry for entry in hopper["entries"] if entry["label"] == "ppo"]
    assert ppo["mean"]["value"] == pytest.approx(900.0 + 10.0 + 1.0 / 6.0 + 1.0)
    names = {"leaderboard.md", "leaderboard.csv", "figure.png"}
    assert names <= {path.name for path in place.result.iterdir()}
    before, table, after = place.page.read_text().partition("| `gym/Hopper-v5` | ppo | 911 [")
    assert table and before.startswith("before\n") and after.endswith("\nafter\n")


def test_what_replace_wrote_recomputes_to_the_same(place: Place) -> None:
    place.run_again(ppo_again())
    place.replace("ppo")
    written = place.files()
    place.publish.recompute(place.results, place.project)
    assert place.files() == written


def test_tables_of_results_without_a_leaderboard_are_recomputed_too(
    place: Place, root: Path
) -> None:
    tables = [table for table in place.publish.TABLES if table.result in {"speed", "gpu"}]
    assert {table.result for table in tables} == {"speed", "gpu"}
    for table in tables:
        rows = place.results / table.result / table.file
        rows.parent.mkdir(exist_ok=True)
        shutil.copy(root / "benchmarks" / "results" / table.result / table.file, rows)
        page = place.project / table.page
        page.parent.mkdir(parents=True, exist_ok=True)
        before, start, rest = (root / table.page).read_text().partition(table.start)
        page.write_text(f"{before}{start}\nold\n<!-- end of table -->{rest.split('-->', 1)[1]}")
    place.publish.recompute(place.results, place.project)
    for table in tables:
        assert (place.project / table.page).read_text() == (root / table.page).read_text()


@pytest.mark.parametrize(
    ("methods", "rows", "message"),
    [
        ((), ppo_again(), "no method is named"),
        (("ppo", "sb3_ppo"), ppo_again(), "no new rows of sb3_ppo, only of ppo"),
        (("ppo",), ppo_again(envs=[HOPPER]), "2 committed runs have no .* in gym/HalfCheetah-v5"),
        (("ppo",), ppo_again(seeds=[0, 2]), "2 committed runs have no new rows.* with seed 1"),
    ],
)
def test_what_would_lose_rows_is_refused_and_nothing_is_written(
    place: Place, methods: Sequence[str], rows: Sequence[EpisodeRow], message: str
) -> None:
    place.run_again(rows)
    before = place.files()
    with pytest.raises(TrimtabError, match=message):
        place.replace(*methods)
    assert place.files() == before


def test_a_hash_without_a_document_is_refused(place: Place) -> None:
    place.run_again(ppo_again())
    (place.part.parent / "runs" / "new-ppo" / "provenance.json").unlink()
    before = place.files()
    with pytest.raises(TrimtabError, match="what new-ppo was computed from"):
        place.replace("ppo")
    assert place.files() == before


def test_further_runs_are_added_and_a_run_that_was_made_again_has_its_new_rows(
    place: Place,
) -> None:
    before = read_episodes(place.result / "episodes.parquet")
    rows = [
        *rows_of("sac", HOPPER, "old-sac", (1, 2), 7.0),
        *rows_of("td3", HOPPER, "x", (0,), 3.0),
    ]
    place.run_again(rows)
    place.made_by("trimtab bench suite=online_parity only=sac*")
    for _ in range(2):  # the second time changes nothing
        place.publish.add(place.part, place.results, place.project)
        after = read_episodes(place.result / "episodes.parquet")
        assert after.equals(collect_episodes(place.result / "episodes.parquet"))
        seed_1 = pc.and_(pc.equal(before["config_hash"], "old-sac"), pc.equal(before["seed"], 1))
        assert after.num_rows == before.filter(pc.invert(seed_1)).num_rows + len(rows)
        sac = after.filter(pc.equal(after["config_hash"], "old-sac")).to_pylist()
        assert {row["return"] < 60 for row in sac if row["seed"] == 1} == {True}
        assert {row["seed"] for row in sac} == {0, 1, 2}
        assert {"x", "old-sac", "old-ppo"} <= place.documents().keys()
    board = json.loads((place.result / "leaderboard.json").read_text())
    assert board["versions"] == {"numpy": "3"}
    machine = json.loads((place.result / "machine.json").read_text())
    assert machine == {"processor": processor_kind()}
    (place.result / "machine.json").write_text(json.dumps({"processor": "another"}))
    place.publish.add(place.part, place.results, place.project)
    machine = json.loads((place.result / "machine.json").read_text())
    assert machine == {"processor": "another", "others": [processor_kind()]}


def test_a_run_whose_settings_changed_leaves_no_rows_of_the_old_ones() -> None:
    rows = episodes_table(
        [*rows_of("dppo", HOPPER, "old", (0, 1), 1.0), *rows_of("dppo", HOPPER, "new", (0,), 2.0)]
    )
    kept = recorded_rows(
        rows, [{"config_hash": "new", "seed": 0}, {"config_hash": "old", "seed": 1}]
    )
    found = zip(kept["config_hash"].to_pylist(), kept["seed"].to_pylist(), strict=True)
    assert {*found} == {("new", 0), ("old", 1)} and kept.num_rows == rows.num_rows * 2 // 3


def test_a_part_of_no_suite_is_not_added(place: Place, tmp_path: Path) -> None:
    before = place.files()
    with pytest.raises(TrimtabError, match="is no folder of a suite"):
        place.publish.add(tmp_path, place.results, place.project)
    place.run_again([replace(row, suite="mine") for row in ppo_again()])
    with pytest.raises(TrimtabError, match=r"leaderboard\.json"):
        place.publish.add(place.part, place.results, place.project)
    place.made_by("trimtab bench suite=mine")
    with pytest.raises(TrimtabError, match="its rows are of mine, not of a suite"):
        place.publish.add(place.part, place.results, place.project)
    assert place.files() == before


def test_a_part_at_another_scale_is_not_added(place: Place) -> None:
    before = place.files()
    place.run_again(ppo_again())
    place.made_by("trimtab bench suite=online_parity scale=ci")
    with pytest.raises(TrimtabError, match="scale=ci; run it without scale="):
        place.publish.add(place.part, place.results, place.project)
    assert place.files() == before


def test_a_refusal_is_one_line_and_exit_code_2(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    assert place.publish.main(["replace", str(place.part), "ppo"]) == 2  # nothing was run there
    (line,) = capfd.readouterr().err.splitlines()
    assert "does not exist" in line
