from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.licence_audit import inventory
from examples.licence_audit.inventory import FolderError, discover
from tests.examples.distributions import install

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


def test_discover_finds_every_kind_of_distribution_at_any_depth_in_order(tmp_path: Path) -> None:
    install(tmp_path / "venv/lib/site-packages", "zeta")
    install(tmp_path / "venv/lib/site-packages/alpha/_vendor", "beta")
    (tmp_path / "old-2.0.egg-info").mkdir()
    (tmp_path / "older-1.0.egg-info").write_text("Name: older\nVersion: 1.0\n")
    (tmp_path / "oldest-0.1-py3.11.egg/EGG-INFO").mkdir(parents=True)

    found = discover(str(tmp_path))

    assert [(item.shown, item.kind) for item in found.items] == [
        ("old-2.0.egg-info", "egg-info"),
        ("older-1.0.egg-info", "egg-info file"),
        ("oldest-0.1-py3.11.egg/EGG-INFO", "egg-info"),
        ("venv/lib/site-packages/alpha/_vendor/beta-1.0.dist-info", "dist-info"),
        ("venv/lib/site-packages/zeta-1.0.dist-info", "dist-info"),
    ]
    assert found.remarks == ()


def test_discover_enters_each_folder_once_when_links_make_a_loop(tmp_path: Path) -> None:
    install(tmp_path / "lib", "zeta")
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "lib" / "loop").symlink_to("..")
    (tmp_path / "self").symlink_to("self")

    found = discover(str(tmp_path))

    assert [item.shown for item in found.items] == ["lib/zeta-1.0.dist-info"]


def test_discover_says_that_links_out_of_the_folder_were_not_followed(tmp_path: Path) -> None:
    install(tmp_path / "elsewhere", "hidden")
    install(tmp_path / "here", "zeta")
    (tmp_path / "here" / "out").symlink_to(tmp_path / "elsewhere")

    found = discover(str(tmp_path / "here"))

    assert [item.label for item in found.items] == ["zeta 1.0"]
    assert found.remarks == ("1 links that lead out of the folder were not followed",)


def test_discover_follows_a_link_that_is_a_distribution(tmp_path: Path) -> None:
    store = install(tmp_path / "store", "zeta")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / store.name).symlink_to(store)

    assert [item.shown for item in discover(str(tmp_path / "here")).items] == [store.name]


def test_discover_leaves_out_a_name_that_is_not_utf8_and_says_so(tmp_path: Path) -> None:
    install(tmp_path, "zeta")
    os.mkdir(os.fsencode(tmp_path) + b"/b\xffd-1.0.dist-info")

    found = discover(str(tmp_path))

    assert [item.label for item in found.items] == ["zeta 1.0"]
    assert len(found.remarks) == 1
    assert "not valid UTF-8" in found.remarks[0]


def test_discover_stops_at_its_bound_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        install(tmp_path / f"site{number}", "zeta")
    monkeypatch.setattr(inventory, "FOLDERS_MAX", 3)

    found = discover(str(tmp_path))

    assert len(found.items) == 2
    assert "not complete" in found.remarks[0]


def test_discover_copes_with_very_many_files(tmp_path: Path) -> None:
    install(tmp_path, "zeta")
    for number in range(5_000):
        os.close(os.open(tmp_path / f"module{number}.py", os.O_CREAT | os.O_WRONLY))

    assert len(discover(str(tmp_path)).items) == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path / "missing", "no such folder"),
        (lambda path: _file(path), "is not a folder"),
        (lambda path: _empty(path), "no Python distribution found"),
        (lambda path: _loop(path), "cannot be opened"),
        (lambda path: path / "nul\0byte", "cannot be opened"),
        (lambda path: path / ("x" * 300), "cannot be opened"),
        (lambda path: _not_utf8(path), "not valid UTF-8"),
    ],
)
def test_a_folder_that_cannot_be_audited_is_refused_in_one_line(tmp_path: Path, make: object, says: str) -> None:
    assert callable(make)
    folder = str(make(tmp_path))

    with pytest.raises(FolderError, match=says) as caught:
        discover(folder)

    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_a_folder_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    with _open_folder() as folder:
        (folder / "private").mkdir(mode=0o700)

        with _as_nobody(), pytest.raises(FolderError, match="may not be read by this user"):
            discover(str(folder / "private"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_a_folder_inside_that_may_not_be_read_is_a_remark() -> None:
    with _open_folder() as folder:
        install(folder / "site", "zeta")
        (folder / "private").mkdir(mode=0o700)

        with _as_nobody():
            found = discover(str(folder))

    assert [item.label for item in found.items] == ["zeta 1.0"]
    assert found.remarks == ("private: cannot be listed (Permission denied), not searched",)


@contextmanager
def _open_folder() -> Iterator[Path]:
    """Give a folder that other accounts can enter, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def _file(path: Path) -> Path:
    (path / "file").touch()
    return path / "file"


def _empty(path: Path) -> Path:
    (path / "empty").mkdir()
    return path / "empty"


def _loop(path: Path) -> Path:
    (path / "loop").symlink_to("loop")
    return path / "loop"


def _not_utf8(path: Path) -> str:
    name = os.fsencode(path) + b"/\xff\xfe"
    os.mkdir(name)
    return os.fsdecode(name)
