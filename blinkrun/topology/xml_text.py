"""XML as people paste it: elements with their lines, up to where the text breaks.

A topology file is plain elements and attributes, so reading begins at the first of them: what is
declared before, entities above all, does not exist here, and nothing can expand without end. Text
between elements is skipped, and with it the prefix that a logger puts before every line.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from xml.parsers import expat

_ELEMENT = re.compile(
    r"<(?:system|cpu|pci)\b(?=[^<>]*?\b(?:version|numaid|host_hash|affinity|busid)\s*=)|<system\s*>"
)
_SYSTEM = re.compile(r"<system\b")
_UNPRINTED = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff\ufffe\uffff]"
)
_CURLY_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2033": '"'})
_MAX_DEPTH = 64  # a path from a CPU to a device crosses a handful of bridges
_ENDED = expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS]


@dataclass(slots=True)
class Element:
    """An element, its attributes and what is inside; `line` is where it begins, from 1.

    `is_whole` is false where the text breaks before the element ends.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    is_whole: bool = False

    def inside(self, tag: str) -> list[Element]:
        """Return the children of one kind that are whole, in order."""
        return [child for child in self.children if child.tag == tag and child.is_whole]


@dataclass(frozen=True, slots=True)
class XmlBreak:
    """Where the text stops being XML that is taken, and why."""

    line: int
    problem: str


def documents(text: str) -> tuple[str, ...]:
    r"""Return the topology files in a text, each with the lines before it left blank.

    A file begins at ``<system``, or at the first ``<cpu`` or ``<pci`` of one whose head is cut.

    >>> documents('log line\n<system version="1"/>\n')
    ('\n<system version="1"/>\n',)
    """
    bare = _uncommented(_plain(text))
    starts = {match.start() for match in _SYSTEM.finditer(bare)}
    first = _ELEMENT.search(bare)
    if first is None:
        return ()
    begins = sorted({first.start(), *(start for start in starts if start > first.start())})
    ends = [*begins[1:], len(bare)]
    return tuple(
        "\n" * bare.count("\n", 0, begin) + bare[begin:end]
        for begin, end in zip(begins, ends, strict=True)
    )


def read_elements(document: str) -> tuple[Element, XmlBreak | None]:
    r"""Return the outermost element of one of `documents`, and where the text breaks if it does.

    >>> root, broken = read_elements('<system version="1"><cpu numaid="0"/>\n<cpu numa')
    >>> [child.attributes for child in root.children], broken
    ([{'numaid': '0'}], XmlBreak(line=2, problem='unclosed token'))
    """
    body = document.lstrip("\n")
    builder = _Builder(len(document) - len(body))
    is_headless = _SYSTEM.match(body) is None
    if is_headless:
        body = f"<system>{body}"
    broken = None
    try:
        builder.parser.Parse(body.encode("utf-8", "replace"), True)
    except _StopReading as stop:
        broken = stop.broken
    except expat.ExpatError as err:
        if not (is_headless and len(builder.open) == 2 and err.code == _ENDED):
            broken = XmlBreak(builder.line_of(err.lineno), expat.ErrorString(err.code))
    return builder.root.children[0], broken


class _StopReading(Exception):  # noqa: N818 - what it tells need not be an error
    """The outermost element is complete, or something is not taken."""

    def __init__(self, broken: XmlBreak | None = None) -> None:
        super().__init__()
        self.broken = broken


class _Builder:
    """Builds elements out of the parser's events."""

    def __init__(self, lines_before: int) -> None:
        self.lines_before = lines_before
        self.root = Element("", {}, 0, [Element("system", {}, lines_before + 1)])
        self.open = [self.root]
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    def line_of(self, line: int) -> int:
        """Return the line of the whole text."""
        return self.lines_before + line

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.line_of(self.parser.CurrentLineNumber)
        if len(self.open) > _MAX_DEPTH:
            raise _StopReading(XmlBreak(line, "elements are nested too deeply"))
        element = Element(tag, attributes, line)
        if self.open == [self.root]:
            self.root.children.clear()
        self.open[-1].children.append(element)
        self.open.append(element)

    def _end(self, _: str) -> None:
        self.open.pop().is_whole = True
        if len(self.open) == 1:
            raise _StopReading


def _plain(text: str) -> str:
    """Return the text without terminal escapes, HTML escapes and what XML does not allow."""
    plain = _UNPRINTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    plain = plain.translate(_CURLY_QUOTES)
    if "<system" not in plain and "&lt;system" in plain:
        return html.unescape(plain)
    return plain


def _uncommented(text: str) -> str:
    """Return the text with only the line ends of its comments."""
    kept = []
    at = 0
    while (begin := text.find("<!--", at)) >= 0 and (end := text.find("-->", begin)) >= 0:
        kept += [text[at:begin], "\n" * text.count("\n", begin, end)]
        at = end + len("-->")
    return "".join([*kept, text[at:]])
