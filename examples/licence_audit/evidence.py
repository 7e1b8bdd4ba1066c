"""Read what a distribution says about its licence: its metadata and its licence files.

Nothing here raises for what is found on disk: whatever cannot be read becomes a fault in the result.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import stat
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from email.message import Message

    from examples.licence_audit.inventory import Item

METADATA_BYTES_MAX = 1 << 20
FIELD_CHARACTERS_MAX = 1 << 16
TEXT_BYTES_MAX = 1 << 18  # The longest common licence has 35 KB; files beyond this are collections, read in part.
TEXTS_BYTES_MAX = 1 << 20  # Of one distribution, as the texts are kept in the journal as evidence.
TEXTS_MAX = 150
RECORD_BYTES_MAX = 1 << 24
LISTED_FILES_MAX = 5_000
LISTED_DEPTH_MAX = 12

_LICENCE_NAME = re.compile(r"(?i)(^|[._-])(un)?licen[cs]es?([._-]|$)|^copying|^copyright|^notice|licen[cs]e$")
_NOT_A_TEXT = re.compile(
    r"(?i)\.(bin|c|cpp|css|csv|dat|db|dll|exe|gz|h|html|js|json|map|png|py[cidx]?|rs|so|svg|toml|ts|xml|xz|ya?ml|zip)$"
)
_NOTICE_NAME = re.compile(
    r"(?i)^(notice|authors|contributors|copyright|readme|changelog|code_of_conduct|thanks|history)"
)
_BUNDLED_FOLDER = re.compile(r"(?i)^_?(vendor(ed)?|third[-_ ]?party|extern(al)?|bundled|subprojects|deps|crates)$")
_DIRECTORY_NAMES = frozenset({"licenses", "license", "licences", "src"})

Role = Literal["own", "bundled", "notice"]


class Fault(msgspec.Struct, frozen=True):
    """Something on disk that could not be read as it should be."""

    subject: str
    problem: str


class Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    license_expression: str = ""
    license_field: str = ""
    classifiers: tuple[str, ...] = ()  # Those about licences, without "License :: ".
    license_files: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


class LicenceText(msgspec.Struct, frozen=True):
    """A licence file; `sha256` is of the bytes that were read, which are all of them unless `is_partial`."""

    path: str  # Below the folder that holds the metadata, with "/" between its parts.
    role: Role
    byte_count: int
    sha256: str
    text: str
    is_partial: bool = False


class LicenceTexts(msgspec.Struct, frozen=True):
    texts: tuple[LicenceText, ...] = ()
    faults: tuple[Fault, ...] = ()


LISTED_AND_MISSING = "is listed as License-File and does not exist"


class _UnreadableError(Exception):
    """A file that cannot be read; the text says why."""


def read_metadata(item: Item) -> Metadata:
    """Return what METADATA or PKG-INFO says; a missing or broken file leaves the fields empty and adds a fault."""
    location = Path(item.location)
    if item.kind == "egg-info file":
        path = location
    else:
        path = location / ("METADATA" if item.kind == "dist-info" else "PKG-INFO")
    try:
        content, size = _read(path, METADATA_BYTES_MAX)
    except _UnreadableError as error:
        return Metadata(faults=(Fault(path.name, str(error)),))
    faults: list[Fault] = []
    if len(content) < size:
        content = content[: _whole_characters(content)]
    text = _decoded(content, path.name, faults)
    # Only the headers are parsed; the description below them may be of any size.
    headers = HeaderParser().parsestr(text, headersonly=True)
    if size > METADATA_BYTES_MAX and "\n\n" not in text.replace("\r\n", "\n"):
        faults.append(Fault(path.name, f"has {size} bytes and no end of its headers within {METADATA_BYTES_MAX}"))
    name, version = _field(headers, "Name"), _field(headers, "Version")
    missing = [field for field, value in (("Name", name), ("Version", version)) if not value]
    if missing:
        faults.append(Fault(path.name, f"has no {' and no '.join(missing)} field"))
    return Metadata(
        name=name,
        version=version,
        license_expression=_field(headers, "License-Expression"),
        license_field=_field(headers, "License"),
        classifiers=tuple(sorted(_licence_classifiers(_fields(headers, "Classifier")))),
        license_files=tuple(_fields(headers, "License-File")[:TEXTS_MAX]),
        faults=tuple(faults),
    )


def read_licence_texts(item: Item, license_files: Iterable[str]) -> LicenceTexts:
    """Return the licence files of a distribution, its own before bundled ones, each read up to a bound.

    Looked at, in this order: the metadata directory, the files METADATA lists, and files RECORD lists whose
    name says licence.
    """
    base = Path(item.location).parent
    faults: list[Fault] = []
    candidates = _candidates(item, license_files, faults)
    texts: list[LicenceText] = []
    byte_count = 0
    for path in sorted(candidates, key=lambda path: (_ROLES.index(candidates[path]), path)):
        shown = _relative(path, base)
        if len(texts) >= TEXTS_MAX or byte_count >= TEXTS_BYTES_MAX:
            faults.append(
                Fault(shown, f"not read: more than {TEXTS_MAX} licence files or {TEXTS_BYTES_MAX} bytes of them")
            )
            break
        try:
            content, size = _read(Path(path), min(TEXT_BYTES_MAX, TEXTS_BYTES_MAX - byte_count))
        except _UnreadableError as error:
            faults.append(Fault(shown, str(error)))
            continue
        if len(content) < size:
            faults.append(Fault(shown, f"has {size} bytes, of which only the first {len(content)} were read"))
        byte_count += len(content)
        if len(content) < size:
            # A prefix may end within a character, which is no fault of the file.
            content = content[: _whole_characters(content)]
        text = _decoded(content, shown, faults)
        digest = hashlib.sha256(content).hexdigest()
        texts.append(LicenceText(shown, candidates[path], size, digest, text, is_partial=len(content) < size))
    return LicenceTexts(tuple(texts), tuple(faults))


_ROLES: tuple[Role, ...] = ("own", "notice", "bundled")


def _candidates(item: Item, license_files: Iterable[str], faults: list[Fault]) -> dict[str, Role]:
    """Return the paths of licence files with their roles."""
    location = Path(item.location)
    base = location.parent
    roles: dict[str, Role] = {}
    if item.kind != "egg-info file":
        for below in _files_below(location, faults):
            in_licences = below.parts[0].lower() in ("licenses", "license_files")
            if in_licences or (len(below.parts) == 1 and _is_licence_name(below.name)):
                roles[os.fspath(location / below)] = _role(below.parts)
    for listed in license_files:
        # The place depends on the tool that built the distribution; an egg-info directory leaves it in the sources.
        places = [location / "licenses" / listed, location / listed, base / listed]
        place = next((path for path in places if _is_below(path, base) and path.is_file()), None)
        if place is None:
            faults.append(Fault(listed, LISTED_AND_MISSING))
        else:
            roles.setdefault(os.fspath(place), _role(Path(listed).parts))
    for recorded in _recorded(location, faults):
        path = base / recorded
        if path.is_file():
            # A package's own folder may hold its licence, but so may those of what it bundles: the metadata decides.
            has_own = "own" in roles.values()
            is_own = not has_own and len(recorded.parts) == 2 and _role(recorded.parts) == "own"
            roles.setdefault(os.fspath(path), "own" if is_own else "bundled")
    return roles


def _files_below(folder: Path, faults: list[Fault]) -> Iterator[Path]:
    """Return the files below a metadata directory, relative to it; links to directories are not followed."""
    count = 0
    for here, folders, names in os.walk(folder, onerror=lambda error: faults.append(_listing_fault(error))):
        relative = Path(here).relative_to(folder)
        folders[:] = sorted(folders) if len(relative.parts) < LISTED_DEPTH_MAX else []
        for name in sorted(names):
            count += 1
            if count > LISTED_FILES_MAX:
                faults.append(
                    Fault(folder.name, f"has more than {LISTED_FILES_MAX} files; the others were not looked at")
                )
                return
            yield relative / name


def _listing_fault(error: OSError) -> Fault:
    return Fault(Path(str(error.filename)).name, f"cannot be listed ({error.strerror})")


def _recorded(location: Path, faults: list[Fault]) -> Iterator[Path]:
    """Return the files RECORD lists outside the metadata directory whose name says licence."""
    path = location / "RECORD"
    if not path.is_file():
        return
    try:
        content, _ = _read(path, RECORD_BYTES_MAX)
    except _UnreadableError as error:
        faults.append(Fault("RECORD", str(error)))
        return
    try:
        for row in csv.reader(io.StringIO(content.decode("utf-8", "replace"))):
            recorded = Path(row[0]) if row else Path()
            if recorded.is_absolute() or ".." in recorded.parts or len(recorded.parts) < 2:
                continue
            if not recorded.parts[0].endswith(".dist-info") and _is_licence_name(recorded.name):
                yield recorded
    except csv.Error as error:
        faults.append(Fault("RECORD", f"is not valid CSV ({error})"))


def _is_licence_name(name: str) -> bool:
    return bool(_LICENCE_NAME.search(name)) and not _NOT_A_TEXT.search(name)


def _role(parts: tuple[str, ...]) -> Role:
    folders = parts[:-1]
    if any(_BUNDLED_FOLDER.match(part) for part in folders):
        return "bundled"
    if _NOTICE_NAME.match(parts[-1]):
        return "notice"
    nested = [part for part in folders if part.lower() not in _DIRECTORY_NAMES]
    return "bundled" if len(nested) > 1 else "own"


def _is_below(path: Path, base: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(base)


def _relative(path: str, base: Path) -> str:
    shown = os.path.relpath(path, base).replace(os.sep, "/")
    return shown.encode("utf-8", "backslashreplace").decode()


def _read(path: Path, bytes_max: int) -> tuple[bytes, int]:
    """Return at most the first `bytes_max` bytes of a regular file and its size; _UnreadableError says why not."""
    try:
        # Without O_NONBLOCK opening a named pipe would wait for a writer that never comes.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise _UnreadableError("does not exist") from None
    except (OSError, ValueError) as error:
        raise _UnreadableError(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _UnreadableError("is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(bytes_max), status.st_size
    except OSError as error:
        raise _UnreadableError(f"cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)


def _decoded(content: bytes, subject: str, faults: list[Fault]) -> str:
    """Return the text of a file; what is neither UTF-8 nor UTF-16 with a mark is taken as Latin-1 and flagged."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        faults.append(Fault(subject, "holds binary data, not text"))
        return ""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        faults.append(Fault(subject, "is not valid UTF-8; read as Latin-1"))
        return content.decode("latin-1")


def _whole_characters(content: bytes) -> int:
    """Return the length without a UTF-8 character that is cut off at the end."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(content) - back if wanted > back else len(content)
        if byte < 0x80:
            break
    return len(content)


def _field(headers: Message, name: str) -> str:
    values = _fields(headers, name)
    return values[0] if values else ""


def _fields(headers: Message, name: str) -> list[str]:
    values = (str(value).strip()[:FIELD_CHARACTERS_MAX] for value in headers.get_all(name, []))
    return [value for value in values if value and value.upper() != "UNKNOWN"]


def _licence_classifiers(classifiers: Iterable[str]) -> set[str]:
    return {text.removeprefix("License ::").strip() for text in classifiers if text.startswith("License ::")}
