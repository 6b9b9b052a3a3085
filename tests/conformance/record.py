"""Compare fastq with the systems that are installed, and write docs/conventions.json: the comparisons.

Conventions to compare are arguments, such as onnx or "requantize tflite"; all by default.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import check
import requantizing
from oracle import Installed
from systems import SYSTEMS

RECORD = Path(__file__).parents[2] / "docs" / "conventions.json"
_SEPARATOR = {"system": "; ", "version": "; ", "undefined": " "}


class Comparison(NamedTuple):
    """A system, the convention that chooses it, and how it is compared.

    Attributes
    ----------
    compare, differs : callable
        From the system to a Report; from it and another convention to whether that is seen to differ.
    telling : float
        Which part of the values have to say much.
    """

    key: str
    system: Installed
    name: str
    compare: Callable
    differs: Callable
    telling: float

    def __str__(self):
        return f"{self.key}-{self.name}"


COMPARISONS = (
    *(Comparison(row.convention, row, row.quantize.__name__, check.compare, check.differs, 1 / 2) for row in SYSTEMS),
    *(
        Comparison(
            f"requantize {row.convention}", row, row.batch.__name__, requantizing.compare, requantizing.differs, 1 / 4
        )
        for row in requantizing.SYSTEMS
    ),
)


def main():
    """Run the comparisons; conventions that are not compared keep what was recorded before."""
    keys = sorted({comparison.key for comparison in COMPARISONS})
    if unknown := [key for key in sys.argv[1:] if key not in keys]:
        sys.exit(f"no system in tests/conformance/ for {', '.join(unknown)}, only for {', '.join(keys)}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    fresh = {}
    for key, system, name, compare, *_ in COMPARISONS:
        if sys.argv[1:] and key not in sys.argv[1:]:
            continue
        if missing := system.missing():
            print(f"{key}: {', '.join(missing)} is not here")
            continue
        report = compare(system)
        print(f"{key} ({name}): {report.values} values", *report.differences, sep="\n ")
        if report.differences:
            sys.exit(f"{key} differs from its system")
        entry = fresh.setdefault(key, {"system": [], "version": [], "values": 0, "undefined": []})
        entry["system"] += [" and ".join([*system.programs, *system.distributions])]
        entry["version"] += [system.version()]
        entry["values"] += report.values
        entry["undefined"] += [system.undefined]
    for name, entry in fresh.items():
        joined = {key: _SEPARATOR[key].join(dict.fromkeys(filter(None, entry[key]))) for key in _SEPARATOR}
        record[name] = joined | {"values": entry["values"]}
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
