r"""Lines of a paste, freed of what terminals, editors, web pages and mail put around them.

People paste reports out of terminals (escape sequences), issues (quotes, tables), web pages (HTML),
sources (comments, ``\t`` spelled out) and logs. What comes out here is plain words between blanks,
and each line still knows where it stood, so that an error can name the place.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from blinkrun.errors import ReportError

MAX_BYTES = 4 << 20  # the longest real report, with the log around it, is far below
MAX_LINES = 100_000

# Colours and underlines: with the escape itself, spelled out, or with the escape lost on the way.
_ESCAPES = re.compile(
    r"(?:\x1b|\x9b\[?|\^\[|\\x1[bB]|\\033|\\e|\\u001[bB]|␛)\[[0-9;?]*[A-Za-z]"
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|\[[0-9]{1,3}(?:;[0-9]{1,3})*m"
    r"|\x1b"
)
# Tags that begin or end a line, that part two cells, and that stand inside of a word.
_BREAKS = re.compile(r"<(?:/?(?:tr|p|li|div|pre|table|h[1-6])|br)\b[^<>]*>", re.IGNORECASE)
_CELLS = re.compile(
    r"</?(?:td|th|thead|tbody|tfoot|caption|colgroup|col|ul|ol|html|body|blockquote|details|summary"
    r"|center|hr|img)\b[^<>]*>",
    re.IGNORECASE,
)
_INLINE = re.compile(
    r"</?(?:b|i|u|a|s|em|tt|code|span|strong|font|small|kbd|samp|sub|sup|mark)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_SPELLED = re.compile(r"\\([tnr])")  # in a string of a source
_BREAK = "\v"  # a line break that is none in the file

_TABLE = str.maketrans(
    {
        **dict.fromkeys(
            '\u00a0\u1680\u2007\u202f\u205f\u3000\ufffc\f|│┃║┆┊─━═┌┐└┘├┤┬┴┼`"“”„«»*', " "
        ),
        **{chr(code): " " for code in range(0x2000, 0x200B)},
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad\x00\x07\x08", ""),
        **dict.fromkeys("‐‑‒–—−", "-"),
        **dict.fromkeys("\u0085\u2028\u2029\x1c\x1d\x1e", _BREAK),
        "'": " ",
        "‘": " ",
        "’": " ",
        "×": "X",
        "…": "...",
    }
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the paste: its number in the file, from 1, and what is left of its text.

    Where a file has several lines in one (rows of an HTML table), they have the same number.
    """

    number: int
    text: str


def clean_lines(text: str, source: str = "-") -> tuple[Line, ...]:
    r"""Return the lines of a paste as plain text, blank ones too.

    Parameters
    ----------
    text : str
        What was pasted.
    source : str, default "-"
        The file's name, for messages.

    Raises
    ------
    ReportError
        If the text is longer than 4 Mi characters or 100,000 lines: no report is.

    Examples
    --------
    >>> [line.text.split() for line in clean_lines("\x1b[4mGPU0\tGPU1\x1b[0m\n| GPU0 | X | NV2 |")]
    [['GPU0', 'GPU1'], ['GPU0', 'X', 'NV2']]
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    size, num_lines = len(text), text.count("\n")
    if size > MAX_BYTES or num_lines > MAX_LINES:
        limits = f"{MAX_BYTES} characters in {MAX_LINES} lines"
        problem = f"{size} characters in {num_lines} lines are too much, expected at most {limits}"
        raise ReportError(source, 0, f"{problem}; cut the report out")
    if "\x1b" in text or "[" in text or "\x9b" in text or "␛" in text:
        text = _ESCAPES.sub("", text)
    if "<" in text:
        text = _BREAKS.sub(lambda tag: _BREAK + _newlines(tag), text)
        text = _CELLS.sub(lambda tag: " " + _newlines(tag), text)
        text = _INLINE.sub(_newlines, text)
    if "&" in text:
        text = html.unescape(text).replace("\r", " ")
    if "\\" in text:
        text = _SPELLED.sub(lambda spelled: "\t" if spelled[1] == "t" else _BREAK, text)
        text = text.replace("\\_", "_").replace("\\", " ")
    text = text.translate(_TABLE)
    return tuple(
        Line(number, part)
        for number, line in enumerate(text.split("\n"), start=1)
        for part in line.split(_BREAK)
    )


def _newlines(tag: re.Match[str]) -> str:
    return "\n" * tag[0].count("\n")  # a tag over several lines must not move those below it
