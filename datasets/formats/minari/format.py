"""Datasets in the layout of the Minari package: ``<folder>/data/{metadata.json, main_data.hdf5}``.

Written and read with h5py alone; the ``minari`` package reads what is written here (with
``folder = $MINARI_DATASETS_PATH/<dataset id>``), and its datasets of Box actions are read here.
What Minari has no key for is kept under extra keys of ``metadata.json`` that begin with
``trimtab_``.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.minari.metadata import DATA_FILE, METADATA_FILE
from trimtab.datasets.formats.minari.reader import load, open_folder
from trimtab.datasets.formats.minari.writer import save

__all__ = ["FORMAT"]


def _recognises(path: Path) -> bool:
    return any((path / "data" / name).is_file() for name in (METADATA_FILE, DATA_FILE))


FORMAT = Format(
    name="minari",
    description="Minari's folder of HDF5 and JSON; what Trimtab makes and trains on",
    suffixes=("",),
    load=load,
    open=open_folder,
    recognises=_recognises,
    save=save,
    hints=frozenset({"env", "id", "mask", "keys"}),
)
