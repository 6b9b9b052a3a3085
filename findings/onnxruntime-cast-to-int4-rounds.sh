#!/usr/bin/env bash
# System:    onnxruntime 1.32.0 on a CPU, with onnx 1.23.2, checked on 2026-11-28.
# Behaviour: the operator Cast drops the fraction of a float on its way to int8, but rounds it, halves away from zero,
#            on its way to int4. So 2.5 becomes 2 as int8 and 3 as int4. 7.5, which fits int4 without its fraction, is
#            rounded to 8, which does not, and comes out as -8. The reference evaluator of onnx drops the fraction for
#            both types.
# Expected:  one rule for both types, and that of the reference evaluator.
# Seen:
#   input                  [0.4, 0.5, 1.5, 2.5, 2.7, -0.5, -1.7, 7.5]
#   to int8, onnxruntime   [0, 0, 1, 2, 2, 0, -1, 7]
#   to int8, reference     [0, 0, 1, 2, 2, 0, -1, 7]
#   to int4, onnxruntime   [0, 1, 2, 3, 3, -1, -2, -8]
#   to int4, reference     [0, 0, 1, 2, 2, 0, -1, 7]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2
cd "$folder"

"$folder/venv/bin/python" - <<'EOF'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

values = np.array([0.4, 0.5, 1.5, 2.5, 2.7, -0.5, -1.7, 7.5], np.float32)
truncated = np.trunc(values).astype(int).tolist()
rounded = [0, 1, 2, 3, 3, -1, -2, -8]  # 7.5 becomes 8, whose low four bits are -8
print(f"{'input':22} {[round(float(value), 1) for value in values]}")

behaves = True
for name, dtype, expected in [("int8", TensorProto.INT8, truncated), ("int4", TensorProto.INT4, rounded)]:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["code"], to=dtype),
            helper.make_node("Cast", ["code"], ["y"], to=TensorProto.FLOAT),  # NumPy has no int4 to give back
        ],
        "cast",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    codes = session.run(None, {"x": values})[0].astype(int).tolist()
    reference = ReferenceEvaluator(model).run(None, {"x": values})[0].astype(int).tolist()
    print(f"{f'to {name}, onnxruntime':22} {codes}")
    print(f"{f'to {name}, reference':22} {reference}")
    behaves &= codes == expected
    behaves &= reference == truncated
sys.exit(not behaves)
EOF
