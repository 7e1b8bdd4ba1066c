from __future__ import annotations

import os
from typing import TYPE_CHECKING

from examples.licence_audit import evidence
from examples.licence_audit.evidence import LicenceTexts, Metadata, read_licence_texts, read_metadata
from examples.licence_audit.inventory import Item, discover
from tests.examples.distributions import install

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def only(site: Path) -> Item:
    (item,) = discover(str(site)).items
    return item


def texts_of(site: Path) -> LicenceTexts:
    item = only(site)
    return read_licence_texts(item, read_metadata(item).license_files)


def test_metadata_is_read_from_the_headers_only(tmp_path: Path) -> None:
    headers = (
        "License-Expression: MIT",
        "License-File: LICENSE",
        "Classifier: License :: OSI Approved :: MIT License",
        "Classifier: Topic :: Database",
    )
    install(tmp_path, "zeta", headers=headers)

    metadata = read_metadata(only(tmp_path))

    assert metadata == Metadata(
        name="zeta",
        version="1.0",
        license_expression="MIT",
        classifiers=("OSI Approved :: MIT License",),
        license_files=("LICENSE",),
    )


def test_missing_metadata_is_a_fault(tmp_path: Path) -> None:
    (install(tmp_path, "zeta") / "METADATA").unlink()

    metadata = read_metadata(only(tmp_path))

    assert [(fault.subject, fault.problem) for fault in metadata.faults] == [("METADATA", "does not exist")]


def test_metadata_without_sense_is_a_fault(tmp_path: Path) -> None:
    (install(tmp_path, "zeta") / "METADATA").write_bytes(os.urandom(5000).replace(b"\0", b"x"))

    metadata = read_metadata(only(tmp_path))

    assert any("has no Name" in fault.problem for fault in metadata.faults)


def test_binary_metadata_is_a_fault(tmp_path: Path) -> None:
    (install(tmp_path, "zeta") / "METADATA").write_bytes(b"\0" * 100)

    assert any("binary" in fault.problem for fault in read_metadata(only(tmp_path)).faults)


def test_metadata_that_is_a_folder_or_a_pipe_is_a_fault(tmp_path: Path) -> None:
    for name, make in (("folder", os.mkdir), ("pipe", os.mkfifo)):
        info = install(tmp_path / name, "zeta")
        (info / "METADATA").unlink()
        make(info / "METADATA")

        (fault,) = read_metadata(only(tmp_path / name)).faults

        assert fault.problem == "is not a regular file"


def test_metadata_in_latin_1_is_read_and_flagged(tmp_path: Path) -> None:
    info = install(tmp_path, "zeta")
    (info / "METADATA").write_bytes("Name: zeta\nVersion: 1.0\nAuthor: José\n\n".encode("latin-1"))

    metadata = read_metadata(only(tmp_path))

    assert metadata.name == "zeta"
    assert [fault.problem for fault in metadata.faults] == ["is not valid UTF-8; read as Latin-1"]


def test_headers_that_never_end_are_read_up_to_the_bound(tmp_path: Path) -> None:
    (install(tmp_path, "zeta") / "METADATA").write_bytes(b"Name: zeta\nVersion: 1.0\n" + b"X-Filler: x\n" * 200_000)

    (fault,) = read_metadata(only(tmp_path)).faults

    assert "no end of its headers" in fault.problem


def test_a_field_of_unknown_counts_as_none(tmp_path: Path) -> None:
    install(tmp_path, "zeta", headers=("License: UNKNOWN",))

    assert read_metadata(only(tmp_path)).license_field == ""


def test_licence_texts_are_found_wherever_tools_put_them(tmp_path: Path) -> None:
    install(
        tmp_path,
        "zeta",
        headers=("License-File: terms.txt",),
        files={
            "licenses/LICENSE": "one",
            "licenses/src/pkg/_vendor/dep/LICENSE": "two",
            "COPYING.LESSER": "three",
            "terms.txt": "four",
            "NOTICE": "five",
            "../zeta/LICENCE.md": "six",
            "top_level.txt": "no",
        },
        record=("zeta/LICENCE.md", "zeta/license.py", "zeta/licenses.json", "../../etc/LICENSE", "/etc/LICENSE"),
    )

    found = {(text.path.removeprefix("zeta-1.0.dist-info/"), text.role) for text in texts_of(tmp_path).texts}

    assert found == {
        ("licenses/LICENSE", "own"),
        ("licenses/src/pkg/_vendor/dep/LICENSE", "bundled"),
        ("COPYING.LESSER", "own"),
        ("terms.txt", "own"),
        ("NOTICE", "notice"),
        ("zeta/LICENCE.md", "bundled"),
    }


def test_a_licence_inside_the_package_is_its_own_when_there_is_no_other(tmp_path: Path) -> None:
    files = {"../zeta/LICENSE": "one", "../zeta/_vendor/dep/LICENSE": "two"}
    install(tmp_path, "zeta", files=files, record=("zeta/LICENSE", "zeta/_vendor/dep/LICENSE"))

    assert [(text.path, text.role) for text in texts_of(tmp_path).texts] == [
        ("zeta/LICENSE", "own"),
        ("zeta/_vendor/dep/LICENSE", "bundled"),
    ]


def test_an_egg_info_directory_in_a_source_tree_finds_the_licence_beside_it(tmp_path: Path) -> None:
    egg = tmp_path / "zeta.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: zeta\nVersion: 1.0\nLicense-File: LICENSE\n")
    (tmp_path / "LICENSE").write_text("terms")

    assert [text.path for text in texts_of(tmp_path).texts] == ["LICENSE"]


def test_a_listed_file_that_is_missing_or_outside_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    install(tmp_path / "site", "zeta", headers=("License-File: LICENSE", "License-File: ../../secret"))

    found = texts_of(tmp_path / "site")

    assert found.texts == ()
    assert [fault.subject for fault in found.faults] == ["LICENSE", "../../secret"]


def test_of_a_licence_file_of_50_megabytes_a_bounded_prefix_is_read(tmp_path: Path) -> None:
    info = install(tmp_path, "zeta")
    with open(info / "LICENSE", "wb") as file:
        file.write(b"Permission is hereby granted. ")
        file.truncate(50_000_000)
        file.seek(30)
        file.write(b"word " * 60_000)

    found = texts_of(tmp_path)

    (text,) = found.texts
    assert text.is_partial
    assert text.byte_count == 50_000_000
    assert len(text.text) == evidence.TEXT_BYTES_MAX
    assert "only the first" in found.faults[0].problem


def test_all_texts_of_a_distribution_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "TEXTS_BYTES_MAX", 1000)
    install(tmp_path, "zeta", files={f"licenses/LICENSE{number}": "x" * 300 for number in range(9)})

    found = texts_of(tmp_path)

    assert sum(len(text.text) for text in found.texts) == 1000
    assert "not read" in found.faults[-1].problem


def test_a_prefix_may_end_within_a_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "TEXT_BYTES_MAX", 10)
    install(tmp_path, "zeta", files={"LICENSE": "123456789é and more"})

    found = texts_of(tmp_path)

    assert found.texts[0].text == "123456789"
    assert len(found.faults) == 1


def test_texts_in_other_encodings_are_read(tmp_path: Path) -> None:
    files = {"LICENSE.1": "Olá".encode("utf-16"), "LICENSE.2": "Olá".encode("latin-1"), "LICENSE.3": b"\x7fELF\0\1"}
    install(tmp_path, "zeta", files=files)

    found = texts_of(tmp_path)

    assert [text.text for text in found.texts] == ["Olá", "Olá", ""]
    assert [fault.problem for fault in found.faults] == [
        "is not valid UTF-8; read as Latin-1",
        "holds binary data, not text",
    ]


def test_a_link_loop_in_place_of_a_licence_is_a_fault(tmp_path: Path) -> None:
    info = install(tmp_path, "zeta")
    (info / "LICENSE").symlink_to("LICENSE")
    (info / "licenses").symlink_to(".")

    found = texts_of(tmp_path)

    assert found.texts == ()
    assert "cannot be opened" in found.faults[0].problem


def test_a_broken_record_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    info = install(tmp_path, "zeta", files={"../zeta/LICENSE": "terms"})
    (info / "RECORD").write_bytes(b'zeta/LICENSE,,\n"unclosed\xff\n' + b"x" * 200_000)

    found = texts_of(tmp_path)

    assert [text.path for text in found.texts] == ["zeta/LICENSE"]
    assert "is not valid CSV" in found.faults[0].problem
