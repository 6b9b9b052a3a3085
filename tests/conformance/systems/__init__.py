"""The systems: adapters that import them only when called."""

from systems import ai_edge, coreml, embeddings, mlx, netcdf, nncf, onnx_runtime, tflite, torch_eager, torch_libraries

SYSTEMS = tuple(
    system
    for module in (onnx_runtime, torch_eager, torch_libraries, mlx, nncf, tflite, embeddings, netcdf, ai_edge, coreml)
    for system in module.SYSTEMS
)
