"""The systems: adapters that import them only when called."""

from systems import embeddings, mlx, netcdf, nncf, onnx_runtime, tflite, torch_eager, torch_libraries

SYSTEMS = tuple(
    system
    for module in (onnx_runtime, torch_eager, torch_libraries, mlx, nncf, tflite, embeddings, netcdf)
    for system in module.SYSTEMS
)
