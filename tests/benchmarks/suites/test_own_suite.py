"""A suite file of one's own: what would be lost, or would change what is measured, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.suites import document
from trimtab.benchmarks.suites.suite import Suite, load_suite
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.types import TrimtabError

SAC, PPO = ["env=gym/Hopper-v5", "algorithm=sac"], ["env=gym/Hopper-v5", "algorithm=ppo"]
DOCUMENT: dict[str, Any] = {
    "title": "Mine",
    "seeds": [0],
    "runs": {"a": {"overrides": SAC}, "b": {"overrides": PPO}},
}


def suite_of(folder: Path, only: tuple[str, ...] = (), **changes: Any) -> Suite:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT | changes, sort_keys=False))
    return load_suite(str(file), "runs", only=only)


def test_a_key_that_is_there_twice_is_named_with_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "title: Mine\nseeds: [0]\nruns:\n  a: {overrides: [algorithm=sac]}\n"
        "  b: {overrides: [algorithm=sac]}\n  a: {overrides: [algorithm=ppo]}\n"
    )
    with pytest.raises(TrimtabError, match=r"is no YAML \(line 6: found duplicate key a\)"):
        load_suite(str(file), "runs")


def test_a_key_that_is_there_twice_in_a_method_s_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "adopted", {})  # later tests do not find the file
    file = tmp_path / "twice.yaml"
    target = "trimtab.algorithms.off_policy.sac.SAC"
    file.write_text(
        f"# @package _global_\nalgorithm:\n  _target_: {target}\n  tau: 0.1\n  tau: 0.2\n"
    )
    with pytest.raises(TrimtabError, match=rf"algorithm={file}: is no YAML \(line 5: found dup"):
        compose_run(["env=gym/Hopper-v5", f"algorithm={file}"])


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    grid = {"tasks": {"hop": []}, "methods": {"sac": SAC}}
    with pytest.raises(TrimtabError, match="suite mine: two runs are called hop-sac; rename"):
        suite_of(tmp_path, grid=grid, runs={"hop-sac": {"overrides": SAC}})
    sides = {"tasks": {"hop": [], "hop-b": []}, "methods": {"b-sac": SAC, "sac": SAC}}
    with pytest.raises(TrimtabError, match="two runs are called hop-b-sac"):
        suite_of(tmp_path, grid=sides)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"common": ["seed=3"]}, r"the run a has seed=3, .*; write seeds: \[…\] in its place"),
        ({"runs": {"a": {"overrides": [*SAC, "++seed=3"]}}}, r"has \+\+seed=3, .*; write seeds:"),
        ({"shared": {"x": ["out=else"]}, "runs": {"a": {"with": ["x"]}}}, "give bench runs=…"),
        ({"scale": {"all": ["out=else"]}}, "has out=else, which a suite sets .* give bench runs="),
        ({"runs": {"a": {"overrides": [*SAC, "suite_name=b"]}}}, "the suite's name is its file's"),
        ({"runs": {"../../a": {"overrides": SAC}}}, r"the run '../../a' must begin with a letter"),
        ({"runs": {"a,b": {"overrides": SAC}}}, "have only letters, digits, - _ ~ and . in it"),
        ({"runs": {"..": {"overrides": SAC}}}, "the run '..' must begin with a letter"),
        ({"runs": {"a": {"with": ["gone"]}}}, "a is with gone of shared; there are none"),
        ({"baselines": {"sac": "nothing"}}, "there is no method 'nothing'; there are: ppo, sac"),
        ({"baselines": {"sacc": None}}, "baselines: there is no method 'sacc'; did you mean sa"),
    ],
)
def test_what_a_suite_decides_is_not_for_its_runs(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TrimtabError, match=said) as caught:
        suite_of(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_baselines_are_checked_as_far_as_names_are_known(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, baselines={"sac": "ppo (tanh_gaussian)", "ppo": None})
    assert suite.baselines == {"sac": "ppo (tanh_gaussian)", "ppo": None}
    # A method of one's own has its file's name; another file may name any method.
    own = {"a": {"overrides": ["algorithm='./far/mine.yaml'"]}, "b": {"overrides": PPO}}
    assert suite_of(tmp_path, runs=own, baselines={"mine": "ppo"}).baselines
    unknown = {"a": {"overrides": ["experiment=any"]}}
    assert suite_of(tmp_path, runs=unknown, baselines={"sac": "ppo"}).baselines


def test_a_part_is_compared_as_far_as_its_methods_are_there(
    tiny: Any,
    in_this_process: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where a run is left out, the label of another one may say less."""
    monkeypatch.chdir(tmp_path)
    words = [word for word in tiny.task(tmp_path) if not word.startswith(("out=", "seed="))]
    words += [f"dataset={tiny.dataset}", "algorithm=bc", "policy.hidden=[8]", "offline_steps=2"]
    policies = {"a": ["gaussian", 8], "b": ["flow", 8], "c": ["flow", 16]}
    runs = {
        name: {"overrides": [f"policy={policy}", f"algorithm.batch_size={size}"]}
        for name, (policy, size) in policies.items()
    }
    document = DOCUMENT | {"common": words, "runs": runs}

    def gains(**changes: Any) -> dict[str, str | None]:
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document | changes, sort_keys=False))
        only = "a,b" if changes else "*"
        words = ["bench", "suite=./mine.yaml", f"only={only}", "format=json", in_this_process]
        assert trimtab(words) == 0
        (table,) = json.loads(capsys.readouterr().out)["tables"]
        return {entry["label"]: entry["baseline"] for entry in table["entries"]}

    gone = next(label for label in gains() if "batch_size=16" in label)
    part = gains(baselines={"bc (gaussian)": "bc (flow)", "bc (flow)": gone})
    assert part == {"bc (gaussian)": "bc (flow)", "bc (flow)": None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["only="], "bench: only= is empty; leave it out, or give it a value: runs to carry out"),
        (["only= , "], "names no run; leave it out for all runs"),
        (["seeds="], "bench: seeds= is empty; leave it out"),
        (["stauts"], "bench: stauts: did you mean status"),
    ],
)
def test_wrong_words_begin_no_run(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "suite=quickstart", f"runs={tmp_path / 'runs'}", *words])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and said in shown and shown.count("\n") == 1, shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algorithm=frozn", "suite mine: last: algorithm=frozn: did you mean frozen?"),
        ("stop_at_success=1.5", "suite mine: last: stop_at_success=1.5: must be from 0"),
        ("env=robotics/Nope", "suite mine: last: unknown environment 'robotics/Nope'"),
        ("algorithm=dsrl_sac", "suite mine: last: "),
    ],
)
def test_a_wrong_word_of_the_last_run_begins_no_run(
    word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["env=robotics/PointMaze-TwoRoutes-v0", "policy=gaussian", "algorithm=bc"]
    words += ["dataset=two_routes", "offline_steps=1"]
    runs = {"first": {"overrides": words}, "last": {"overrides": [*words, word]}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"title": "Mine", "seeds": [0], "runs": runs}))
    with pytest.raises(SystemExit) as ended:
        main(["bench", f"suite={file}", f"runs={tmp_path / 'runs'}"])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and said in shown and shown.count("\n") == 1, shown
    assert list(tmp_path.iterdir()) == [file]


def test_the_page_of_suites_names_every_key_and_its_example_can_be_run(root: Path) -> None:
    page = (root / "docs" / "suites.md").read_text()
    assert {key for key in document.KEYS - {"figure"} if f"`{key}`" not in page} == set()
    example = str(root / "docs" / "examples" / "clones_grid.yaml")
    whole, short = (load_suite(example, "runs", scale=scale) for scale in ("whole", "short"))
    for job in {job.name: job for suite in (whole, short) for job in suite.jobs}.values():
        compose_run([*job.overrides, *(["base=x"] if job.base else [])])
    assert len(whole.jobs) == 21 and {job.seed for job in short.jobs} == {0, 1}
