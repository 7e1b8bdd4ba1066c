"""Find every Python distribution below a folder, whatever state the folder is in."""

from __future__ import annotations

import os
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPTH_MAX = 24
FOLDERS_MAX = 200_000
DISTRIBUTIONS_MAX = 20_000
REMARKS_MAX = 100
_SKIPPED_NAMES = frozenset({"__pycache__", ".git", ".hg", ".svn"})

Kind = Literal["dist-info", "egg-info", "egg-info file"]


class FolderError(Exception):
    """The folder to audit cannot be used; the message says why and what to do."""


class Item(msgspec.Struct, frozen=True):
    """One installed distribution, as found on disk and before anything in it was read."""

    location: str  # Absolute path of the metadata directory (or file).
    shown: str  # The same below the audited folder, with "/" between its parts.
    kind: Kind

    @property
    def label(self) -> str:
        """What to call it when its metadata gives no name: "certifi 2026.10.19" of certifi-2026.10.19.dist-info."""
        name = self.shown.rsplit("/", 1)[-1].removesuffix(".dist-info").removesuffix(".egg-info")
        return " ".join(name.split("-")[:2])


class Inventory(msgspec.Struct, frozen=True):
    folder: str
    items: tuple[Item, ...]
    remarks: tuple[str, ...] = ()  # Why the inventory may be incomplete; empty when it is not.


def discover(folder: str) -> Inventory:
    """Return every distribution below `folder`, sorted by path, and what could not be looked into.

    Directories reached twice (links, loops) are entered once; links that lead out of the folder only when they
    are a distribution's metadata themselves. FolderError: `folder` cannot be listed or holds no distribution.
    """
    root = _checked(folder)
    search = _Search(root)
    items = tuple(sorted(search.run(), key=lambda item: item.shown))
    if not items:
        raise FolderError(
            f"{folder}: no Python distribution found below it ({search.folder_count} folders searched for *.dist-info "
            f"and *.egg-info); give the folder of a virtual environment or a site-packages folder"
        )
    return Inventory(str(root), items, search.remarks)


def _checked(folder: str) -> Path:
    try:
        root = Path(folder).expanduser().resolve(strict=True)
        if not root.is_dir():
            raise FolderError(f"{folder}: is not a folder; give the folder that holds the installed distributions")
        with os.scandir(root):
            pass
        os.fspath(root).encode()
    except UnicodeEncodeError:
        raise FolderError(f"{folder!r}: the name is not valid UTF-8; rename the folder or link to it") from None
    except FileNotFoundError:
        raise FolderError(
            f"{folder}: no such folder; check the path, or leave it out to audit this environment"
        ) from None
    except PermissionError:
        raise FolderError(f"{folder}: may not be read by this user; give read access or run as its owner") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise FolderError(f"{folder!r}: cannot be opened ({error}); give a folder that can be listed") from None
    return root


class _Search:
    """A breadth-first walk that enters each directory once; links are followed after all real directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._remarks: list[str] = []
        self.folder_count = 0
        self._entered: set[tuple[int, int]] = set()
        self._outside_count = 0

    def run(self) -> Iterator[Item]:
        folders: deque[tuple[Path, int]] = deque([(self.root, 0)])
        links: deque[tuple[Path, int]] = deque()
        found_count = 0
        while folders or links:
            folder, depth = folders.popleft() if folders else links.popleft()
            if self.folder_count >= FOLDERS_MAX or found_count >= DISTRIBUTIONS_MAX:
                self._remarks.append(
                    f"stopped after {self.folder_count} folders and {found_count} distributions: the audit is not "
                    f"complete; give a smaller folder"
                )
                break
            if not self._enter(folder):
                continue
            for entry, is_link in self._listed(folder):
                item = self._item(entry)
                if item is not None:
                    found_count += 1
                    yield item
                elif depth >= DEPTH_MAX:
                    self._remarks.append(f"{self._shown(entry.path)}: more than {DEPTH_MAX} folders deep, not searched")
                else:
                    (links if is_link else folders).append((Path(entry.path), depth + 1))
        if self._outside_count:
            self._remarks.append(f"{self._outside_count} links that lead out of the folder were not followed")

    @property
    def remarks(self) -> tuple[str, ...]:
        """What keeps the inventory from being complete, the first hundred of it."""
        more_count = len(self._remarks) - REMARKS_MAX
        more = (f"and {more_count} more such places",) if more_count > 0 else ()
        return (*self._remarks[:REMARKS_MAX], *more)

    def _enter(self, folder: Path) -> bool:
        """Return whether `folder` is entered for the first time."""
        try:
            status = folder.stat()
        except OSError:
            return False
        place = (status.st_dev, status.st_ino)
        if place in self._entered:
            return False
        self._entered.add(place)
        self.folder_count += 1
        return True

    def _listed(self, folder: Path) -> list[tuple[os.DirEntry[str], bool]]:
        """Return the sub-directories, and metadata files, of a folder by name; True marks links."""
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._remarks.append(f"{self._shown(os.fspath(folder))}: cannot be listed ({error.strerror}), not searched")
            return []
        kept: list[tuple[os.DirEntry[str], bool]] = []
        for entry in listed:
            if entry.name in _SKIPPED_NAMES:
                continue
            try:
                is_link, is_folder = entry.is_symlink(), entry.is_dir()
                is_metadata = entry.name.endswith((".dist-info", ".egg-info"))
                if not is_folder and not (is_metadata and entry.is_file()):
                    continue
                if is_link and not is_metadata and not self._leads_inside(entry.path):
                    self._outside_count += 1
                    continue
            except OSError:
                continue
            kept.append((entry, is_link))
        return kept

    def _leads_inside(self, path: str) -> bool:
        try:
            return Path(path).resolve(strict=True).is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def _item(self, entry: os.DirEntry[str]) -> Item | None:
        is_folder = entry.is_dir()
        if entry.name.endswith(".dist-info") and is_folder:
            kind: Kind = "dist-info"
        elif entry.name.endswith(".egg-info"):
            kind = "egg-info" if is_folder else "egg-info file"
        elif entry.name == "EGG-INFO" and is_folder:
            kind = "egg-info"
        else:
            return None
        if self._is_duplicate(entry):
            return None
        try:
            entry.path.encode()
        except UnicodeEncodeError:
            self._remarks.append(f"{self._shown(entry.path)}: the name is not valid UTF-8, not audited; rename it")
            return None
        return Item(location=entry.path, shown=self._shown(entry.path), kind=kind)

    def _is_duplicate(self, entry: os.DirEntry[str]) -> bool:
        status = entry.stat()
        place = (status.st_dev, status.st_ino)
        if stat.S_ISDIR(status.st_mode) and place in self._entered:
            return True
        self._entered.add(place)
        return False

    def _shown(self, path: str) -> str:
        relative = os.path.relpath(path, self.root).replace(os.sep, "/")
        return relative.encode("utf-8", "backslashreplace").decode()
