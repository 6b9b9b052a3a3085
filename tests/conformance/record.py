"""Compare fastq with the systems that are installed, and write docs/conventions.json: what was compared with what.

Conventions to compare are arguments; all by default.
"""

import json
import sys
from pathlib import Path

from check import compare
from systems import SYSTEMS

RECORD = Path(__file__).parents[2] / "docs" / "conventions.json"
_SEPARATOR = {"system": "; ", "version": "; ", "undefined": " "}


def main():
    """Run the comparisons; conventions that are not compared keep what was recorded before."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    fresh = {}
    chosen = sys.argv[1:] or [system.convention for system in SYSTEMS]
    for system in (system for system in SYSTEMS if system.convention in chosen):
        if missing := system.missing():
            print(f"{system.convention}: {', '.join(missing)} is not installed")
            continue
        report = compare(system)
        print(
            f"{system.convention} ({system.quantize.__name__}): {report.values} values", *report.differences, sep="\n "
        )
        if report.differences:
            sys.exit(f"{system.convention} differs from its system")
        entry = fresh.setdefault(system.convention, {"system": [], "version": [], "values": 0, "undefined": []})
        entry["system"] += [" and ".join(system.distributions)]
        entry["version"] += [system.version()]
        entry["values"] += report.values
        entry["undefined"] += [system.undefined]
    for name, entry in fresh.items():
        joined = {key: _SEPARATOR[key].join(dict.fromkeys(filter(None, entry[key]))) for key in _SEPARATOR}
        record[name] = joined | {"values": entry["values"]}
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
