"""Write the lock of a Python: what ``trimtab[all,dev,docs,others]`` needs, each at one version.

Run it as ``make lock``. It makes a fresh environment in a temporary folder, installs the project
with all its extras there while holding every package to the version that the present lock names,
asks ``pip check`` whether they agree, and writes what was installed, sorted. So a package new in
pyproject.toml is added, one no longer needed goes, and nothing else moves. ``--upgrade NAME``
gives up the pin of one package. It takes about three minutes and touches no other environment.
Python 3.11 has requirements.lock; ``make lock PYTHON=python3.13`` writes requirements-3.13.lock.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FIRST = ROOT / "requirements.lock"
LOCK = FIRST if PYTHON == "3.11" else ROOT / f"requirements-{PYTHON}.lock"
HEADER = f"""\
# Written by `make lock` (scripts/lock.py): `trimtab[all,dev,docs,others]`
# on Python {PYTHON}, Linux.
# Change pyproject.toml and run `make lock` again rather than editing this file.
"""
# What dm_control and robosuite ask for and no task here imports; the Makefile names them too.
# pynput needs evdev, which has to be compiled; labmaze has no wheel for 3.13; mink holds numpy
# below 2.
UNUSED = {} if PYTHON == "3.11" else {"pynput": "1.8.2", "evdev": "2.0.0"}
if PYTHON not in ("3.11", "3.12"):
    UNUSED |= {"labmaze": "1.0.6", "mink": "0.0.5"}
# What the packages of the extra `others` ask for, of which only files are read.
UNUSED |= {
    "defusedxml": "0.7.1", "importlib_metadata": "8.7.0", "importlib_resources": "6.5.2",
    "loguru": "0.7.3", "netifaces": "0.11.0", "pin": "3.7.0", "sshkeyboard": "2.3.1",
    "tyro": "0.10.0", "zmq": "0.0.0",
}  # fmt: skip
PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[A-Za-z0-9.!]+)(\+[a-z0-9.]+)?")
OURSELVES = {"pip", "trimtab"}
# A build of torch for CUDA pins these itself, and a build for the processor has none of them.
CUDA = re.compile(r"(cuda|nvidia)-.*|triton")


def canonical(name: str) -> str:
    """Return a package name in the one spelling that registries compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Return ``{name: "Name==version"}``, sorted by name, of a frozen list.

    A local version (``+cpu``) says which build was at hand, not which version, and is left out.

    Raises:
        SystemExit: if a line is no plain pin, but a path, an address or a range.
    """
    pins = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = PIN.fullmatch(line)
        if match is None:
            sys.exit(f"lock: {line!r} is not of the form name==version; install it by name")
        pins[canonical(match["name"])] = f"{match['name']}=={match['version']}"
    return dict(sorted(pins.items()))


def main() -> None:
    """Install, check, freeze, write."""
    parser = argparse.ArgumentParser(prog="make lock", description=__doc__)
    parser.add_argument("--upgrade", action="append", default=[], metavar="NAME")
    upgraded = {canonical(name) for name in parser.parse_args().upgrade}
    pins = read_pins((LOCK if LOCK.exists() else FIRST).read_text(encoding="utf-8"))
    if unknown := upgraded - pins.keys():
        sys.exit(f"lock: {', '.join(sorted(unknown))} is not in {LOCK.name}; check the spelling")

    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        held = [pin for name, pin in pins.items() if name not in upgraded]
        constraints.write_text("\n".join(held) + "\n", encoding="utf-8")
        environment = Path(folder, "venv")
        venv.create(environment, with_pip=True)
        for name, version in UNUSED.items():  # pip asks for a note alone, and installs no such one
            note = environment / f"lib/python{PYTHON}/site-packages/{name}-{version}.dist-info"
            note.mkdir()
            said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (note / "METADATA").write_text(said, encoding="utf-8")
        pip = [str(environment / "bin" / "python"), "-m", "pip"]
        project = f"{ROOT}[all,dev,docs,others]"
        subprocess.run([*pip, "install", "-c", str(constraints), "-e", project], check=True)
        subprocess.run([*pip, "check"], check=True)
        frozen = subprocess.check_output([*pip, "freeze", "--all", "--exclude-editable"], text=True)

    new = read_pins(frozen)
    left_out = OURSELVES | {canonical(name) for name in UNUSED}
    for name in [name for name in new if name in left_out or CUDA.fullmatch(name)]:
        del new[name]
    lines = list(new.values())
    beside = LOCK.with_name(f".{LOCK.name}.tmp")
    beside.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    beside.replace(LOCK)
    for name in sorted(new.keys() | pins.keys()):
        if new.get(name) != pins.get(name):
            sys.stderr.write(f"lock: {pins.get(name, 'absent')} -> {new.get(name, 'absent')}\n")
    sys.stderr.write(f"lock: {len(lines)} packages in {LOCK.name}\n")


if __name__ == "__main__":
    main()
