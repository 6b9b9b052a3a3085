"""What docs/conventions.md and `explain` say of a convention is what the reference computes."""

import json
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

import fastq
from fastq import reference
from fastq.formats.describe import zero_point_formula
from fastq.results.elements import code_ends

ROWS = fastq.CONVENTIONS | {
    "float": fastq.Convention("float", zero_point="float", zero_point_inside=True, schemes=("asymmetric",)),
    "floor": fastq.Convention("floor", scale_floor=1e-5, degenerate="floor", degenerate_zero_point="lowest"),
}
INTEGERS = "int8", "uint8", "int4", "uint4"
FUNCTIONS = {
    "rint": np.rint,
    "floor": np.floor,
    "trunc": np.trunc,
    "up": lambda x: np.floor(x + 0.5),
    "F": np.float32,
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
}


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
@pytest.mark.parametrize("name", ROWS)
def test_the_formula_of_a_zero_point_holds_for_constants(name, value):
    row = ROWS[name]
    codes = [code for code in row.formats or INTEGERS if code in INTEGERS]
    for code, scheme in ((code, scheme) for code in codes for scheme in row.schemes):
        symmetric = scheme == "symmetric"
        q = reference.quantize(np.full(4, value, np.float32), code, convention=row, symmetric=symmetric)
        usual, _, other = zero_point_formula(row.under(symmetric, "array", code), scheme).partition(
            "; if the scale was "
        )
        widened = row.includes_zero or symmetric
        lo, hi = (min(value, 0.0), max(value, 0.0)) if widened else (value, value)
        formula = other.partition(": ")[2] if lo == hi and other else usual
        first, last = code_ends(q.qparams)
        names = {"lo": lo, "hi": hi, "qmin": first, "qmax": last, "scale": np.float64(q.scale)}
        names |= FUNCTIONS | {"clamp": lambda code, least=first, most=last: min(max(code, least), most)}
        middle = np.rint((first + last) / 2)
        found = middle if formula == "the middle code" else eval(formula.removeprefix("offset = "), names)
        assert float(q.zero_point) == pytest.approx(found, rel=1e-6), (code, scheme, formula)


def test_an_explanation_has_the_zero_point_of_zeros():
    # contract 5.3
    text = reference.quantize(np.zeros(3, np.float32), "int8").explain(0).text
    assert "zero_point = clamp(rint(qmin - lo / scale)); if the scale was 0: 0\n" in text
    assert "zero_point 0" in text


def test_nothing_is_said_of_where_a_system_is_undefined_if_that_is_nowhere(tmp_path):
    compared = {"version": "a system 1", "values": 7, "undefined": ""}
    stored = tmp_path / "compared.json"
    stored.write_text(json.dumps({"onnx": compared, "torch": compared | {"undefined": "NaN"}}))
    text = run_path(str(Path(__file__).parents[2] / "docs" / "conventions_page.py"))["page"](stored)
    assert text.count("verified against: a system 1; 7 values") == 2
    assert text.count("where the system is undefined") == 1
