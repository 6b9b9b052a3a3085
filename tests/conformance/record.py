"""Compare fastq with the systems that are installed, and write docs/conventions.json: the comparisons.

Conventions to compare are arguments, such as onnx or "requantize tflite"; all by default.
"""

import json
import sys
from pathlib import Path

import requantizing
from check import compare
from systems import SYSTEMS

RECORD = Path(__file__).parents[2] / "docs" / "conventions.json"
_SEPARATOR = {"system": "; ", "version": "; ", "undefined": " "}


def entries():
    """Return of each comparison its key, the convention that chooses it, the system, what is compared, and how."""
    for system in SYSTEMS:
        yield system.convention, system, system.quantize.__name__, compare
    for system in requantizing.SYSTEMS:
        yield f"requantize {system.convention}", system, system.name, requantizing.compare


def main():
    """Run the comparisons; conventions that are not compared keep what was recorded before."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    fresh = {}
    for key, system, name, compared in entries():
        if sys.argv[1:] and key not in sys.argv[1:]:
            continue
        if missing := system.missing():
            print(f"{key}: {', '.join(missing)} is not here")
            continue
        report = compared(system)
        print(f"{key} ({name}): {report.values} values", *report.differences, sep="\n ")
        if report.differences:
            sys.exit(f"{key} differs from its system")
        entry = fresh.setdefault(key, {"system": [], "version": [], "values": 0, "undefined": []})
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
