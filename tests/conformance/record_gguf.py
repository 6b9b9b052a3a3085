"""Record ggml's blocks for the rows of gguf_data.py: gguf_digests.json, with its version."""

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import ggml
from gguf_data import KINDS, comparable, importance, rows_of

from fastq.formats.gguf import BLOCK_FORMATS, ScaledFormat

STORED = Path(__file__).parents[1] / "kernels" / "ggml" / "gguf_digests.json"
ROWS = 4  # of each kind
# by whether the gguf package writes the format itself, and whether weights change it
CASES = {
    (True, True): (importance(),),
    (True, False): (),
    (False, True): (None, importance()),
    (False, False): (None,),
}


def main():
    """Write the digests of all formats that the library has, without those that test_gguf.py compares."""
    if not ggml.is_built_here():
        sys.exit("llama-cpp-python is not installed")
    digests = {}
    for name, row in BLOCK_FORMATS.items():
        if not ggml.has(name):
            print(f"{name} is not in {ggml.version()}")
            continue
        cases = (importance(),) if row.needs_importance else CASES[type(row) is ScaledFormat, row.weighted]
        for weights in cases:
            digests[name if weights is None else f"{name} weighted"] = {
                kind: hashlib.sha256(ggml.quantize(comparable(rows_of(kind, ROWS), name), name, weights)).hexdigest()[
                    :16
                ]
                for kind in KINDS
            }
    STORED.write_text(json.dumps({"made by": ggml.version(), "rows": ROWS, "digests": digests}, indent=1) + "\n")


if __name__ == "__main__":
    main()
