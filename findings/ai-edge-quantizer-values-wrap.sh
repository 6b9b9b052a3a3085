#!/usr/bin/env bash
# System:    ai-edge-quantizer 0.10.0 on a CPU, checked on 2026-11-29.
# Behaviour: uniform_dequantize takes the zero point from int8 codes in int8, so that differences of more than 127 wrap
#            around. Of the range -1 to 3, whose zero point is -64, the code 127 of 3 comes back as -1.02. Of codes that
#            were cast to int32 before, the same function gives 3.
# Expected:  values at most half a step from those that were quantized, as from the cast codes.
# Seen:
#   zero point            -64
#   values                [-1.0, 0.0, 0.99, 1.01, 2.0, 3.0]
#   codes                 [-128, -64, -1, 0, 63, 127]
#   dequantized           [-1.0, 0.0, 0.99, 1.0, 1.99, -1.02]
#   of codes in int32     [-1.0, 0.0, 0.99, 1.0, 1.99, 3.0]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ai-edge-quantizer==0.10.0
cd "$folder"

"$folder/venv/bin/python" - <<'EOF'
import sys

import numpy as np
from ai_edge_quantizer import qtyping
from ai_edge_quantizer.algorithms.uniform_quantize import uniform_quantize_tensor

values = np.array([-1, 0, 0.99, 1.01, 2, 3], np.float32)
ends = values.min(keepdims=True), values.max(keepdims=True)
granularity = qtyping.QuantGranularity.TENSORWISE
zero_point, scale = uniform_quantize_tensor.tensor_zp_scale_from_min_max(*ends, 8, False, granularity)
params = qtyping.UniformQuantParams(
    num_bits=8, quantized_dimension=None, scale=scale, zero_point=zero_point, symmetric=False
)
codes = uniform_quantize_tensor.uniform_quantize(values, params)
restored = uniform_quantize_tensor.uniform_dequantize(codes, params)
of_wide_codes = uniform_quantize_tensor.uniform_dequantize(codes.astype(np.int32), params)

print(f"{'zero point':21} {int(zero_point.item())}")
print(f"{'values':21} {[round(float(value), 2) for value in values]}")
print(f"{'codes':21} {codes.tolist()}")
for name, numbers in [("dequantized", restored), ("of codes in int32", of_wide_codes)]:
    print(f"{name:21} {[round(float(number), 2) for number in numbers]}")

half_a_step = float(scale.item()) / 2 + 1e-6
wraps = codes.dtype == np.int8 and abs(restored[-1] - values[-1]) > 1
sys.exit(0 if wraps and np.abs(of_wide_codes - values).max() <= half_a_step else "the behaviour has changed")
EOF
