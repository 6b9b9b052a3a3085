"""What docs/howto/images-and-sound.md says of scikit-image, OpenCV, torchvision, Pillow and GDAL."""

import dataclasses

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

SHAPE = 1024, 1024  # 2**20 values


def image(rounding):
    """The convention of the page: a product by the reciprocal of a scale kept in float64."""
    return dataclasses.replace(
        fastq.CONVENTIONS["onnx"],
        name=f"image, {rounding}",
        stored_type="float64",
        quotient="reciprocal_of_double",
        rounding=rounding,
    )


def by_steps(steps, dtype, lowest=0.0, highest=1.0):
    """Numbers of a range: half of them within 2 ulps of codes and ties, some of them the ends, zeros and subnormal."""
    rng = np.random.default_rng(0)
    x = rng.uniform(lowest, highest, SHAPE).astype(dtype)
    near = (np.rint(x * dtype(steps)) + rng.integers(0, 2, SHAPE) / 2) / steps
    near = near.astype(dtype)
    for _ in range(2):
        towards = rng.choice(np.array([-9, 9], dtype), SHAPE)
        near = np.where(rng.random(SHAPE) < 0.5, near, np.nextafter(near, towards))
    x = np.where(rng.random(SHAPE) < 0.5, np.clip(near, lowest, highest), x).astype(dtype)
    x[0, :6] = [lowest, highest, 0.0, -0.0, 1e-40, np.finfo(dtype).tiny]
    return x


DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@DTYPES
def test_skimage(dtype):
    util = pytest.importorskip("skimage.util", reason="scikit-image is not installed")
    x = by_steps(255, dtype)
    same_bytes(fastq.quantize_linear(x, 1 / 255, 0, "uint8", convention=image("half_even")), util.img_as_ubyte(x))
    x = by_steps(65535, dtype)
    same_bytes(fastq.quantize_linear(x, 1 / 65535, 0, "uint16", convention=image("half_even")), util.img_as_uint(x))


def test_opencv():
    cv2 = pytest.importorskip("cv2", reason="opencv-python is not installed")
    x = by_steps(255, np.float32, 0.0, 1.1)
    theirs = cv2.convertScaleAbs(x, alpha=255)
    same_bytes(fastq.quantize_linear(x, 1 / 255, 0, "uint8", convention=image("half_even")), theirs)
    x = by_steps(255, np.float32, -0.1, 1.1)
    theirs = cv2.multiply(x, 255.0, dtype=cv2.CV_8U)
    same_bytes(fastq.quantize_linear(x.astype(np.float64), 1 / 255, 0, "uint8", convention=image("half_even")), theirs)
    x = by_steps(1, np.float32, -20, 280)
    same_bytes(fastq.quantize_linear(x, 1.0, 0, "uint8"), cv2.add(x, 0.0, dtype=cv2.CV_8U))


def test_torchvision():
    functional = pytest.importorskip("torchvision.transforms.v2.functional", reason="torchvision is not installed")
    torch = pytest.importorskip("torch")
    x = by_steps(255.999, np.float32)
    theirs = functional.to_dtype(torch.from_numpy(x), torch.uint8, scale=True).numpy()
    same_bytes(fastq.quantize_linear(x, 1 / 255.999, 0, "uint8", convention=image("trunc")), theirs)


def test_pillow():
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    x = by_steps(1, np.float32, -20, 280)
    theirs = np.asarray(image_module.fromarray(x).convert("L"))
    same_bytes(fastq.quantize_linear(x, 1.0, 0, "uint8", convention=image("trunc")), theirs)


VRT = """<VRTDataset rasterXSize="1024" rasterYSize="1024"><VRTRasterBand dataType="{kind}" band="1"><ComplexSource>
<SourceFilename>{path}</SourceFilename><SourceBand>1</SourceBand><ScaleOffset>0</ScaleOffset>
<ScaleRatio>{ratio}</ScaleRatio></ComplexSource></VRTRasterBand></VRTDataset>"""


@pytest.mark.filterwarnings("ignore")  # that the file has no place on Earth
@DTYPES
@pytest.mark.parametrize(
    ("kind", "code", "steps", "ends", "rounding"),
    [("Byte", "uint8", 255, (-0.1, 1.1), "half_up"), ("Int16", "int16", 65535, (-0.55, 0.55), "half_away")],
)
def test_gdal(tmp_path, dtype, kind, code, steps, ends, rounding):
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    x = by_steps(steps, dtype, *ends)
    path = tmp_path / "floats.tif"
    with rasterio.open(path, "w", driver="GTiff", height=1024, width=1024, count=1, dtype=x.dtype) as file:
        file.write(x, 1)
    scaled = tmp_path / "scaled.vrt"
    scaled.write_text(VRT.format(kind=kind, path=path, ratio=steps))
    with rasterio.open(scaled) as file:
        theirs = file.read(1)
    ours = fastq.quantize_linear(x.astype(np.float32), 1 / steps, 0, code, convention=image(rounding))
    same_bytes(ours, theirs)
