"""Conventions on the command line: those whose parameters files can hold, and why others are not among them."""

import numpy as np
from commands import refused

import fastq
from fastq.tools.cli.commands.quantize import STORABLE


def test_conventions_that_files_can_not_have_are_told_why(here):
    np.save("in.npy", np.ones((4, 8), np.float32))
    others = {name: row for name, row in fastq.CONVENTIONS.items() if name not in STORABLE}
    assert {"faiss", "sentence-transformers"} <= others.keys()
    for name, row in others.items():
        said = refused("quantize", "in.npy", "out.safetensors", "--convention", name)
        assert f"'{name}' is for fastq.quantize in Python: its " in said
        assert ("zero points are no codes" in said) == (row.zero_point != "integer")
        assert ("scales may be negative" in said) == (row.symmetric_extreme == "signed")
    assert "'nonsense' is not one of" in refused("quantize", "in.npy", "out.npz", "--convention", "nonsense")
