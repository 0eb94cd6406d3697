"""A Slurm of this machine: sbatch, srun, sacct, scontrol and scancel, as far as they are used.

The fixture ``slurm`` puts them on the PATH. A job is a process of its own that runs the batch file,
once more if it was queued anew meanwhile. What is known of a task lies in files named
``<what>.<job>_<index>``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path


def note(state: Path, task: str, what: str) -> None:
    """Say what a task does; whoever asks meanwhile is told what it did before."""
    beside = state / f"beside.{task}.{os.getpid()}"
    beside.write_text(what)
    beside.replace(state / f"state.{task}")


def sbatch(state: Path, file: str) -> None:
    job = len(list(state.glob("batch.*"))) + 100
    text = Path(file).read_text()
    (state / f"batch.{job}").write_text(text)
    array = re.search(r"^#SBATCH --array=0-(\d+)%", text, re.MULTILINE)
    for index in range(int(array[1]) + 1) if array else [None]:
        task = str(job) if index is None else f"{job}_{index}"
        note(state, task, "PENDING")
        process = subprocess.Popen(
            [sys.executable, __file__, str(state), "task", task], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        (state / f"session.{task}").write_text(str(process.pid))
    sys.stdout.write(f"Submitted batch job {job}\n")


def task(state: Path, name: str) -> None:
    job, _, index = name.partition("_")
    known = {"SLURM_JOB_ID": job, "FAKE_TASK": name}
    if index:
        known |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": index}
    again = state / f"again.{name}"
    while True:
        note(state, name, "RUNNING")
        done = subprocess.run(["bash", str(state / f"batch.{job}")], env={**os.environ, **known})
        if not again.exists():
            break
        again.unlink()
        (state / f"requeued.{name}").touch()
    if (state / f"state.{name}").read_text() == "RUNNING":
        ended = "FAILED" if done.returncode else "COMPLETED"
        note(state, name, ended)


def srun(state: Path, *words: str) -> None:
    rest, log = list(words), {}
    while rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("--output", "--error"):
            log[option] = rest.pop(0)
    name = os.environ["FAKE_TASK"]
    places = {"%j": name.partition("_")[0], "%A": name.partition("_")[0], "%t": "0"}
    places["%a"] = name.partition("_")[2]
    for option, descriptor in (("--output", 1), ("--error", 2)):
        path = log[option]
        for mark, value in places.items():
            path = path.replace(mark, value)
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    (state / f"process.{name}").write_text(str(os.getpid()))
    os.execvp(rest[0], rest)


def sacct(state: Path, *words: str) -> None:
    sys.stdout.write("JobID|State|NodeList\n")
    for file in sorted(state.glob("state.*")):
        sys.stdout.write(f"{file.suffix[1:]}|{file.read_text()}|here\n")


def scontrol(state: Path, what: str, name: str) -> None:
    assert what == "requeue", what
    (state / f"again.{name}").touch()


def scancel(state: Path, name: str) -> None:
    note(state, name, "CANCELLED")
    if (process := state / f"process.{name}").exists():
        os.kill(int(process.read_text()), signal.SIGTERM)


if __name__ == "__main__":
    folder, program, *rest = sys.argv[1:]
    globals()[program](Path(folder), *rest)
