"""What users bring is used as if it lay here, and what is wrong with it is said in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab import plugins
from trimtab.benchmarks.cli.main import run as command
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.discovery import modules_outside
from trimtab.errors import TrimtabError

SEVERAL = """
import json, sys
from trimtab.benchmarks.cli.main import run
for words in json.loads(sys.argv[1]):
    assert run(words) == 0, words
"""
TINY = ["policy=gaussian", "policy.hidden=[8]", "dataset=cart_pushed", "dataset.episodes=4"]
TINY += ["env=my_lab/Cart-v0", "offline_steps=20", "eval_episodes=2", "algorithm.batch_size=16"]


def carried_out(where: Path, path: Path | str, *commands: list[str]) -> str:
    """Carry out commands in a process of their own; return what they printed."""
    paths = os.pathsep.join([str(path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop(plugins.VARIABLE, None)
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(commands)],
        cwd=where, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without plug-ins and adopted files, before and after."""
    path = list(sys.path)
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    sys.path[:] = path
    plugins._plugins.cache_clear()
    groups.adopted.clear()


def test_the_example_is_installed_and_its_suite_runs(root: Path, tmp_path: Path) -> None:
    target, source = tmp_path / "site", tmp_path / "my-lab"
    subprocess.run(["cp", "-r", root / "docs" / "examples" / "my-lab", source], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True)
    told = carried_out(
        tmp_path, target,
        ["list", "algorithm", "format=json"],
        ["check", "env=my_lab/Cart-v0"],
        ["bench", "suite=carts", "workers=1", "only=smoothed", "seeds=0"],
    )  # fmt: skip
    methods = {row["algorithm"]: row for row in json.loads(told[: told.index("\n]") + 2])}
    assert methods["smoothed_bc"]["family"] == "own" and methods["smoothed_bc"]["paper"] == "–"
    assert methods["bc"]["family"] == "offline"
    suite = tmp_path / "runs" / "suites" / "carts-part"
    board = json.loads((suite / "leaderboard.json").read_text())
    assert board["versions"]["my_lab"] == "0.3.0"
    rows = read_episodes(suite / "episodes.parquet").to_pylist()
    assert {row["algorithm"] for row in rows} == {"smoothed_bc"}
    scores = [row["success"] for row in rows]
    assert len(scores) == 20 and sum(scores) / 20 > 0.8  # it has really learned to push
    provenance = next((tmp_path / "runs" / "my_lab" / "Cart-v0" / "smoothed_bc").rglob("prov*"))
    document = json.loads(provenance.read_text())
    assert document["packages"]["my_lab"] == "0.3.0"


def test_a_folder_brings_a_kind_of_policy_and_files_of_settings(root: Path, tmp_path: Path) -> None:
    lab = tmp_path / "my_lab"
    subprocess.run(["cp", "-r", root / "docs/examples/my-lab/my_lab", lab], check=True)
    kinds, conf = lab / "policies" / "kinds", lab / "conf" / "policy"
    kinds.mkdir(parents=True)
    conf.mkdir()
    (kinds / "calm.py").write_text(
        "from trimtab.policies.kinds.gaussian import GaussianPolicy\n\n\n"
        "class CalmPolicy(GaussianPolicy):\n    kind = 'calm'\n"
    )
    (conf / "calm.yaml").write_text(
        "_target_: my_lab.policies.kinds.calm.CalmPolicy\nhidden: [8]\n"
    )
    (tmp_path / "own.yaml").write_text(
        "# @package _global_\noffline_steps: 30\n"
        "algorithm:\n  _target_: beside.Own\n  decay_updates: ${offline_steps}\n"
    )
    (tmp_path / "beside.py").write_text(
        "from trimtab.algorithms.offline.bc import BehaviorCloning\n\n\n"
        "class Own(BehaviorCloning):\n    faithful = False\n"
    )
    words = [word for word in TINY if not word.startswith(("policy", "offline_steps"))]
    carried_out(
        tmp_path, "",
        ["--with", "my_lab", "train", *words, "policy=calm", "algorithm=./own.yaml"],
    )  # fmt: skip
    (run,) = (tmp_path / "runs" / "my_lab" / "Cart-v0" / "own").glob("*/seed0")
    assert json.loads((run / "policy" / "config.json").read_text())["policy"]["kind"] == "calm"
    told = carried_out(
        tmp_path, "", ["evaluate", f"policy={run}", "episodes=2", "format=json", "--with=my_lab"]
    )
    assert len(json.loads(told)["episodes"]) == 2
    assert json.loads((run / "provenance.json").read_text())["packages"]["my_lab"].startswith(
        "files "
    )


def test_a_file_with_its_group_inside_is_one_of_the_run_s_settings_whatever_its_head(
    fresh: None, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    section = "algorithm:\n  _target_: trimtab.algorithms.off_policy.sac.SAC\n  tau: 0.1\n"
    for head in ("", "# @package _global_\n# Mine, for tests.\n"):
        file.write_text(head + section)
        assert compose_run(["env=gym/Hopper-v5", f"algorithm={file}"])["algorithm"]["tau"] == 0.1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "there is no such folder"),
        ("my-lab", "cannot be imported; name the folder with letters"),
        ("json", "another module is called json already"),
        ("empty_of_this_test", "has no .py and no .yaml file in it; name the folder of a package"),
    ],
)
def test_a_wrong_folder_is_one_line(fresh: None, name: str, said: str, tmp_path: Path) -> None:
    if name != "missing":
        (tmp_path / name).mkdir()
    with pytest.raises(TrimtabError, match=said):
        command(["--with", str(tmp_path / name), "list", "policy"])
    assert os.environ[plugins.VARIABLE] == ""


def test_two_folders_of_one_name_are_refused(fresh: None, tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "twice_of_this_test").mkdir(parents=True)
        (tmp_path / place / "twice_of_this_test" / "__init__.py").touch()
    plugins.add_plugin(tmp_path / "a" / "twice_of_this_test")
    plugins.add_plugin(tmp_path / "a" / "twice_of_this_test")  # the same once more
    assert len(plugins.plugins()) == 1
    with pytest.raises(TrimtabError, match="already; give the folder another name|the same name"):
        plugins.add_plugin(tmp_path / "b" / "twice_of_this_test")


def test_a_folder_that_is_named_twice_counts_once(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_twice").mkdir()
    (tmp_path / "named_twice" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "./named_twice:named_twice")
    plugins.add_plugin("named_twice")
    assert [plugin.package for plugin in plugins.plugins()] == ["named_twice"]
    (tmp_path / "a_file").write_text("")
    with pytest.raises(TrimtabError, match="a_file: is no folder; name that of a package"):
        plugins.add_plugin("a_file")


def test_with_needs_a_folder(fresh: None) -> None:
    for words in (["list", "policy", "--with"], ["--with=", "list", "policy"]):
        with pytest.raises(TrimtabError, match="--with: name the folder"):
            command(words)


def test_a_fault_of_a_module_names_the_plug_in(
    fresh: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = tmp_path / "faulty_of_this_test" / "envs" / "families"
    room.mkdir(parents=True)
    (room / "a_first.py").write_text("print('of this test')\n")
    (room / "broken.py").write_text("import nothing_of_this_name\n")
    plugins.add_plugin(tmp_path / "faulty_of_this_test")
    with pytest.raises(TrimtabError, match="families.broken cannot be imported .ModuleNotFound"):
        list(modules_outside("envs", "families"))
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "of this test\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff\xfe\x00", r"is no YAML \('utf-16-le' codec"),
        (b"# @package _global_\nalgorithm:\n  a: 1\n  a: 2\n", r"is no YAML \(line 4: found dup"),
        (b"algorithm:\n\t_target_: a.B\n", "is no YAML .line 2: found character"),
    ],
)
def test_a_wrong_file_of_a_plug_in_is_named(
    fresh: None, text: bytes, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "wrong_of_this_test" / "conf" / "algorithm" / "mine_of_this_test.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    plugins.add_plugin(tmp_path / "wrong_of_this_test")
    with pytest.raises(TrimtabError, match=f"^{file}: {said}") as told:
        compose_run(["env=gym/Hopper-v5", "algorithm=mine_of_this_test"])
    assert "\n" not in str(told.value)


def test_names_of_settings_are_taken_once(fresh: None, tmp_path: Path) -> None:
    for name in ("one_of_this_test", "two_of_this_test"):
        conf = tmp_path / name / "conf" / "policy"
        conf.mkdir(parents=True)
        (conf / "own_of_this_test.yaml").write_text("_target_: x.Y\n")
        (conf / "flow.yaml").write_text("_target_: x.Y\n")
        plugins.add_plugin(tmp_path / name)
    words = ["env=gym/Hopper-v5", "algorithm=bc", "dataset=hopper_medium"]
    with pytest.raises(TrimtabError, match="have the same name; rename one"):
        compose_run([*words, "policy=own_of_this_test", "policy.hidden=[8]"])
    (tmp_path / "two_of_this_test" / "conf" / "policy" / "flow.yaml").unlink()
    with pytest.raises(TrimtabError, match="Trimtab has a file of this name itself; rename yours"):
        compose_run([*words, "policy=flow", "policy.hidden=[8]"])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.yaml", None, "cannot be read"),
        ("broken.yaml", "a: [", "is no YAML"),
        ("list.yaml", "- 1", "must be a mapping"),
        ("circle.yaml", "a: &a {b: *a}", "refers to itself"),
        ("sac.yaml", "a: 1", "the name sac is taken already; rename the file"),
        ("empty.yaml", "{}", "algorithm"),
    ],
)
def test_a_wrong_file_is_one_line(
    fresh: None, name: str, text: str | None, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TrimtabError, match=said) as told:
        compose_run(["env=gym/Hopper-v5", f"algorithm={tmp_path / name}"])
    assert "\n" not in str(told.value)
