"""Machine code is loaded from and written to only where no other user could have put it."""

import hashlib
import os
import stat

import pytest
from subprocesses import HITS, SETUP, run

import fastq
from fastq.engine.code import stored
from fastq.engine.code.stored import CachedFile

needs_root = pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files away")
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes")

SOMEBODY = 12345
KEY = hashlib.sha256(b"").digest()


@pytest.fixture
def private(tmp_path):
    """A folder that is trusted; its parent is too."""
    path = tmp_path / "cache" / "fastq"
    for each in (path.parent, path):
        each.mkdir(0o700)
    assert not stored.refusal(path)
    return path


def chown(path):
    os.chown(path, SOMEBODY, -1)


def chmod(mode):
    return pytest.param(lambda path: path.chmod(mode), id=oct(mode))


CHANGES = [chmod(0o777), chmod(0o722), chmod(0o702), chmod(0o720), pytest.param(chown, marks=needs_root, id="chown")]


def give_to_a_group_of_others(path):
    """Where root may do it; a group with this user only is not another one."""
    if os.geteuid() == 0:
        os.chown(path, -1, SOMEBODY)
        return True
    return not stored._is_private(path.stat().st_gid)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", ["the folder", "its parent"])
def test_folders_that_others_could_change(private, change, where):
    path = private if where == "the folder" else private.parent
    if not give_to_a_group_of_others(path):
        pytest.skip("the group is the user's own")
    change(path)
    assert stored.refusal(private).startswith(str(path))


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
    kernels = [path for path in files if not path.name.startswith("sources.")]
    mib = sum(path.stat().st_size for path in files) / 2**20
    expected = f"{tmp_path / 'fastq-kernels'} ({len(files)} files, {mib:.1f} MiB; {len(kernels)} in memory)"
    assert loaded == 2 * [f"{len(kernels)} {expected}\n"]
    assert len(kernels) == 2


def test_a_sticky_parent_is_trusted(private):
    private.parent.chmod(0o1777)
    assert not stored.refusal(private)
    private.chmod(0o1777)
    assert stored.refusal(private) == f"{private} can be written to by others"


def test_a_folder_that_a_link_leads_to(private, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(private)
    assert not stored.refusal(link)
    private.parent.chmod(0o777)
    assert stored.refusal(link) == f"{private.parent} can be written to by others"


def test_folders_that_can_be_read_are_trusted(private):
    private.chmod(0o755)
    assert not stored.refusal(private)


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
    if not give_to_a_group_of_others(file.path):
        pytest.skip("the group is the user's own")
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


# which folder


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """Return a function that says which folder is used for a value of NUMBA_CACHE_DIR."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(stored, "__file__", str(tmp_path / "package" / "engine" / "code" / "stored.py"))

    def choose(path):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(path))
        stored.code_folder.cache_clear()
        return stored.code_folder()

    yield choose
    stored.code_folder.cache_clear()


def test_another_folder_is_used_and_the_user_is_told(chosen, tmp_path, capsys):
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    assert chosen(public) == tmp_path / "package" / "engine" / "code" / "__pycache__" / "code"
    assert list(public.iterdir()) == []
    fastq.show_versions()
    assert f"not cached in  {public} can be written to by others" in capsys.readouterr().out
    (tmp_path / "package").chmod(0o777)
    assert str(chosen(public)).startswith(str(tmp_path / "user"))
    (tmp_path / "user").chmod(0o777)
    assert chosen(public) is None
    assert len(stored.refusals()) == 3
    assert chosen(tmp_path / "private") == tmp_path / "private" / "fastq-kernels"
    assert stored.refusals() == []
    fastq.show_versions()
    assert "not cached in" not in capsys.readouterr().out


def test_files_that_are_not_trusted_are_named(chosen, tmp_path):
    used = chosen(tmp_path / "private")
    file = CachedFile(used, "kernel", KEY)
    file.save(b"code")
    assert stored.refusals() == []
    file.path.chmod(0o666)
    assert stored.refusals() == [f"{file.path} can be written to by others"]


def test_a_read_only_folder_is_used_if_it_holds_something(chosen, tmp_path, monkeypatch):
    def access(path, mode):
        return path != tmp_path / "read-only" / "fastq-kernels"

    monkeypatch.setattr(stored.os, "access", access)
    assert chosen(tmp_path / "read-only") == tmp_path / "package" / "engine" / "code" / "__pycache__" / "code"
    CachedFile(tmp_path / "read-only" / "fastq-kernels", "kernel", KEY).save(b"code")
    assert chosen(tmp_path / "read-only") == tmp_path / "read-only" / "fastq-kernels"


def test_no_folder_at_all(chosen, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(stored, "_user_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(stored, "__file__", str(tmp_path / "file" / "engine" / "code" / "stored.py"))
    assert chosen(tmp_path / "file") is None
    assert stored.refusals() == []


@pytest.mark.parametrize("platform", ["win32", "darwin", "linux"])
def test_folder_of_the_user(platform, monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(stored.sys, "platform", platform)
    expected = {"win32": "AppData/Local", "darwin": "Library/Caches", "linux": ".cache"}
    assert stored._user_folder() == tmp_path / expected[platform]


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
