"""Short versions of the exhaustive proofs, and that each finds what is wrong; `tests.campaigns.exhaustive` does all."""

from dataclasses import replace
from fractions import Fraction

import exhaustive
import numpy as np
import pytest
from exhaustive import INFINITY, SIGN, EveryFloat, Setting, Steps, Wrong
from fuzzing import exact

from fastq import reference

SETTINGS = [
    Setting("int8", "half_even", 0.10000000149011612, 3),
    Setting("uint8", "half_even", float(np.float32(2.0**-99) * np.float32(2 - 2.0**-23)), 128),
    Setting("uint8", "half_away", 3.0, 0),
    Setting("int8", "floor", 2.0**-126, -1),
    Setting("uint8", "trunc", float(np.float32(1e30)), 200),
    Setting("int8", "half_even", 0.3333333432674408, -128, columns=True),
    Setting("float8_e4m3fn", "half_even", float(np.float32(2.0**-99) * np.float32(2 - 2.0**-23)), 0),
    Setting("float8_e5m2", "half_even", 0.10000000149011612, 0, saturate=False),
    Setting("float8_e4m3fnuz", "half_even", 1.5, 0, saturate=False),
]
QUICK = SETTINGS[:1]


def check(every):
    for chunk in every.chunks_with_steps():
        every.check(chunk)


@pytest.mark.slow("a second each", quick=lambda setting: setting in QUICK)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_chunks_in_which_codes_change(setting):
    check(EveryFloat(setting))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_steps_are_those_of_the_reference(setting):
    """The step function itself, on both sides of each step, for zeros, infinities and NaN: no kernel is compiled."""
    every = EveryFloat(setting)
    orders = np.unique(np.concatenate([every.steps.starts, every.steps.starts - 1, [-1, 0, INFINITY, -1 - INFINITY]]))
    orders = orders[orders >= -1 - INFINITY]
    x = np.where(orders >= 0, orders, SIGN | -1 - orders).astype(np.uint32).view(np.float32)
    where = np.searchsorted(every.steps.starts, orders, "right") - 1
    options = {"dtype": setting.format, "saturate": setting.saturate, "convention": "onnx"}
    if not every.is_float:
        options["convention"] = setting.row
    expected = reference.quantize_linear(x, np.float32(setting.scale), setting.zero_point, **options)
    np.testing.assert_array_equal(every.steps.codes[where], expected.view(every.steps.codes.dtype))


def test_every_setting_is_one_of_its_own():
    settings = list(exhaustive.settings())
    assert len({setting.name for setting in settings}) == len(settings)
    plain = {(s.format, s.rounding, s.scale) for s in settings if not (s.columns or s.format in exhaustive.FLOATS)}
    assert len(plain) >= 24 * len(exhaustive.INTEGERS) * len(exhaustive.ROUNDINGS)


def test_chunks_are_all_patterns():
    assert len(exhaustive.CHUNKS) * exhaustive.CHUNK == 1 << 32
    assert set(EveryFloat(SETTINGS[0]).chunks_with_steps()) < set(exhaustive.CHUNKS)


def test_what_is_between_steps():
    steps = Steps(np.array([-9, -2, 3, 4]), np.array([5, 6, 7, 8], np.int8))
    assert steps.between(-9, 6).tolist() == [5] * 7 + [6] * 5 + [7] + [8] * 2
    assert steps.between(-2, 3).tolist() == [6] * 5
    assert steps.between(3, 4).tolist() == [7]


def test_numbers_of_patterns():
    for order in (0, 1, 2, 0x7FFFFF, 0x800000, 0x3F800000, INFINITY - 1, INFINITY):
        x = np.uint32(order).view(np.float32)
        assert exhaustive.number_of(order) == exact.number(x)
        assert exhaustive.number_of(-1 - order) == exact.number(-x)
        assert exhaustive.order_of(x) == order
        assert exhaustive.order_of(-x) == -1 - order
    assert exhaustive.number_of(1, 149) == Fraction(1)


# --- what is wrong is found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["half_away", "floor", "trunc"])
def test_another_rounding_is_found(rounding):
    setting = Setting("int8", "half_even", 1.0, 3)
    with pytest.raises(Wrong, match="int8 half_even"):
        check(EveryFloat(setting, exhaustive.steps_of(replace(setting, rounding=rounding))))


def test_a_step_one_pattern_off_is_found():
    setting = SETTINGS[0]
    right = exhaustive.steps_of(setting)
    for k, moved in ((1, 1), (130, -1), (len(right.starts) - 1, 1)):
        starts = right.starts.copy()
        starts[k] += moved
        with pytest.raises(Wrong, match="1 of the patterns"):
            check(EveryFloat(setting, Steps(starts, right.codes)))


def test_a_wrong_code_of_nan_is_found():
    setting = SETTINGS[0]
    every = EveryFloat(setting)
    every._nan = lambda sign: setting.zero_point + 1
    with pytest.raises(Wrong, match=rf"{exhaustive.CHUNK - 1} of the patterns"):
        check(every)


# --- 16 bits, quotients -----------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles kernels for each")
@pytest.mark.parametrize(
    ("name", "format"), [("float16", "int8"), ("bfloat16", "uint4"), ("int16", "float8_e5m2"), ("float16", "mxfp4")]
)
def test_every_16_bit_pattern(name, format):
    assert sum(exhaustive.every_half(name, format)) > 300_000


@pytest.mark.slow("compiles a kernel")
def test_a_wrong_16_bit_pattern_is_found(monkeypatch):
    right = reference.quantize_linear

    def wrong(x, *args, **options):
        codes = right(x, *args, **options)
        codes[12345] += 1
        return codes

    monkeypatch.setattr(reference, "quantize_linear", wrong)
    with pytest.raises(Wrong, match="1 bytes differ, the first at 12345"):
        sum(exhaustive.every_half("float16", "int8"))


@pytest.mark.slow("ten seconds of fractions")
def test_every_16_bit_pattern_by_fractions():
    assert sum(exhaustive.every_half_by_fractions("bfloat16", "float8_e4m3fn")) > 190_000


@pytest.mark.slow("compiles a kernel")
def test_a_wrong_float_code_is_found(monkeypatch):
    monkeypatch.setattr(exact, "float_code", lambda value, *args: 1)
    with pytest.raises(Wrong, match="is 0, not 1"):
        sum(exhaustive.every_half_by_fractions("float16", "float8_e4m3fn"))


@pytest.mark.slow("half a second for each exponent")
def test_quotients():
    assert sum(exhaustive.every_quotient(2 - 2.0**-23, (-99, 0, 99))) == 3 * 20 << 23


def test_a_wrong_quotient_is_found(monkeypatch):
    right = exhaustive.quotient_kernel()

    def wrong(x, y, scale):
        right(x, y, scale)
        y[777] = np.nextafter(y[777], np.float32(0))

    monkeypatch.setattr(exhaustive, "quotient_kernel", lambda: wrong)
    with pytest.raises(Wrong, match="1 quotients"):
        sum(exhaustive.every_quotient(1.5, (0,)))
