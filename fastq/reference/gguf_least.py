"""Parameters of blocks of GGUF with less error than those of ggml, in plain NumPy, with axes as in `gguf_search`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fastq.formats.gguf import BlockFormat, Candidates, CodebookFormat, Float4Format, ScaledFormat
from fastq.reference.gguf_fields import F, Numbers, float_steps, half_bits, numbers_of, pack, unpack, values
from fastq.reference.gguf_search import choose, first_largest, nearest_of_codebook, total
from fastq.reference.gguf_small import nearest_floats
from fastq.reference.gguf_super import half, sub_blocks
from fastq.system.dtypes import Array

LESS = F(1 - 2.0**-17)  # by this factor a sum of float32 is less only if the exact one is
LOST = F(2.0**-100)  # squares below this may lose bits
Parameters = tuple[Array, Array]  # a scale, as a float16 or a code of one, and a smallest value


class SubBlocks(NamedTuple):
    """One sub-block of each block: its values, their weights, and the factor of scale codes."""

    form: BlockFormat
    x: Array
    w: Array
    unit: Array

    def step(self, scale: Array) -> Array:
        """Return the factor of the numbers of codes, from a scale that is a float or a code."""
        if isinstance(self.form, Float4Format):
            return float_steps(scale.astype(np.int64), self.form)
        return np.asarray(self.unit * scale)

    def codes(self, scale: Array, low: Array) -> Array:
        """Return the stored codes of the nearest numbers."""
        step = self.step(scale)
        if isinstance(self.form, Float4Format):
            return nearest_floats(self.x, step)
        inverse = np.where(step == 0, F(0), F(1) / step)
        if isinstance(self.form, CodebookFormat):
            return nearest_of_codebook(inverse * self.x)
        assert isinstance(self.form, ScaledFormat)
        whole: Array = np.clip(np.rint((self.x - low) * inverse), *self.form.reach)
        return np.nan_to_num(whole).astype(np.int64) + self.form.zero

    def error(self, values: Array) -> Array:
        """Return the weighted squares of the errors."""
        miss = values - self.x
        return total(self.w * miss * miss)

    def error_of(self, scale: Array, low: Array) -> Array:
        """Error of the nearest numbers."""
        numbers = numbers_of(self.codes(scale, low), self.form) * self.step(scale)
        return self.error(numbers + low if self.form.has_minimum else numbers)


def lessen(x: Array, weights: Array | None, numbers: Numbers, form: BlockFormat) -> Numbers:
    """Return the numbers of blocks, replaced in sub-blocks where the new ones have less error."""
    # contract 22.1, 22.4 and 22.5
    stored = pack(numbers, form)
    w = np.ones_like(x) if weights is None else weights
    numbers = unpack(stored, form)
    unit = _float(numbers["d"][:, 0]) if form.count("scales") else np.ones(len(x), F)
    of_subs = (sub_blocks(numbers_of_blocks, form.sub) for numbers_of_blocks in (x, w, values(stored, form)))
    for j, (part, of_part, old) in enumerate(zip(*of_subs, strict=True)):
        search = SubBlocks(form, part, of_part, unit)
        better, scale, low = _search(search, *_parameters(numbers, j, form), search.error(old))
        for name, new_numbers in _stored_numbers(scale, low, form).items():
            numbers[name][:, j] = np.where(better, new_numbers, numbers[name][:, j])
        codes = numbers["codes"][:, j * form.sub : (j + 1) * form.sub]
        codes[:] = np.where(better, search.codes(scale, low), codes.T).T
    return numbers


def _parameters(numbers: Numbers, j: int, form: BlockFormat) -> Parameters:
    """Return the parameters of sub-block j of each block, from its stored numbers; `_stored_numbers` goes back."""
    bits = numbers["scales" if form.count("scales") else "d"][:, j]
    scale = _float(bits) if _is_half(form) else (bits - form.scale_zero).astype(F)
    return scale, _float(numbers["min"][:, 0]) if form.has_minimum else np.zeros_like(scale)


def _stored_numbers(scale: Array, low: Array, form: BlockFormat) -> Numbers:
    """Return the numbers of one sub-block of each block, by their fields, from parameters as `_parameters` has them."""
    scales = half_bits(scale)[:, 0] if _is_half(form) else scale.astype(np.int64) + form.scale_zero
    numbers = {"scales" if form.count("scales") else "d": scales}
    return numbers | {"min": half_bits(low)[:, 0]} if form.has_minimum else numbers


def _is_half(form: BlockFormat) -> bool:
    """Whether each sub-block has a float16 scale."""
    return not form.count("scales") and form.width("d") == 16


def _float(bits: Array) -> Array:
    """Return float16 parameters from their bits, as float32."""
    return np.asarray(bits.astype(np.uint16).view(np.float16).astype(F))


def _search(search: SubBlocks, scale: Array, low: Array, error: Array) -> tuple[Array, ...]:
    """Return a mask of blocks with less error than ggml's bytes, and the parameters.

    Trials must be below a limit a little less than that error, as sums are rounded. Nothing is below the limit 0 of an
    error that is too small or too large to be compared.
    """
    limit = np.where((error > LOST) & (error < np.inf), error * LESS, F(0))
    best: tuple[Array, ...] = limit, scale, low
    for tried in _trials(search, scale):
        best = _better(search, tried, best)
    for _ in range(2 if _is_half(search.form) else 0):
        best = _better(search, _least_squares(search, *best[1:]), best)
    return best[0] < limit, *best[1:]


def _better(search: SubBlocks, tried: Parameters, best: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return error and parameters of a trial where its error is less, else what was found so far."""
    error = search.error_of(*tried)
    return choose(error < best[0], (error, *tried), best)


def _numbers(candidates: Candidates) -> Iterator[np.float32]:
    """Yield the numbers of trials: ``first + k * delta``, in float32."""
    for k in range(candidates.last + 1):
        yield F(candidates.first) + F(candidates.delta) * F(k)


def _trials(search: SubBlocks, scale: Array) -> Iterator[Parameters]:
    """Yield parameters to try, as they are stored: of ranges whose ends move inwards, or of several scales."""
    x = search.x
    form = search.form
    zero = np.zeros_like(scale)
    if form.has_minimum:
        assert isinstance(form, ScaledFormat)
        low, high = x.min(axis=0), x.max(axis=0)
        step = (high - low) / F(form.steps)
        for a in _numbers(form.trials[0]):
            least = half(low + step * a)
            for b in _numbers(form.trials[0]):
                yield half((high - step * b - least) / F(form.steps)), least
        return
    largest = first_largest(x)
    if isinstance(form, ScaledFormat) and form.extent == "magnitude":
        largest = np.abs(largest)
    inverse = np.where(search.unit == 0, F(0), F(1) / search.unit)
    for number in (number for each in form.trials for number in _numbers(each)):
        if isinstance(form, Float4Format):
            yield np.clip(scale + number, F(0), F(form.largest_scale)), zero
        elif form.count("scales"):
            yield np.clip(np.rint(largest / number * inverse), F(-form.scale_zero), F(form.scale_zero - 1)), zero
        else:
            yield half(largest / number), zero


def _least_squares(search: SubBlocks, scale: Array, low: Array) -> Parameters:
    """Parameters for which the codes that these choose have the least error, as they are stored."""
    _, x, w, _ = search
    codes = numbers_of(search.codes(scale, low), search.form)
    weighted = w * codes
    sum_l2 = total(weighted * codes)
    if not search.form.has_minimum:
        return half(total(weighted * x) / sum_l2), low
    y = x - low
    sum_w = total(w)
    sum_y = total(w * y)
    sum_l = total(weighted)
    sum_ly = total(weighted * y)
    determinant = sum_w * sum_l2 - sum_l * sum_l
    least = low + (sum_l2 * sum_y - sum_l * sum_ly) / determinant
    return half((sum_w * sum_ly - sum_l * sum_y) / determinant), half(least)
