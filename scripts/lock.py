"""Write requirements.lock: every package that ``trimtab[all,dev,docs]`` needs, at one version each.

Run it as ``make lock``. It makes a fresh environment in a temporary folder, installs the project
with all its extras there while holding every package to the version that the present lock names,
asks ``pip check`` whether they agree, and writes what was installed, sorted. So a package new in
pyproject.toml is added, one no longer needed goes, and nothing else moves. ``--upgrade NAME``
gives up the pin of one package. It takes about three minutes and touches no other environment.
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
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Written by `make lock` (scripts/lock.py): `trimtab[all,dev,docs]` on Python {python}, Linux.
# Change pyproject.toml and run `make lock` again rather than editing this file.
"""
PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[A-Za-z0-9.!]+)(\+[a-z0-9.]+)?")
OURSELVES = {"pip", "trimtab"}


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
    pins = read_pins(LOCK.read_text(encoding="utf-8"))
    if unknown := upgraded - pins.keys():
        sys.exit(f"lock: {', '.join(sorted(unknown))} is not in {LOCK.name}; check the spelling")

    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        held = [pin for name, pin in pins.items() if name not in upgraded]
        constraints.write_text("\n".join(held) + "\n", encoding="utf-8")
        environment = Path(folder, "venv")
        venv.create(environment, with_pip=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip"]
        project = f"{ROOT}[all,dev,docs]"
        subprocess.run([*pip, "install", "-c", str(constraints), "-e", project], check=True)
        subprocess.run([*pip, "check"], check=True)
        frozen = subprocess.check_output([*pip, "freeze", "--all", "--exclude-editable"], text=True)

    new = read_pins(frozen)
    lines = [pin for name, pin in new.items() if name not in OURSELVES]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    beside = LOCK.with_name(f".{LOCK.name}.tmp")
    beside.write_text(HEADER.format(python=python) + "\n".join(lines) + "\n", encoding="utf-8")
    beside.replace(LOCK)
    for name in sorted(new.keys() | pins.keys()):
        if name not in OURSELVES and new.get(name) != pins.get(name):
            sys.stderr.write(f"lock: {pins.get(name, 'absent')} -> {new.get(name, 'absent')}\n")
    sys.stderr.write(f"lock: {len(lines)} packages in {LOCK.name}\n")


if __name__ == "__main__":
    main()
