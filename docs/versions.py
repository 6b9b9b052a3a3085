"""Put a built site next to those of other versions: `python docs/versions.py FOLDER VERSION URL`.

The branch gh-pages has a folder for each version, `versions.json`, which the pages' menu of versions reads, and an
index.html that leads to the newest release, or to main before the first release.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BRANCH = "gh-pages"


def published(pages: Path, site: Path, version: str, url: str) -> None:
    """Write the pages of a version into the folder of all, and what says which ones there are."""
    shutil.rmtree(pages / version, ignore_errors=True)
    shutil.copytree(site, pages / version)
    found = sorted((path.parent.name for path in pages.glob("*/index.html")), key=_age, reverse=True)
    menu = [{"name": name, "version": name, "url": f"{url.rstrip('/')}/{name}/"} for name in found]
    (pages / "versions.json").write_text(json.dumps(menu, indent=1) + "\n", encoding="utf-8")
    newest = f'<!doctype html><meta http-equiv="refresh" content="0; url={found[0]}/">\n'
    (pages / "index.html").write_text(newest, encoding="utf-8")
    (pages / ".nojekyll").touch()  # folders that begin with "_" are pages, too


def _age(version: str) -> tuple[int, ...]:
    """Order versions: those of a release by their numbers, behind them main, then all that is neither."""
    parts = version.removeprefix("v").split(".")
    return (1, *map(int, parts)) if all(map(str.isdecimal, parts)) else (version == "main",)


def main(site: str, version: str, url: str) -> None:
    """Check out the branch, add the version, and push."""

    def git(*arguments: str) -> bool:
        return subprocess.run(["git", *arguments], check=False).returncode == 0

    with tempfile.TemporaryDirectory() as folder:
        if git("fetch", "origin", BRANCH):
            made = git("worktree", "add", "--detach", folder, "FETCH_HEAD")
        else:  # a branch without a past
            made = git("worktree", "add", "--detach", "--no-checkout", folder)
            made = made and git("-C", folder, "symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
        if not made:
            raise SystemExit(f"the branch {BRANCH} can't be made")
        published(Path(folder), Path(site), version, url)
        who = ("-c", "user.name=docs", "-c", "user.email=docs@localhost")
        commit = ("commit", "--allow-empty", "-qm", f"Pages of {version}")  # where the same is built again
        done = git("-C", folder, "add", "-A") and git("-C", folder, *who, *commit)
        if not done or not git("-C", folder, "push", "origin", f"HEAD:{BRANCH}"):
            raise SystemExit(f"the branch {BRANCH} was not written")


if __name__ == "__main__":
    main(*sys.argv[1:])
