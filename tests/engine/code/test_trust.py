"""Machine code is loaded from and written to only where no other user could have put it."""

import hashlib
import os
import stat

import pytest
from subprocesses import HITS, SETUP, run

import fastq
from fastq.engine.code import folder
from fastq.engine.code.file import CachedFile

needs_root = pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files away")
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes")

SOMEBODY = 12345
KEY = hashlib.sha256(b"").digest()


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The folder in use, which is trusted."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    folder.code_folder.cache_clear()
    path = folder.code_folder()
    assert path == tmp_path / "cache" / "fastq-kernels"
    assert not folder.refusal()
    yield path
    folder.code_folder.cache_clear()


def chown(path):
    os.chown(path, SOMEBODY, -1)


def chmod(mode):
    return pytest.param(lambda path: path.chmod(mode), id=oct(mode))


CHANGES = [chmod(0o777), chmod(0o722), chmod(0o702), chmod(0o720), pytest.param(chown, marks=needs_root, id="chown")]


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_that_others_could_change_is_not_used(private, change, capsys):
    change(private)
    folder.code_folder.cache_clear()
    assert folder.code_folder() is None
    assert folder.refusal().startswith(f"{private} ")
    fastq.show_versions()
    assert f"not cached in  {private} " in capsys.readouterr().out


def test_a_folder_that_others_can_read_is_used(private, capsys):
    private.chmod(0o755)
    folder.code_folder.cache_clear()
    assert folder.code_folder() == private
    fastq.show_versions()
    assert "not cached in" not in capsys.readouterr().out


def test_no_folder_at_all(private, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    folder.code_folder.cache_clear()
    assert folder.code_folder() is None
    assert folder.refusal() == ""


def test_a_user_without_a_home_has_no_folder(private, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(folder, "_user_folder", homeless)
    folder.code_folder.cache_clear()
    assert folder.code_folder() is None


def test_the_amount_of_machine_code_is_shown(tmp_path):
    (tmp_path / "tiny.py").write_text("def one(n):\n    return n + 1\n\n\ndef two(n):\n    return n + 2\n")
    code = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    from numba import int64
    from fastq import config
    from fastq.engine import jit
    import tiny
    jit.kernel(tiny.one, int64, int64), jit.kernel(tiny.two, int64, int64)
    print(jit.functions_in_memory(), config.versions()["cache"])
    """
    loaded = [run(code, NUMBA_CACHE_DIR=tmp_path) for _ in range(2)]
    files = list(tmp_path.rglob("*.code"))
    mib = sum(path.stat().st_size for path in files) / 2**20
    expected = f"{tmp_path / 'fastq-kernels'} ({len(files)} files, {mib:.1f} MiB; {len(files)} in memory)"
    assert loaded == 2 * [f"{len(files)} {expected}\n"]
    assert len(files) == 2


@pytest.mark.slow("processes that compile")
def test_everything_is_private_whatever_the_umask_is(tmp_path):
    code = """
    os.umask(0)
    fastq.minmax(np.ones(9, np.float32))
    """
    cache = tmp_path / "new" / "cache"
    run(code, NUMBA_CACHE_DIR=cache)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [cache.parent, cache, *cache.rglob("*")]}
    assert len(modes) > 4
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}


# files


def through_a_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def as_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def as_a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [*CHANGES, through_a_link, as_a_pipe, as_a_folder])
def test_files_that_others_could_change_are_not_loaded(private, change):
    file = CachedFile(private, "kernel", KEY)
    file.save(b"code")
    assert file.load() == b"code"
    change(file.path)
    assert file.load() is None
    file.save(b"code")
    if change is not as_a_folder:
        assert file.load() == b"code"


def test_every_byte_and_every_length(private):
    file = CachedFile(private, "kernel", KEY)
    file.save(b"some machine code")
    content = file.path.read_bytes()
    damaged = [content[:n] for n in range(len(content))] + [content + b"x"]
    for n in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[n] ^= 1 << bit
            damaged.append(bytes(flipped))
    for each in damaged:
        file.path.write_bytes(each)
        assert file.load() is None
    file.path.write_bytes(content)
    assert file.load() == b"some machine code"


@pytest.mark.parametrize("platform", ["win32", "darwin", "linux"])
def test_folder_of_the_user(platform, monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(folder.sys, "platform", platform)
    expected = {"win32": "AppData/Local", "darwin": "Library/Caches", "linux": ".cache"}
    assert folder._user_folder() == tmp_path / expected[platform]


@pytest.mark.slow("four processes, each of which compiles")
@needs_root
def test_root_does_not_run_the_code_of_somebody_else(tmp_path):
    """A file with the right checksum and key, by another user: what was shown to run a command as root."""
    code = """
    assert fastq.quantize_linear(np.ones(9, np.float32), 0.5, 0, "int8").tolist() == [2] * 9
    print(*hits())
    """
    cache = tmp_path / "cache"

    def loaded():
        return run(code, setup=SETUP + HITS, NUMBA_CACHE_DIR=cache)

    assert loaded() == "0 0\n"
    assert loaded() == "1 1\n"
    for path in cache.rglob("*.code"):
        os.chown(path, SOMEBODY, SOMEBODY)
    assert loaded() == "0 0\n"
    assert {path.stat().st_uid for path in cache.rglob("*.code")} == {0}
