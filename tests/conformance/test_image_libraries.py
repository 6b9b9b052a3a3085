"""docs/howto/images.md: the codes of scikit-image, OpenCV, torchvision, Pillow and GDAL."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

ROWS, COLUMNS = 1024, 1024
BY_PRODUCT = fastq.CONVENTIONS["torch-pt2e"]
IN_HALF = fastq.Convention("in float16", quotient="reciprocal", operation_type="input")
CUT_OFF = replace(BY_PRODUCT, name="cut off", rounding="trunc")
SHIFTED = replace(BY_PRODUCT, name="shifted", zero_point="float", zero_point_inside=True)
HALF_UP = replace(BY_PRODUCT, name="half up", rounding="half_up")
HALF_AWAY = fastq.Convention("half away", rounding="half_away")


def brightness(steps, dtype, *, signed=False):
    """Numbers of 0 to 1, or -1 to 1: most of them on or next to a half or a whole number of steps."""
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, COLUMNS)).astype(dtype)
    border = (rng.integers(0, 2 * int(steps) + 1, x.shape) / (2 * steps)).astype(dtype)
    for _ in range(2):
        aim = rng.choice([-9, 0, 9], x.shape).astype(dtype)
        border = np.where(aim == 0, border, np.nextafter(border, aim))
    x = np.clip(np.where(rng.random(x.shape) < 0.7, border, x), 0, 1)
    x[0, :6] = 0.0, -0.0, 1.0, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny, 0.5
    return np.asarray(x * rng.choice([-1, 1], x.shape) if signed else x, dtype)


def numbers(dtype):
    """Numbers of both signs, half of them on or next to a half, and some that no code of 8 bits has."""
    rng = np.random.default_rng(1)
    x = 80 * rng.standard_normal((ROWS, COLUMNS))
    x = np.where(rng.random(x.shape) < 0.5, np.rint(2 * x) / 2, x).astype(dtype)
    aim = rng.choice([-999, 0, 0, 999], x.shape).astype(dtype)
    x = np.where(aim == 0, x, np.nextafter(x, aim))
    x[0, :5] = 0.0, -0.0, 0.49999997, -0.5, 1e9
    return x


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bytes_of_scikit_image(dtype):
    util = pytest.importorskip("skimage.util", reason="scikit-image is not installed")
    x = brightness(255, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on lost precision
        theirs = util.img_as_ubyte(x)
    row = IN_HALF if dtype == "float16" else BY_PRODUCT
    same_bytes(fastq.quantize_linear(x, 1 / 255, 0, "uint8", convention=row), theirs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_words_of_scikit_image(dtype):
    util = pytest.importorskip("skimage.util", reason="scikit-image is not installed")
    x = brightness(65535, dtype)
    same_bytes(fastq.quantize_linear(x, 1 / 65535, 0, "uint16", convention=BY_PRODUCT), util.img_as_uint(x))
    x = brightness(65535, dtype, signed=True)
    codes = fastq.quantize_linear(x, 1 / 32767.5, -0.5, "int16", convention=SHIFTED)
    same_bytes(codes, util.img_as_int(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_opencv(dtype):
    cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    x = brightness(255, dtype)
    in_float64 = fastq.quantize_linear(x.astype(np.float64), 1 / 255, 0, "uint8", convention=BY_PRODUCT)
    same_bytes(in_float64, cv2.multiply(x, 255.0, dtype=cv2.CV_8U))
    if dtype == "float32":
        scaled = fastq.quantize_linear(x, 1 / 255, 0, "uint8", convention=BY_PRODUCT)
        same_bytes(scaled, cv2.convertScaleAbs(x, alpha=255.0))
    x = numbers(dtype)
    x[0, 4] = 1000.0  # 1e9 and NaN become the lowest code there
    for name, code in {"int8": cv2.CV_8S, "uint8": cv2.CV_8U, "int16": cv2.CV_16S}.items():
        same_bytes(fastq.quantize_linear(x, 1.0, 0, name), cv2.add(x, 0.0, dtype=code))


@pytest.fixture
def to_dtype():
    """Return torchvision's function for arrays."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    try:
        v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    except RuntimeError as error:  # it registers its operators when it is imported
        pytest.skip(f"torchvision is not that of this torch: {error}")

    def convert(x, name):
        return v2.functional.to_dtype(torch.from_numpy(x)[None], getattr(torch, name), scale=True)[0].numpy()

    return convert


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_torchvision(to_dtype, dtype):
    x = brightness(255.999 / 2, dtype)
    for name, most in {"uint8": 255.999, "int8": 127.999, "int16": 32767.999}.items():
        theirs = to_dtype(x, name)
        same_bytes(fastq.quantize_linear(x, 1 / most, 0, name, convention=CUT_OFF), theirs)
        values = to_dtype(theirs, "float32")
        same_bytes(fastq.dequantize_linear(theirs, np.float32(1 / np.iinfo(name).max)), values)


def test_torchvision_makes_white_black_where_its_factor_is_rounded_up(to_dtype):
    assert to_dtype(np.ones((1, 1), np.float16), "uint8") == 0
    assert to_dtype(np.ones((1, 1), np.float32), "uint16") == 0


def test_bytes_of_pillow():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    x = numbers("float32")
    same_bytes(
        fastq.quantize_linear(x, 1.0, 0, "uint8", convention=CUT_OFF), np.asarray(image.fromarray(x).convert("L"))
    )


@pytest.fixture
def by_gdal(tmp_path):
    """Return a function from an array, a GDAL type and a factor to what GDAL makes of it, as gdal_translate does."""
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    path = tmp_path / "x.tif"

    def convert(x, kind, factor):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on files without coordinates
            height, width = x.shape
            with rasterio.open(path, "w", driver="GTiff", height=height, width=width, count=1, dtype=x.dtype) as file:
                file.write(x, 1)
            window = f'xOff="0" yOff="0" xSize="{width}" ySize="{height}"'
            scaling = f"<ScaleOffset>0</ScaleOffset><ScaleRatio>{factor}</ScaleRatio>" if factor else ""
            source = "ComplexSource" if factor else "SimpleSource"
            text = (
                f'<VRTDataset rasterXSize="{width}" rasterYSize="{height}"><VRTRasterBand dataType="{kind}" band="1">'
                f"<{source}><SourceFilename>{path}</SourceFilename><SourceBand>1</SourceBand><SrcRect {window}/>"
                f"<DstRect {window}/>{scaling}</{source}></VRTRasterBand></VRTDataset>"
            )
            with rasterio.open(text) as file:
                return file.read(1)

    return convert


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_gdal(by_gdal, dtype):
    """Of -ot Byte -scale 0 1 0 255, in float32 whatever the input is, and of -ot alone."""
    x = brightness(255, dtype)
    x[1, :4] = -0.3, 1.4, 1e9, -1e9
    codes = fastq.quantize_linear(x.astype(np.float32), 1 / 255, 0, "uint8", convention=HALF_UP)
    same_bytes(codes, by_gdal(x, "Byte", 255))
    x = numbers(dtype)
    same_bytes(fastq.quantize_linear(x, 1.0, 0, "uint8", convention=HALF_UP), by_gdal(x, "Byte", 0))
    theirs = by_gdal(x, "Int16", 0)
    below_half = np.abs(x) == np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    assert set(theirs[below_half].tolist()) <= {-1, 0, 1}  # by its place in a row
    codes = fastq.quantize_linear(x, 1.0, 0, "int16", convention=HALF_AWAY)
    same_bytes(codes[~below_half], theirs[~below_half])


def test_numbers_beyond_the_codes_and_nan(by_gdal):
    """What the page says that others do, where fastq saturates or refuses."""
    x = np.array([[np.nan, np.inf, -np.inf, 1e10, 300.0]], np.float32)
    assert by_gdal(x, "Byte", 0).tolist() == [[0, 255, 0, 255, 255]]
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    assert np.asarray(image.fromarray(x).convert("L")).tolist() == [[0, 255, 0, 255, 255]]
    cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    assert cv2.add(x, 0.0, dtype=cv2.CV_8S).tolist() == [[-128, -128, -128, -128, 127]]
    util = pytest.importorskip("skimage.util", reason="scikit-image is not installed")
    with pytest.raises(ValueError, match="between -1 and 1"):
        util.img_as_ubyte(np.float32([1.5, -0.2]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a cast
        assert util.img_as_ubyte(np.float32([1.5, -0.2, np.nan])).tolist() == [255, 0, 0]


def test_torchvision_wraps_around(to_dtype):
    assert to_dtype(np.float32([[1.2, -0.1, np.nan]]), "uint8").tolist() == [[51, 231, 0]]
