"""What is known about licences: their texts, what kind each is, and the names people give them."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache
from importlib import resources

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

_EXPRESSION_CHARACTERS_MAX = 2_000
_NESTING_MAX = 40  # Parentheses; whoever evaluates an expression recurses.


class Category(StrEnum):
    """What a licence asks of someone who ships the distribution, from least to most."""

    PUBLIC_DOMAIN = "public domain"
    PERMISSIVE = "permissive"
    WEAK_COPYLEFT = "weak copyleft"
    STRONG_COPYLEFT = "strong copyleft"
    NETWORK_COPYLEFT = "network copyleft"
    RESTRICTED = "restricted use"
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """Position in the order above; `and` in an expression takes the highest, `or` the lowest."""
        return list(Category).index(self)

    @property
    def needs_decision(self) -> bool:
        return self.rank >= Category.WEAK_COPYLEFT.rank


# The first pattern that matches the whole identifier decides. Identifiers are SPDX's; a GNU identifier may
# carry -only, -or-later or +. Whatever matches nothing is unknown and goes to a person.
_CATEGORIES: tuple[tuple[str, Category], ...] = (
    (r"CC0-1\.0|Unlicense|0BSD|WTFPL|MIT-0|blessing|CC-PDDC|SAX-PD.*|LicenseRef-Public-Domain", Category.PUBLIC_DOMAIN),
    (r"AGPL-.*|SSPL-1\.0-or-AGPL.*", Category.NETWORK_COPYLEFT),
    (r"GPL-.*|CC-BY-SA-.*|EUPL-.*|CECILL-(1|2)\..*|OSL-.*|Sleepycat", Category.STRONG_COPYLEFT),
    (r"LGPL-.*|MPL-.*|EPL-.*|CDDL-.*|CPL-.*|CECILL-C|MS-RL|APSL-.*|OFL-.*", Category.WEAK_COPYLEFT),
    (r"SSPL-.*|BUSL-.*|Elastic-.*|CC-BY-N[CD].*|JSON|PolyForm-.*|LicenseRef-Proprietary", Category.RESTRICTED),
    (
        r"MIT|MIT-.*|X11.*|BSD-.*|ISC|Apache-.*|PSF-.*|Python-.*|CNRI-.*|Zlib|zlib-.*|libpng.*|BSL-1\.0|HPND.*|ZPL-.*"
        r"|NCSA|UPL-.*|Unicode-.*|OpenSSL.*|curl|PostgreSQL|TCL|IJG.*|bzip2-.*|AFL-.*|Artistic-.*|BlueOak-.*|MulanPSL-.*"
        r"|CC-BY-\d.*|FTL|libtiff|NTP.*|ICU|W3C.*|Beerware|SMLNJ|CECILL-B|RSA-MD|Spencer-.*|TCP-wrappers|OLDAP-.*|Ruby",
        Category.PERMISSIVE,
    ),
)

# Exceptions that let a work link with the covered one: the pair is weak copyleft however strong the licence is.
_LINKING_EXCEPTION = re.compile(
    r"(?i).*(linking|classpath|GCC|libtool|OpenJDK|runtime|LLVM|Bootloader|font|bison|autoconf).*"
)

BSD_FAMILY = ("BSD-2-Clause", "BSD-3-Clause", "BSD-4-Clause", "0BSD", "BSD-3-Clause-Clear")
MIT_FAMILY = ("MIT", "MIT-0", "X11", "MIT-CMU")
GPL_FAMILY = ("GPL-2.0", "GPL-3.0", "GPL-2.0-only", "GPL-3.0-only", "GPL-2.0-or-later", "GPL-3.0-or-later")
LGPL_FAMILY = (
    "LGPL-2.0",
    "LGPL-2.1",
    "LGPL-3.0",
    "LGPL-2.1-only",
    "LGPL-3.0-only",
    "LGPL-2.1-or-later",
    "LGPL-3.0-or-later",
)
MPL_FAMILY = ("MPL-2.0", "MPL-1.1")
PYTHON_FAMILY = ("PSF-2.0", "Python-2.0", "Python-2.0.1", "CNRI-Python")
APACHE_FAMILY = ("Apache-2.0", "Apache-1.1")
PUBLIC_DOMAIN_FAMILY = ("LicenseRef-Public-Domain", "CC0-1.0", "Unlicense", "0BSD")

# Free-text licence names, lower case, with everything but letters, digits, "+" and "." removed. One name may
# mean several licences: then the licence text decides which.
NAMES: dict[str, tuple[str, ...]] = {
    "mit": ("MIT",),
    "mitlicense": ("MIT",),
    "themitlicense": ("MIT",),
    "themitlicensemit": ("MIT",),
    "mitlicensemit": ("MIT",),
    "expat": ("MIT",),
    "expatlicense": ("MIT",),
    "bsd": BSD_FAMILY,
    "bsdlicense": BSD_FAMILY,
    "bsdstyle": BSD_FAMILY,
    "bsdlike": BSD_FAMILY,
    "bsd2clause": ("BSD-2-Clause",),
    "bsd2clauselicense": ("BSD-2-Clause",),
    "2clausebsd": ("BSD-2-Clause",),
    "2clausebsdlicense": ("BSD-2-Clause",),
    "simplifiedbsd": ("BSD-2-Clause",),
    "freebsd": ("BSD-2-Clause",),
    "bsd3clause": ("BSD-3-Clause",),
    "bsd3clauselicense": ("BSD-3-Clause",),
    "3clausebsd": ("BSD-3-Clause",),
    "3clausebsdlicense": ("BSD-3-Clause",),
    "modifiedbsd": ("BSD-3-Clause",),
    "modifiedbsdlicense": ("BSD-3-Clause",),
    "newbsd": ("BSD-3-Clause",),
    "newbsdlicense": ("BSD-3-Clause",),
    "revisedbsd": ("BSD-3-Clause",),
    "apache": APACHE_FAMILY,
    "apachelicense": APACHE_FAMILY,
    "apachesoftwarelicense": APACHE_FAMILY,
    "apache2": ("Apache-2.0",),
    "apache2.0": ("Apache-2.0",),
    "apachev2": ("Apache-2.0",),
    "apachelicense2": ("Apache-2.0",),
    "apachelicense2.0": ("Apache-2.0",),
    "apachelicensev2": ("Apache-2.0",),
    "apachelicensev2.0": ("Apache-2.0",),
    "apachelicenseversion2": ("Apache-2.0",),
    "apachelicenseversion2.0": ("Apache-2.0",),
    "theapachelicenseversion2.0": ("Apache-2.0",),
    "apachesoftwarelicense2.0": ("Apache-2.0",),
    "apachesoftwarelicensev2": ("Apache-2.0",),
    "asl2.0": ("Apache-2.0",),
    "isc": ("ISC",),
    "isclicense": ("ISC",),
    "isclicenseiscl": ("ISC",),
    "psf": PYTHON_FAMILY,
    "psfl": PYTHON_FAMILY,
    "psflicense": PYTHON_FAMILY,
    "python": PYTHON_FAMILY,
    "pythonlicense": PYTHON_FAMILY,
    "pythonsoftwarefoundationlicense": PYTHON_FAMILY,
    "psf2.0": ("PSF-2.0",),
    "mpl": MPL_FAMILY,
    "mpl2": ("MPL-2.0",),
    "mpl2.0": ("MPL-2.0",),
    "mozillapubliclicense2.0": ("MPL-2.0",),
    "mozillapubliclicense2.0mpl2.0": ("MPL-2.0",),
    "mozillapubliclicenseversion2.0": ("MPL-2.0",),
    "mozillapubliclicense1.1mpl1.1": ("MPL-1.1",),
    "gpl": GPL_FAMILY,
    "gnugpl": GPL_FAMILY,
    "gplv2": ("GPL-2.0-only",),
    "gpl2": ("GPL-2.0-only",),
    "gplv2+": ("GPL-2.0-or-later",),
    "gpl2+": ("GPL-2.0-or-later",),
    "gplv3": ("GPL-3.0-only",),
    "gpl3": ("GPL-3.0-only",),
    "gplv3+": ("GPL-3.0-or-later",),
    "gpl3+": ("GPL-3.0-or-later",),
    "gnugeneralpubliclicensegpl": GPL_FAMILY,
    "gnugeneralpubliclicensev2gplv2": ("GPL-2.0-only",),
    "gnugeneralpubliclicensev2orlatergplv2+": ("GPL-2.0-or-later",),
    "gnugeneralpubliclicensev3gplv3": ("GPL-3.0-only",),
    "gnugeneralpubliclicensev3orlatergplv3+": ("GPL-3.0-or-later",),
    "gnugeneralpubliclicensev3": ("GPL-3.0-only",),
    "agplv3": ("AGPL-3.0-only",),
    "agplv3+": ("AGPL-3.0-or-later",),
    "gnuafferogeneralpubliclicensev3": ("AGPL-3.0-only",),
    "gnuafferogeneralpubliclicensev3agplv3": ("AGPL-3.0-only",),
    "gnuafferogeneralpubliclicensev3orlateragplv3+": ("AGPL-3.0-or-later",),
    "lgpl": LGPL_FAMILY,
    "gnulgpl": LGPL_FAMILY,
    "lgplv2": ("LGPL-2.0-only",),
    "lgplv2.1": ("LGPL-2.1-only",),
    "lgplv2.1+": ("LGPL-2.1-or-later",),
    "lgpl2.1+": ("LGPL-2.1-or-later",),
    "lgplv3": ("LGPL-3.0-only",),
    "lgpl3": ("LGPL-3.0-only",),
    "lgplv3+": ("LGPL-3.0-or-later",),
    "lgpl3+": ("LGPL-3.0-or-later",),
    "lgplwithexceptions": LGPL_FAMILY,
    "gnulibraryorlessergeneralpubliclicenselgpl": LGPL_FAMILY,
    "gnulessergeneralpubliclicensev2lgplv2": ("LGPL-2.0-only",),
    "gnulessergeneralpubliclicensev2orlaterlgplv2+": ("LGPL-2.0-or-later", "LGPL-2.1-or-later"),
    "gnulessergeneralpubliclicensev3lgplv3": ("LGPL-3.0-only",),
    "gnulessergeneralpubliclicensev3orlaterlgplv3+": ("LGPL-3.0-or-later",),
    "zpl": ("ZPL-2.1",),
    "zpl2.1": ("ZPL-2.1",),
    "zopepubliclicense": ("ZPL-2.1",),
    "zlib": ("Zlib",),
    "zliblibpnglicense": ("Zlib", "libpng-2.0"),
    "unlicense": ("Unlicense",),
    "theunlicenseunlicense": ("Unlicense",),
    "publicdomain": PUBLIC_DOMAIN_FAMILY,
    "cc0": ("CC0-1.0",),
    "cc01.0": ("CC0-1.0",),
    "cc01.0universalcc01.0publicdomaindedication": ("CC0-1.0",),
    "boostsoftwarelicense1.0bsl1.0": ("BSL-1.0",),
    "eclipsepubliclicense1.0epl1.0": ("EPL-1.0",),
    "eclipsepubliclicense2.0epl2.0": ("EPL-2.0",),
    "europeanunionpubliclicense1.2eupl1.2": ("EUPL-1.2",),
    "hpnd": ("HPND",),
    "historicalpermissionnoticeanddisclaimerhpnd": ("HPND", "MIT-CMU"),
    "artisticlicense": ("Artistic-2.0", "Artistic-1.0", "Artistic-1.0-Perl"),
    "academicfreelicenseafl": ("AFL-3.0",),
    "universalpermissivelicenseupl": ("UPL-1.0",),
    "universityofillinoisncsaopensourcelicense": ("NCSA",),
    "mitnoattributionlicensemit0": ("MIT-0",),
    "blueoakmodellicenseblueoak1.0.0": ("BlueOak-1.0.0",),
    "otherproprietarylicense": ("LicenseRef-Proprietary",),
    "proprietary": ("LicenseRef-Proprietary",),
    "commercial": ("LicenseRef-Proprietary",),
    "nvidiaproprietarysoftware": ("LicenseRef-Proprietary",),
}

# What a licence text is called where only a reference to it is given ("licensed under the … License, version …").
MENTIONS: tuple[tuple[str, str], ...] = (
    ("Apache-2.0", r"apache (?:software )?license,? (?:version|v)?\.? ?2(?:\.0)?\b|\bapache-2\.0\b"),
    ("MPL-2.0", r"mozilla public license,? (?:version|v)?\.? ?2(?:\.0)?\b|\bmpl[- ]?2\.0\b"),
    ("AGPL-3.0", r"affero general public license,? (?:version|v)?\.? ?3\b|\bagpl[- ]?(?:v?3)"),
    ("LGPL-3.0", r"lesser general public license[^.]{0,80}?(?:version|v)\.? ?3\b|\blgpl[- ]?v?3"),
    ("LGPL-2.1", r"lesser general public license[^.]{0,80}?version 2\.1\b|\blgpl[- ]?v?2\.1"),
    ("GPL-3.0", r"gnu general public license,? (?:version|v)?\.? ?3\b|\bgpl[- ]?v?3"),
    ("GPL-2.0", r"gnu general public license[^.]{0,80}?version 2\b|\bgpl[- ]?v?2"),
    ("MIT", r"\bmit license\b|\bmit[- ]licensed?\b"),
    ("BSD-3-Clause", r"\b3[- ]clause bsd\b|\bbsd[- ]3[- ]clause\b|\bnew bsd license\b|\bmodified bsd license\b"),
    ("BSD-2-Clause", r"\b2[- ]clause bsd\b|\bbsd[- ]2[- ]clause\b|\bsimplified bsd license\b"),
    ("PSF-2.0", r"\bpython software foundation license\b|\bpsf license\b"),
    ("LicenseRef-Public-Domain", r"\b(?:in|into|to) the public domain\b"),
)

# The usual notice in place of a whole GNU licence; the groups are the licence's kind and its version.
GNU_NOTICE = re.compile(
    r"under the terms of the gnu (library |lesser |affero )?general public license[^.]{0,160}?version (\d(?:\.\d)?)"
)
GNU_KINDS = {"": "GPL", "library ": "LGPL", "lesser ": "LGPL", "affero ": "AGPL"}

# Wordings, as matching.words() leaves them, of exceptions that soften a GNU licence.
EXCEPTIONS: tuple[tuple[str, str], ...] = (
    ("GCC-exception-3.1", r"gcc runtime library exception"),
    ("Classpath-exception-2.0", r"linking this library statically or dynamically with other modules"),
    ("Bootloader-exception", r"bootloader exception|unlimited permission to link or embed compiled bootloader"),
)


def canonical(expression: str) -> str:
    """Return a valid SPDX expression in SPDX's spelling, or "" if it is none (or absurdly long or deep)."""
    if len(expression) > _EXPRESSION_CHARACTERS_MAX or expression.count("(") > _NESTING_MAX:
        return ""
    try:
        return str(canonicalize_license_expression(expression))
    except InvalidLicenseExpression:
        return ""


def stem(licence: str) -> str:
    """Return the identifier of the licence's text: GNU identifiers lose -only, -or-later and +."""
    return re.sub(r"(?:-only|-or-later|\+)$", "", licence)


def with_exception(licence: str, exceptions: tuple[str, ...]) -> str:
    """Return the licence of a text that also holds exceptions; only those to the GPL are known."""
    return f"{licence} WITH {exceptions[0]}" if exceptions and licence.startswith("GPL-") else licence


def category(licence: str, exception: str = "") -> Category:
    """Return what kind of licence an SPDX identifier names, given the exception after WITH if there is one."""
    found = next((kind for pattern, kind in _CATEGORIES if re.fullmatch(pattern, licence)), Category.UNKNOWN)
    is_copyleft = found in (Category.STRONG_COPYLEFT, Category.NETWORK_COPYLEFT)
    if is_copyleft and exception and _LINKING_EXCEPTION.fullmatch(exception):
        return Category.WEAK_COPYLEFT
    return found


def simplified(name: str) -> str:
    """Return the form in which NAMES spells a free-text licence name."""
    return re.sub(r"[^a-z0-9+.]", "", name.lower().replace("licence", "license")).rstrip(".")


@cache
def texts() -> dict[str, str]:
    """Return the known licence texts by SPDX identifier, read from the data folder once per process."""
    folder = resources.files("examples.licence_audit").joinpath("data", "licences")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".txt")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".txt"): entry.read_text(encoding="utf-8") for entry in files}
