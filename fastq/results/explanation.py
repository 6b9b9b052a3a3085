"""Explain an array, or an element of it: the formulas of its convention, with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastq.formats import describe
from fastq.formats.describe import code_formula, format_code_formula, format_scale_formula, scale_formula
from fastq.formats.qtypes import WANTED_SCALES
from fastq.results import elements
from fastq.results.elements import code_ends, codes_at, evaluate, fill_in, formula_of, number_text, parameter_places
from fastq.results.indexing import picks_of
from fastq.results.parameters import QParams, coding_of_parameters, scheme_text
from fastq.system.arguments import shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array

_SHOWN = "code", "number", "scale", "tensor_scale", "zero_point", "offset"


@dataclass(frozen=True, repr=False)
class Explanation:
    """The formulas by which an array was quantized and is decoded; shown as lines of text."""

    formulas: dict[str, str]  # formulas by their results: "scale", "zero_point" or "offset", "code" and "value"
    numbers: dict[str, Any]  # numbers of an element by their names in the formula of its value; empty without an index
    value: Any  # the result of the formula, with the bits of `dequantize`; None without an index
    text: str  # the whole text

    def __repr__(self) -> str:
        return self.text


def explain(codes: Array, p: QParams, shape: tuple[int, ...], index: object) -> Explanation:
    """Return the explanation of an array, and of the element at an index if one is given."""
    formulas = formulas_of(p)
    lines = [f"{scheme_text(p)}; {_terms_text(p)}", *(f"{name} = {text}" for name, text in formulas.items())]
    if index is None:
        return Explanation(formulas=formulas, numbers={}, value=None, text="\n".join(lines))
    places = _place_of(index, shape)
    terms = elements.terms_of(codes_at(codes, p.dtype, places), p, shape, places)
    _check_scale(p, parameter_places(p, shape, places))
    value = evaluate(formulas["value"], terms).astype(p.compute_dtype)[()]
    numbers = {name: terms[name][()] for name in elements.names_in(formulas["value"]) if name in _SHOWN}
    of_element = ", ".join(f"{name} {number_text(number)}" for name, number in numbers.items())
    lines += [f"element {places}: {of_element}", f"value = {fill_in(formulas['value'], terms)} = {number_text(value)}"]
    return Explanation(formulas=formulas, numbers=numbers, value=value, text="\n".join(lines))


def _check_scale(p: QParams, parameter_index: tuple[Any, ...]) -> None:
    """Raise ValueError if the scale of an element is one that `dequantize` refuses."""
    as_given = as_array(p.scale, "parameters")[(*parameter_index, ...)]
    scale_dtype = coding_of_parameters(p).scale
    with np.errstate(over="ignore"):
        scale = as_given.astype(scale_dtype)
    if not p.dtype.block_size and not (np.isfinite(scale) and (p.dtype.codebook or scale != 0)):
        expected = WANTED_SCALES[True, p.dtype.codebook is not None]
        raise ValueError(f"scale must be {expected} in {scale_dtype}; the element has scale {as_given[()]}")


def formulas_of(p: QParams) -> dict[str, str]:
    """Return the formulas of parameters, codes and values, by their results."""
    convention = coding_of_parameters(p).convention
    if p.dtype.element or p.dtype.block_size:
        return {
            "scale": format_scale_formula(p.dtype, convention),
            "code": format_code_formula(p.dtype, convention),
            "value": formula_of(p),
        }
    scheme = "symmetric" if p.symmetric else "asymmetric"
    zero_point = describe.zero_point_formula(convention, scheme)
    return {
        "scale": scale_formula(convention, scheme),
        "offset" if convention.zero_point == "offset" else "zero_point": zero_point.removeprefix("offset = "),
        "code": code_formula(convention, scheme),
        "value": formula_of(p),
    }


def _terms_text(p: QParams) -> str:
    """Return the meanings of the names in the formulas that are the same for all elements."""
    first, last = code_ends(p)
    return f"F = {p.compute_dtype}, codes {first:g} to {last:g}"


def _place_of(index: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of one element, counted from the front; raise TypeError for an index of several."""
    picks = picks_of(index, shape)
    places = tuple(pick for pick in picks if isinstance(pick, int))
    if len(places) < len(shape):
        raise TypeError(f"index must be an int for each of {len(shape)} axes, not {shown(index)}")
    return places
