"""What a command is started with: closed streams, a folder that is gone, missing packages."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.benchmarks.cli import main as command_line
from trimtab.benchmarks.cli.main import main, run
from trimtab.benchmarks.cli.surroundings import LOG, log_level
from trimtab.benchmarks.cli.words import wants_only_text
from trimtab.benchmarks.core.signals import interrupts_cancel, interrupts_noted

TRIMTAB = f"exec {sys.executable} -m trimtab.benchmarks.cli.main"
ENDS = """
import sys
from trimtab.benchmarks.cli import main as command_line
from trimtab.errors import TrimtabError
def run(words):
    if words[0] == "interrupted":
        raise KeyboardInterrupt
    if words[0] == "2":
        raise TrimtabError("wrong")
    if words[0] != "0":
        sys.exit(*words[1:])
    return 0
print_error = command_line.print_error
def impatient(line):
    print_error(line)
    if "interrupted" in line:
        raise KeyboardInterrupt  # the second one
command_line.print_error = impatient
command_line.run = run
command_line.console()
"""
"""A command that ends as its words say."""
WITHOUT = (
    "import sys; sys.modules[sys.argv[1]] = None; from trimtab.benchmarks.cli.main import main; "
    "main(['doctor'])"
)


def refused(command: list[str], folder: Path) -> str:
    """Return the one line with which a process of its own ends."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("word", ["debug", "info", "Info", "", " ", "WARNING", "error"])
def test_levels_are_taken_in_any_case(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG, word)
    assert logging.getLevelName(log_level()) in range(10, 60)


def test_another_word_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LOG, "loud")
    with pytest.raises(SystemExit) as ended:
        main(["list", "policy"])
    assert ended.value.code == 2
    line = "trimtab: TRIMTAB_LOG=loud: there are: DEBUG, INFO, WARNING, ERROR, CRITICAL; or leave"
    assert capfd.readouterr().err.startswith(line)


def test_the_working_folder_and_results_may_have_any_bytes_in_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6sse"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    words = ["env=gymnasium:Pendulum-v1", "algorithm=sac", "algorithm.hidden=[8]"]
    words += ["algorithm.warmup_steps=20", "online_steps=40", "eval_episodes=1"]
    assert run(["train", *words]) == 0
    assert run(["leaderboard", f"runs={folder}/runs", "out=board"]) == 0
    assert b"gr\\udcf6sse" in (folder / "board" / "leaderboard.md").read_bytes()


def test_a_terminal_without_letters_for_all_is_written_to(tmp_path: Path) -> None:
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = (
        "from trimtab.benchmarks.cli.surroundings import check_streams; check_streams()\n"
        "print('0.83 \\u2013 gr\\xf6\\xdfer')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"0.83 \\u2013 gr\\xf6\\xdfer\n")


def test_a_renderer_that_mujoco_does_not_know_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "junk")
    with pytest.raises(SystemExit) as ended:
        main(["list", "suite"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "trimtab: MUJOCO_GL=junk: there are: egl, osmesa, glfw; or leave it out\n"
    )


def test_a_closed_standard_output_is_one_line(tmp_path: Path) -> None:
    line = refused(["sh", "-c", f"{TRIMTAB} --help >&-"], tmp_path)
    assert line == "trimtab: standard output is closed; send it to a file, or to /dev/null"


@pytest.mark.parametrize("words", ["list env", "list env format=json", "--help"])
def test_a_reader_that_goes_away_is_no_error(words: str, tmp_path: Path) -> None:
    """As in ``trimtab list env | head -1``; tables are printed by rich, which exits by itself."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trimtab.benchmarks.cli.main", *words.split()]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_standard_error_gets_no_file_of_a_command(tmp_path: Path) -> None:
    done = subprocess.run(["sh", "-c", f"{TRIMTAB} trian 2>&-"], cwd=tmp_path, timeout=120)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        ("runs format=json", True),
        ("runs --format=json", True),
        ("--with ./lab leaderboard -format=csv", True),
        ("speed format=markdown", True),
        ("runs", False),
        ("runs format=table", False),
        ("runs format=json --help", False),
    ],
)
def test_a_text_that_is_asked_for_stands_alone(words: str, alone: bool) -> None:
    assert wants_only_text(words.split()) is alone


def test_the_doctor_says_what_is_missing(tmp_path: Path) -> None:
    line = refused([sys.executable, "-c", WITHOUT, "gymnasium"], tmp_path)
    assert "gymnasium" in line and "make an environment from its lock" in line


def test_an_interrupt_that_comes_out_as_another_error_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As out of the import of a module in C."""

    def importing(words: object, interrupt: bool = True) -> int:
        try:
            if interrupt:
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass
        raise ImportError("initialization failed")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(command_line, "run", importing)
    with pytest.raises(SystemExit) as ended:
        command_line.main(["list", "env"])
    assert ended.value.code == 130
    told = capfd.readouterr().err
    assert told.startswith("trimtab: interrupted; run the same command to resume (it ended")
    assert "ImportError: initialization failed" in told and told.count("\n") == 1
    monkeypatch.setattr(command_line, "run", lambda words: importing(words, interrupt=False))
    with pytest.raises(SystemExit) as ended:
        command_line.main(["list", "env"])
    assert ended.value.code == 2 and "initialization failed" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_of_an_event_loop_cancels_what_it_runs() -> None:
    """As of a server: within it, nothing is raised where the interrupt comes."""
    found = []

    async def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        found.append("went on")
        try:
            await asyncio.sleep(60)
        finally:
            found.append("cancelled")

    with pytest.raises(KeyboardInterrupt), interrupts_noted(), interrupts_cancel():
        asyncio.run(wait())
    assert found == ["went on", "cancelled"]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["0"], 0, ""),
        (["2"], 2, "trimtab: wrong\n"),
        (["exit"], 2, "trimtab: something called sys.exit() in the middle of the command; "),
        (["interrupted"], 130, "trimtab: interrupted; run the same command to resume\n"),
        (["exit", "no licence"], 2, "trimtab: something called sys.exit('no licence') in the mid"),
    ],
)
def test_however_a_command_ends_its_code_is_told(
    words: list[str], code: int, line: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ENDS, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == code and done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == bool(line)


SOON = """
import os, signal, sys
module = sys.argv[-1]
class Presses:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses())
from trimtab.benchmarks.cli.start import console
sys.argv = ["trimtab", "list", "env"]
console()
"""
"""Ctrl+C while a module, the last word, is about to be imported."""


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("trimtab.benchmarks.cli.main", -signal.SIGINT),
        ("trimtab.benchmarks.cli.words", -signal.SIGINT),
        ("trimtab.benchmarks.cli.commands.listing", 130),  # by then a line says so
    ],
)
def test_ctrl_c_before_a_command_has_begun_shows_no_traceback(module: str, code: int) -> None:
    command = [sys.executable, "-c", SOON, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    assert done.stderr.count("\n") == (code == 130)
