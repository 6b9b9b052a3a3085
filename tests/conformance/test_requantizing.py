"""`fastq.requantize` gives the codes of the layers of the systems that its conventions are named after."""

import numpy as np
import pytest
from check import VALUES
from requantizing import SYSTEMS, compare

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the systems themselves


@pytest.fixture(params=SYSTEMS, ids=lambda system: f"{system.convention}-{system.batch.__name__}")
def system(request):
    if missing := request.param.missing():
        pytest.skip(f"missing: {', '.join(missing)}; convention {request.param.convention} is not compared")
    return request.param


def test_same_codes_as_the_system(system):
    report = compare(system)
    assert not report.differences, "\n".join(report.differences)
    assert report.values >= VALUES
    assert report.between >= report.values / 4


def test_another_convention_is_seen_to_differ(system):
    if not system.neighbour:
        pytest.skip("others have no bias that is a float")
    rng = np.random.default_rng(2)
    assert any(system.batch(rng).differences(system.neighbour) for _ in range(40))
