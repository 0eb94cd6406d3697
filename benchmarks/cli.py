"""The command line: ``trimtab <command> key=value ...``.

This module imports nothing heavy, so that ``trimtab --help`` answers at once; a command's own
module is imported when the command runs. Wrong input ends as one line on standard error and exit
code 2.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trimtab
from trimtab.benchmarks.signals import sigterm_as_exit
from trimtab.errors import TrimtabError

MOST = 2**32 - 1
"""The most that a whole number may be: seeds beyond it are none to NumPy's older generators."""
FILMED = 3
"""Episodes that a film shows unless it is told."""
HEADER = """\
Trimtab: a benchmark suite in which small policies steer, fine-tune and are measured against large
generative ones.

usage: trimtab <command> key=value ...        trimtab <command> --help explains one command
"""


@dataclass(frozen=True)
class Setting:
    """One ``key=value`` word of a command; ``default`` decides its type, ``...`` means required."""

    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """One command: where it is carried out, its settings, and what its help shows.

    ``settings`` is None for commands whose words are Hydra overrides of a run's settings. Words
    that begin with ``within`` are kept as they are, in the argument ``overrides``.
    """

    function: str
    summary: str
    examples: tuple[str, ...]
    settings: Mapping[str, Setting] | None
    within: str = ""


FORMAT = Setting("table", "table, or json alone on standard output", ("table", "json"))

COMMANDS: dict[str, Command] = {
    "train": Command(
        "trimtab.benchmarks.commands:train",
        "one run: train, evaluate, save; started again, it goes on or says that it is done",
        (
            "trimtab train env=robotics/PointMaze-TwoRoutes-v0 algorithm=bc policy=flow "
            "dataset=two_routes act_steps=8",
            "trimtab train env=gym/Hopper-v5 algorithm=sac seed=3 online_steps=50000",
            "trimtab train env=metaworld/push-v3 algorithm=dsrl_sac base=<a run or bundle> "
            "-m seed=0,1,2",
        ),
        None,
    ),
    "bench": Command(
        "trimtab.benchmarks.commands:bench",
        "a suite's whole grid, in parallel over the cores, then its leaderboard",
        ("trimtab bench suite=quickstart", "trimtab bench suite=quickstart workers=1"),
        {
            "suite": Setting(..., "name of the suite, as trimtab list suite shows it"),
            "runs": Setting("runs", "folder of the runs; finished ones are not run again"),
            "out": Setting("", "folder of the leaderboard; default <runs>/suites/<suite>"),
            "workers": Setting(0, "runs side by side; 0 for one a core"),
            "seeds": Setting("", "such as 0,1,2 instead of the suite's own seeds"),
            "format": FORMAT,
        },
    ),
    "evaluate": Command(
        "trimtab.benchmarks.commands:evaluate",
        "judge a policy on fixed seeds, with intervals",
        (
            "trimtab evaluate policy=<a run or bundle> episodes=100 seed=7",
            "trimtab evaluate policy=<bundle> env=metaworld/push-v3 episodes=50 backend=onnx",
            "trimtab evaluate policy=<bundle> video=push.mp4 video_episodes=5",
        ),
        {
            "policy": Setting(..., "folder of a run or a bundle"),
            "env": Setting("", "task; default the one that the policy was trained for"),
            "episodes": Setting(50, "number of evaluation episodes"),
            "seed": Setting(0, "seed of the first episode; episode i has seed + i"),
            "backend": Setting("torch", "what runs the policy", ("torch", "onnx")),
            "deterministic": Setting("", "true or false; default as the policy's kind is judged"),
            "env_options": Setting("", "such as {reward: sparse}; default the policy's own"),
            "video": Setting(
                "",
                "a file.mp4 to show episodes in, where there is none but an earlier film; "
                "true: <policy's folder>-<env>.mp4 here",
            ),
            "video_episodes": Setting(FILMED, "how many of the first episodes the video shows"),
            "format": FORMAT,
        },
    ),
    "leaderboard": Command(
        "trimtab.benchmarks.commands:leaderboard",
        "recompute tables, statistics, figures and an HTML page from raw rows",
        ("trimtab leaderboard runs=runs out=board", "trimtab leaderboard runs=episodes.parquet"),
        {
            "runs": Setting("runs", "a folder of runs, or one episodes.parquet"),
            "out": Setting("", "folder to write to; default: only print"),
            "baseline": Setting("", "method that the others are compared with"),
            "metric": Setting("", "default: success where a task has it", ("success", "return")),
            "intervals": Setting(
                "student_t",
                "made for few seeds; bootstrap: the field's, too narrow with few",
                ("student_t", "bootstrap"),
            ),
            "format": FORMAT,
        },
    ),
    "export": Command(
        "trimtab.benchmarks.commands:export",
        "write a bundle for a robot, with ONNX, and check that it replays",
        (
            "trimtab export run=runs/…/seed0 out=my-bundle",
            "trimtab export run=model.zip env=gym/Hopper-v5 out=my-bundle",
        ),
        {
            "run": Setting(..., "a finished run, a bundle, or a .zip of Stable-Baselines3"),
            "out": Setting(..., "folder of the bundle to write"),
            "env": Setting("", "task of a .zip of Stable-Baselines3, which does not name it"),
        },
    ),
    "dataset": Command(
        "trimtab.benchmarks.dataset_commands:dataset",
        "offline data: list, make, check, info or convert",
        (
            "trimtab dataset make dataset=two_routes dataset.episodes=50",
            "trimtab dataset check path=runs/datasets/…/trimtab/two-routes-v0",
            "trimtab dataset info path=lift.hdf5 figure=lift.png",
            "trimtab dataset convert from=lift.hdf5 to=my/lift-v0 as=minari env=robosuite/Lift "
            "keys=robot0_eef_pos,robot0_eef_quat,robot0_gripper_qpos,object",
        ),
        {
            "action": Setting("list", "what to do", ("list", "make", "check", "info", "convert")),
            "dataset": Setting("", "a recipe or others' dataset, as list shows them"),
            "path": Setting("", "file or folder of a dataset, in any format"),
            "from": Setting("", "convert: file or folder to read; its format is recognised"),
            "to": Setting("", "convert: file or folder to write"),
            "as": Setting("", "convert: format to write, where to= could be several"),
            "env": Setting("", "environment of the data, where its file does not say"),
            "id": Setting("", "id of the data, such as my/lift-v0, where its file does not say"),
            "mask": Setting("", "only the episodes under this mask, such as train"),
            "horizon": Setting(0, "steps of a whole episode, for D4RL files without timeouts"),
            "keys": Setting("", "observation keys after commas, in the order that is wanted"),
            "frames": Setting(
                "", "LeRobot: cameras after commas, or all, whose frames are decoded"
            ),
            "figure": Setting(
                "", "info: a file.png to draw, where there is none but an earlier one"
            ),
            "out": Setting("runs", "datasets are made below <out>/datasets"),
            "format": FORMAT,
        },
        within="dataset.",
    ),
    "list": Command(
        "trimtab.benchmarks.commands:list_things",
        "what there is: env, family, algorithm, policy, dataset or suite",
        (
            "trimtab list algorithm",
            "trimtab list env tag=goal,sparse",
            "trimtab list env format=json",
        ),
        {
            "what": Setting(
                ...,
                "env, algorithm, policy, dataset or suite; family: simulators of tasks",
                ("env", "family", "algorithm", "policy", "dataset", "suite"),
            ),
            "tag": Setting("", "only tasks with all of these, such as goal,sparse or metaworld"),
            "format": FORMAT,
        },
    ),
    "speed": Command(
        "trimtab.benchmarks.commands:speed",
        "measure Trimtab against its peers in turns, and how its costs grow",
        (
            "trimtab speed",
            "trimtab speed only=updates rounds=9",
            "trimtab speed out=speed format=markdown",
        ),
        {
            "only": Setting(
                "", "groups or rows: environments, replay, updates, training, latency, growth, …"
            ),
            "rounds": Setting(5, "turns of each side; a row has their medians"),
            "scale": Setting("1.0", "factor to the amount of work of a turn"),
            "out": Setting("", "folder for the rows, the machine, and the growth with its figure"),
            "format": Setting(
                "table", "table, or json or markdown alone", ("table", "json", "markdown")
            ),
        },
    ),
    "doctor": Command(
        "trimtab.benchmarks.commands:doctor",
        "what is wrong with this machine or installation",
        ("trimtab doctor", "trimtab doctor out=/data/runs"),
        {
            "out": Setting("runs", "folder that runs will be written to"),
            "format": FORMAT,
        },
    ),
}


def main(words: Sequence[str] | None = None) -> None:
    """Carry out the command line and exit with its code."""
    words = list(sys.argv[1:] if words is None else words)
    logging.basicConfig(level=os.environ.get("TRIMTAB_LOG", "WARNING"), format="%(message)s")
    try:
        with sigterm_as_exit():
            code = run(words)
        sys.stdout.flush()
    except TrimtabError as error:
        print_error(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        print_error("interrupted; run the same command again to go on")
        code = 130
    except MemoryError as error:  # such as a buffer or a horizon of billions of steps
        print_error(f"not enough memory: {error or 'close something, or ask for less'}")
        code = 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print_error(f"{place}{error.strerror or error}")
        code = 2
    sys.exit(code)


def print_error(line: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"trimtab: {line}\n")


def run(words: Sequence[str]) -> int:
    """Carry out the command that ``words`` name; return the exit code.

    Raises:
        TrimtabError: on wrong input.
    """
    if not words or words[0] in ("--help", "-h", "help"):
        sys.stdout.write(overview())
        return 0
    if words[0] in ("--version", "version"):
        sys.stdout.write(f"trimtab {trimtab.__version__}\n")
        return 0
    name, rest = words[0], list(words[1:])
    if name not in COMMANDS:
        raise TrimtabError(f"{name}: there is no such command; {near(name, COMMANDS)}")
    command = COMMANDS[name]
    if "--help" in rest or "-h" in rest:
        sys.stdout.write(explain(name, command))
        return 0
    module, _, attribute = command.function.partition(":")
    if command.settings is None:
        function: Callable[..., int] = getattr(importlib.import_module(module), attribute)
        return function(rest)
    kept = [word for word in rest if command.within and word.startswith(command.within)]
    settings = parse(name, command.settings, [word for word in rest if word not in kept])
    if command.within:
        settings["overrides"] = kept
    function = getattr(importlib.import_module(module), attribute)
    return function(**settings)


def near(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a hint that names the nearest right word, or all of them."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"


def parse(command: str, settings: Mapping[str, Setting], words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's settings.

    A word without ``=`` is the value of the command's first setting.

    Raises:
        TrimtabError: on an unknown setting, a missing one or a wrong value.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            key, text = next(iter(settings)), word
        key = key.lstrip("-+")
        if key not in settings:
            raise TrimtabError(f"{command}: no setting {key!r}; {near(key, settings)}")
        if key in values:
            raise TrimtabError(f"{command}: {key} is given twice, the second time as {text!r}")
        setting = settings[key]
        if setting.choices and text not in setting.choices:
            raise TrimtabError(f"{command}: {key}={text}: {near(text, setting.choices)}")
        if isinstance(setting.default, int):
            if not (text.isascii() and text.isdigit()):
                raise TrimtabError(f"{command}: {key}={text}: must be a whole number, 0 or more")
            if len(text.lstrip("0")) > len(str(MOST)) or int(text) > MOST:
                raise TrimtabError(f"{command}: {key}={text}: must be at most {MOST}")
            values[key] = int(text)
        else:
            values[key] = text
    for key, setting in settings.items():
        if key not in values:
            if setting.default is ...:
                raise TrimtabError(f"{command}: {key} is not given: {setting.help}")
            values[key] = setting.default
    return values


def overview() -> str:
    """Return what ``trimtab --help`` prints."""
    lines = [HEADER, "commands:"]
    lines += [f"  {name:<12} {command.summary}" for name, command in COMMANDS.items()]
    lines += [
        "",
        "start here:",
        "  trimtab bench suite=quickstart    demonstrations, training, steering, a leaderboard",
        "  trimtab list env                  the tasks",
        "  trimtab list algorithm            the methods and their papers",
        "  trimtab train --help              every setting of a run",
        "",
        "TRIMTAB_LOG=INFO shows what a command is doing.",
    ]
    return "\n".join(lines) + "\n"


def explain(name: str, command: Command) -> str:
    """Return what ``trimtab <command> --help`` prints."""
    lines = [f"trimtab {name}: {command.summary}", "", "examples:"]
    lines += [f"  {example}" for example in command.examples]
    lines += ["", "settings:"]
    if command.settings is not None:
        for key, setting in command.settings.items():
            default = "required" if setting.default is ... else f"default {setting.default!r}"
            choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
            lines.append(f"  {key:<14} {setting.help}{choices}; {default}")
    else:
        from trimtab.benchmarks.commands import explain_run

        lines += explain_run()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
