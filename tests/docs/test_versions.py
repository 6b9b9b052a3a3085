"""docs/versions.py: pages of versions side by side, on a branch that need not be there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "versions.py"


def git(folder, *arguments):
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A repository with a remote one, and a built site in it."""
    git(tmp_path, "init", "-q", "--bare", "remote")
    git(tmp_path, "clone", "-q", tmp_path / "remote", "checkout")
    (tmp_path / "checkout" / "site").mkdir()
    (tmp_path / "checkout" / "site" / "index.html").write_text("pages")
    (tmp_path / "checkout" / "source").touch()
    git(tmp_path / "checkout", "add", "source")
    git(tmp_path / "checkout", "commit", "-qm", "source")
    return tmp_path / "checkout"


def test_versions_lie_side_by_side_and_the_newest_release_is_first(checkout):
    remote, menus = checkout.with_name("remote"), []
    for version in ("v0.2.0rc1", "main", "main", "v0.10.0", "v0.9.0"):
        command = [sys.executable, SCRIPT, "site", version, "https://pages/"]
        subprocess.run(command, cwd=checkout, check=True, capture_output=True)
        menus.append([each["name"] for each in json.loads(git(remote, "show", "gh-pages:versions.json"))])
    first = ["main", "v0.2.0rc1"]
    assert menus == [["v0.2.0rc1"], first, first, ["v0.10.0", *first], ["v0.10.0", "v0.9.0", *first]]
    files = set(git(remote, "ls-tree", "-r", "--name-only", "gh-pages").split())
    assert files == {".nojekyll", "index.html", "versions.json", *(f"{name}/index.html" for name in menus[-1])}
    assert "url=v0.10.0/" in git(remote, "show", "gh-pages:index.html")
    assert git(remote, "log", "--format=%s", "--reverse", "gh-pages").split("\n")[0] == "Pages of v0.2.0rc1"


def test_what_cannot_be_written_is_told(checkout):
    checkout.with_name("remote").rename(checkout.with_name("elsewhere"))
    command = [sys.executable, SCRIPT, "site", "main", "https://pages/"]
    done = subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("the branch gh-pages was not written\n")
