"""Which tests reach a file of the package: `python -m tests.reach fastq/kernels/body/min_max.py`.

Tests are run once under a trace, as for mutants: a test reaches a file where it runs lines of it, or launches a kernel
that is compiled of lines of it. What was recorded is kept, also when the package changes; `--record` records again. Of
what computes, the tests are recorded that judge mutants, some minutes the first time; of other rooms those in the room
of tests of the same name. Tests in processes of their own are not seen.
"""

import argparse
import pickle
import sys
from collections import Counter
from pathlib import Path

import tests.campaigns  # noqa: F401  (says where modules of tests are)

# isort: split
from mutating import judge, probes, reach

FOLDER = reach.FOLDER / "tests"


def files_of_tests(file):
    """Files of tests that may reach a file of the package."""
    room, *_ = file.split("/")
    own = sorted((probes.TESTS / room.removesuffix(".py")).rglob("test_*.py"))
    own += sorted(probes.TESTS.glob(f"test_{room.removesuffix('.py')}.py"))
    judges = map(probes.file_of_tests, probes.FILES) if file.startswith(reach.ROOMS) else ()
    return list(dict.fromkeys([*own, *judges]))


def recorded(path, rooms, again):
    """What the tests of a file reach of some rooms; recorded if that was not done before."""
    kept, prefixes = FOLDER / rooms[0] / f"{path.stem}.pickle", tuple(str(reach.ROOT / room) for room in rooms)

    def write():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(reach.record_tests(path, prefixes=prefixes)))

    if again or not kept.exists():
        print(f"recording {path.relative_to(probes.TESTS.parent)}", file=sys.stderr)
        reach.in_child(write)
    return pickle.loads(kept.read_bytes())


def lines_reached(parts, file):
    """By name of a test, without its parameters: how many lines of a file its cases reach, one with another."""
    found, of_kernels = {}, {}
    for part in parts:
        for name, kernel in part.traced.items():
            of_kernels[name] = set(kernel["lines"].get(file, ()))
    for part in parts:
        for probe, _, kernels, lines in part.probes:
            met = found.setdefault(probe.name.partition("[")[0], set())
            met.update(lines.get(file, ()), *(of_kernels.get(name, ()) for name in kernels))
    return Counter({name: len(met) for name, met in found.items() if met})


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.reach", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="a file of fastq/")
    parser.add_argument("--record", action="store_true", help="run the tests again")
    given = parser.parse_args(arguments)
    path = given.file.resolve()
    if not (path.is_file() and path.is_relative_to(reach.ROOT)):
        parser.error(f"{given.file} is not a file of {reach.ROOT}")
    file = reach.file_of(path)
    rooms = reach.ROOMS if file.startswith(reach.ROOMS) else (file.split("/")[0],)
    judge.prepare()
    parts = [recorded(each, rooms, given.record) for each in files_of_tests(file)]
    for name, lines in lines_reached(parts, file).most_common():
        print(f"{lines:5} lines  {name}")


if __name__ == "__main__":
    main()
