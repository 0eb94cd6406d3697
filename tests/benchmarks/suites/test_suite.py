"""A suite: grid, bases, resuming, and what ``trimtab bench`` writes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from rich.console import Console

from trimtab.benchmarks.cli.main import main, run
from trimtab.benchmarks.suites.launch import chosen_launcher
from trimtab.benchmarks.suites.run_suite import run_suite
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.benchmarks.training.settings.words import quoted
from trimtab.types import TrimtabError

pytestmark = pytest.mark.slow

SUITE = {
    "title": "Tiny",
    "seeds": [0, 1],
    "common": ["eval_episodes=2"],
    "shared": {
        "maze": [
            "env=robotics/PointMaze-TwoRoutes-v0", "dataset=two_routes", "dataset.episodes=4",
            "act_steps=4", "policy.hidden=[16,16]", "policy.sampling_steps=2", "offline_steps=30",
            "algorithm=bc",
        ],
    },
    "runs": {
        "clone": {"seconds": 2, "with": ["maze"], "overrides": ["policy=flow"]},
        "frozen": {
            "seconds": 1,
            "base": "clone",
            "overrides": ["env=robotics/PointMaze-TwoRoutes-Blocked-v0", "algorithm=frozen"],
        },
    },
    "export": "frozen",
    "figure": {
        "seed": 0, "episodes": 3, "eval_seed": 5, "open": "robotics/PointMaze-TwoRoutes-v0",
        "panels": [
            {"title": "a", "run": "frozen", "env": "robotics/PointMaze-TwoRoutes-Blocked-v0"}
        ],
    },
}  # fmt: skip


BENCH = ["bench", "suite=tiny.yaml"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite of one's own in it."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(SUITE))
    return folder


def bench(place: Path, *words: str) -> tuple[int, str, str]:
    """Carry the suite out from here; return the exit code, standard output and standard error."""
    shown, told = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(place),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(told),
        pytest.raises(SystemExit) as ended,
    ):
        main([*BENCH, *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, shown.getvalue(), told.getvalue()


def test_all_runs_may_have_another_device() -> None:
    jobs = load_suite("arena", "runs", device="cuda").jobs
    assert all("device='cuda'" in job.overrides for job in jobs), jobs[0].overrides
    assert not any("cuda" in str(job.overrides) for job in load_suite("arena", "runs").jobs)


def test_bench_writes_everything_and_then_has_nothing_to_do(
    place: Path, in_this_process: str
) -> None:
    with patch.dict(os.environ, {"PATH": ""}, clear=True):  # nothing else is set for its workers
        code, _, told = bench(place, "workers=1")
    assert code == 0, told
    out = place / "runs" / "suites" / "tiny"
    names = {"leaderboard.md", "leaderboard.csv", "leaderboard.json",
             "episodes.parquet", "figure.png", "bundle", "suite.json"}  # fmt: skip
    assert names <= {path.name for path in out.iterdir()}
    assert (out / "bundle" / "policy.onnx").is_file()
    # Every seed of the frozen runs started from the clone of its own seed.
    for seed in (0, 1):
        (clone,) = (place / "runs").glob(f"**/bc/*/seed{seed}/policy/model.safetensors")
        (frozen,) = (place / "runs").glob(f"**/frozen/*/seed{seed}/policy/model.safetensors")
        assert clone.read_bytes() == frozen.read_bytes()
    code, shown, told = bench(place)
    assert code == 0, told
    assert "nothing to do" in shown
    code, shown, told = bench(place, "format=json")
    assert code == 0, told
    assert json.loads(shown)
    code, shown, told = bench(place, "device=cpu")  # where it runs is not what a run is
    assert code == 0 and "nothing to do" in shown, told
    code, shown, told = bench(place, "device=abacus")
    assert code == 2 and "device=abacus" in told and told.count("\n") == 1

    note = out / "suite.json"
    whole = note.read_text()
    note.write_text("")  # an empty file may be anybody's
    code, shown, told = bench(place)
    assert code == 2 and "something is there that this command has not made" in told
    note.write_text(whole)

    # A part of it has tables of its own, and its runs are those that are done.
    words = ["only=[fro*]", "seeds=[1]", in_this_process]
    code, shown, told = bench(place, *words)
    assert code == 0, told
    part = out.with_name("tiny-part")
    note = part / "suite.json"
    whole = note.read_text()
    assert len(json.loads(whole)["folders"]) == 2  # one, and its base
    assert (part / "episodes.parquet").is_file() and not (part / "bundle").exists()
    assert (out / "bundle" / "policy.onnx").is_file()

    # What says that all is done follows from the runs: a damaged one is written again.
    note.write_text(json.dumps({**json.loads(whole), "folders": 3}))
    code, shown, told = bench(place, *words)
    assert (code, note.read_text()) == (0, whole), told

    # A run that is gone is run again, and only that one.
    (lost,) = (place / "runs").glob("**/frozen/*/seed1")
    (kept,) = (place / "runs").glob("**/frozen/*/seed0")
    before = (kept / "result.json").stat().st_mtime_ns
    shutil.rmtree(lost)
    code, _, told = bench(place, in_this_process)
    assert code == 0, told
    assert (lost / "result.json").is_file()
    assert (kept / "result.json").stat().st_mtime_ns == before


def test_another_suites_tables_are_not_replaced(place: Path) -> None:
    out = place / "runs" / "suites" / "of-another"
    out.mkdir(parents=True)
    (out / "leaderboard.json").write_text(
        json.dumps({"title": "Another", "tables": [], "intervals": "student_t"})
    )
    code, _, told = bench(place, f"out={out}")  # as a published folder is, without a note
    assert code == 2
    assert f"out={out}: has the tables of the suite 'Another'; name another folder" in told
    note = {"suite": "conf/tiny.yaml", "digest": "d", "baselines": {}, "folders": {}}
    (out / "suite.json").write_text(json.dumps(note))
    code, _, told = bench(place, f"out={out}")
    assert code == 2
    assert f"out={out}: has the tables of suite=conf/tiny.yaml; name another folder" in told
    assert {path.name for path in out.iterdir()} == {"leaderboard.json", "suite.json"}


def test_two_benches_do_not_share_a_folder(place: Path) -> None:
    import fcntl

    out = place / "runs" / "suites" / "tiny"
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "run.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, told = bench(place)
    assert code == 2
    assert "in use by another process" in told


@pytest.mark.parametrize("name", group_options("suite"))
def test_every_suite_names_settings_that_there_are(name: str) -> None:
    suite = load_suite(name, "runs")
    assert len({(job.name, job.seed) for job in suite.jobs}) == len(suite.jobs)
    seeds, seen = {job.seed for job in suite.jobs}, set()
    methods, composed = set(), set()
    for job in suite.jobs:
        if job.seed != min(seeds):
            continue
        # Of a grid each method once from each base, and one run of each task.
        kinds = {(key, job.place[key]) for key in ("task",) if key in job.place}
        kinds |= {(job.place.get("base"), job.place.get("method"))}
        if not job.place or kinds - seen:
            seen |= kinds
            words = (*job.overrides, *(["base=x"] if job.base else []))
            if words not in composed:  # from another base, many a method has the same words
                composed.add(words)
                methods.add(compose_run(words).algorithm)
    for compared in suite.baselines.items():
        assert set(compared) <= methods


def test_a_run_that_fails_ends_the_suite_with_its_name(tmp_path: Path) -> None:
    suite = load_suite("quickstart", str(tmp_path / "runs"), [0])
    words = ("env=gym/Hopper-v5", "algorithm=dsrl_sac", "base=nowhere", f"out={tmp_path}")
    bad = suite.jobs[0].__class__("bad", 0, words, None, 1.0)
    broken = suite.__class__(**{**vars(suite), "jobs": (bad,)})
    with pytest.raises(TrimtabError, match="bad seed 0: .*nowhere"):
        nowhere = Console(file=io.StringIO())
        launcher = chosen_launcher("local")
        run_suite(broken, tmp_path, workers=1, console=nowhere, launcher=launcher)


def test_paths_with_awkward_letters_survive_as_overrides() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for path in ("a b/c", "it's/seed", "x=1,2/y", "brackets[0]{1}"):
        (parsed,) = OverridesParser.create().parse_overrides([f"base={quoted(path)}"])
        assert parsed.value() == path


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("runs: {a: 3}", "runs.a must be a mapping"),
        ("run: {}", "did you mean runs"),
        ("runs: {a: {with: [nope]}}", "a is with nope"),
        ("scale: {ci: 3}\nruns: {}", "scale.ci must be a list of words"),
        ("grid: {tasks: {}}", "grid must have methods, tasks; it has no methods"),
        ("grid: {methods: {}, tasks: {}}", "its grid has no run"),
        ("runs: {a: [", "is no YAML"),
        ("runs: {}", "it has neither runs nor a grid"),
        ("common: [3]\nruns: {a: {}}", "common has 3, which is no word; quote it"),
        ("runs: {a: {overridez: []}}", "runs.a has no overridez; did you mean over"),
        ("runs: {a: {seconds: x}}", "a.seconds=x: must be a number above 0"),
        ("runs: {a: {base: [1]}}", "runs.a.base=.1.: must be text"),
        ("runs: {a: {base: b}}", "a starts from b, which no run above it is"),
        ("export: b\nruns: {a: {}}", "export=b: there are: a"),
        ("baselines: {a: 3}\nruns: {a: {}}", "baselines.a=3: must be text"),
    ],
)
def test_a_wrong_suite_of_ones_own_is_one_line(rest: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"title: Mine\nseeds: [0]\n{rest}\n")
    with pytest.raises(TrimtabError, match=told):
        load_suite(str(file), "runs")


@pytest.mark.parametrize("seeds", ["[]", "[true]", "[0, 0]", "[-1]", "[4294967296]", "[x]"])
def test_wrong_seeds_of_a_suite_of_ones_own(seeds: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"title: Mine\nseeds: {seeds}\nruns: {{a: {{}}}}\n")
    with pytest.raises(TrimtabError, match="seeds=.*: must be whole numbers, 0 or more, each once"):
        load_suite(str(file), "runs")


def test_a_suite_of_ones_own_is_called_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("title: Mine\nseeds: [0]\nruns: {a: {overrides: [algorithm=sac]}}\n")
    suite = load_suite(str(file), "runs")
    assert (suite.name, suite.source) == ("mine", str(file))
    assert "suite_name=mine" in suite.jobs[0].overrides


@pytest.mark.parametrize("file", ["leaderboard.md", "figure.png", "suite.json", "runs.json"])
def test_a_suite_replaces_nothing_of_a_strangers(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("mine")
    with pytest.raises(TrimtabError, match=f"{file}: something is there that this command has"):
        run(["bench", "suite=quickstart", f"runs={tmp_path / 'runs'}", f"out={tmp_path}"])
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"
