"""Distributions on disk, as installers leave them, for the tests of the licence audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.licence_audit import catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def install(
    site: Path,
    name: str,
    version: str = "1.0",
    *,
    headers: tuple[str, ...] = (),
    files: Mapping[str, str | bytes] | None = None,
    record: tuple[str, ...] = (),
) -> Path:
    """Lay a .dist-info directory below `site`; `files` are below it, unless their name begins with "../"."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *headers]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nA long description.\nName: not a header\n", encoding="utf-8")
    for below, content in (files or {}).items():
        path = info / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    if record:
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in record), encoding="utf-8")
    return info


def text(licence: str) -> str:
    """Return a licence's text as a package would carry it: with a copyright line of its own and other line breaks."""
    body = catalogue.texts()[licence].replace("<year>", "2024").replace("<copyright holders>", "Ada Lovelace")
    return f"Copyright (c) 2024 Ada Lovelace\n\n{body}"
