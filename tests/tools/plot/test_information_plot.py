"""The picture of bit information: a bar for each bit, a line after those that are kept."""

import numpy as np
import pytest

import fastq

pytest.importorskip("matplotlib", reason="no matplotlib")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bars_and_the_line(dtype):
    from matplotlib import pyplot

    found = fastq.bit_information(np.sin(np.linspace(0, 20, 5000)).astype(dtype))
    axes = fastq.plot.bit_information(found, level=0.9)
    assert np.allclose([bar.get_height() for bar in axes.patches], found.information)
    line, noise = axes.lines
    assert np.allclose(noise.get_ydata(), 1.5 * max(found.information[-4:]))
    first = len(found.counts) - np.finfo(dtype).nmant
    assert line.get_xdata()[0] == first + found.keepbits(0.9) - 0.5
    assert axes.get_title().startswith(f"{dtype}: {found.keepbits(0.9)} of {np.finfo(dtype).nmant} bits")
    _, given = pyplot.subplots()
    assert fastq.plot.bit_information(found, ax=given) is given


def test_refusals():
    with pytest.raises(TypeError, match="found must be a BitInformation, not 3"):
        fastq.plot.bit_information(3)
    with pytest.raises(ValueError, match=r"level must be from 0\.0 to 1\.0"):
        fastq.plot.bit_information(fastq.bit_information(np.ones(3)), level=2)
