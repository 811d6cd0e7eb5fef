"""``nvidia-smi nvlink --status``, ``nvidia-smi -L``, and lists of GPUs in environment reports.

All three are lines ``GPU 0: model (UUID: …)``; the first has a line for each NVLink below. None of
them tells which GPUs a link joins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from blinkrun.topology.machine import LinkStatus
from blinkrun.topology.paste import Line

UNKNOWN = "?"

_EVENT = re.compile(
    r"\bGPU\s{1,8}(?P<gpus>\d{1,4}(?:\s?,\s?\d{1,4}){0,255})\s?:"
    r"|\bLink\s{1,8}(?P<link>\d{1,3})\s?:\s{0,8}"
    r"(?:(?P<rate>\d{1,5}(?:\.\d{1,6})?)\s{0,4}G(?P<unit>B|b)|(?P<idle><?\s?in-?active)"
    r"|(?P<cut>(?:[\d.]{0,8}|<\w{0,7})\s*$))"
    r"|(?P<none>all links are in-?active)"
    r"|^\s*(?P<dots>\.{3,}|[\[(<](?:\.{3,}|snip|truncated|cut)[\])>])\s*$",
    re.IGNORECASE,
)
_HINT = re.compile(r"\bGPU\s+\d|\bLink\s+\d|links are|\.\.\.|snip|truncated", re.IGNORECASE)
_MODEL = re.compile(
    r"\s*(?P<model>[^(:]{0,100}?)\s*(?:\(|$|\bLink\s+\d|\bGPU\s+\d|\bNVML\b)"
    r"(?:UUID\s?:\s*(?P<uuid>GPU-[0-9A-Za-z-]{2,64}))?"
)
_KNOWN = re.compile(
    r"NVIDIA|Tesla|GeForce|Quadro|TITAN|GRID|RTX|GTX|Graphics Device|[ABHLKMPTV]\d{1,4}\b|G[BH]\d",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Listed:
    """A GPU of a list, and what is said of its links: rate in GB/s, None where inactive."""

    index: str
    line: int
    model: str = ""
    uuid: str = ""
    links: dict[int, float | None] = field(default_factory=dict)
    is_all_inactive: bool = False
    is_followed_by_dots: bool = False
    ends_inside: bool = False

    @property
    def has_status(self) -> bool:
        return bool(self.links) or self.is_all_inactive

    @property
    def is_plausible(self) -> bool:
        """Whether it is a GPU, and not a message about one (``GPU 0: too hot``)."""
        return bool(self.uuid or self.has_status or _KNOWN.match(self.model))


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of GPUs in a paste.

    Attributes
    ----------
    line, last_line : int
        Where it stands.
    models, uuids : mapping of str to str
        By the GPU's name in a matrix (``GPU0``), as far as they are told.
    status : tuple of LinkStatus
        Of the GPUs whose links are listed; the name is ``?`` where none stands above the links.
    """

    line: int
    last_line: int
    models: Mapping[str, str]
    uuids: Mapping[str, str]
    status: tuple[LinkStatus, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The GPUs listed, in order."""
        return tuple(self.models)

    @property
    def content(self) -> object:
        """What is the same for two lists that say the same."""
        return tuple(self.models.items()), tuple(self.uuids.items()), self.status


def find_listings(lines: Sequence[Line], breaks: Sequence[int] = ()) -> tuple[Listing, ...]:
    r"""Return the lists of GPUs in a paste in order.

    Parameters
    ----------
    lines : sequence of Line
        The paste.
    breaks : sequence of int
        Lines over which no list goes on: where matrices begin.

    Examples
    --------
    >>> from blinkrun.topology.paste import clean_lines
    >>> text = "GPU 0: Tesla V100 (UUID: GPU-1f)\n  Link 0: 25.781 GB/s\n  Link 1: <inactive>"
    >>> (found,) = find_listings(clean_lines(text))
    >>> found.models, found.status[0].active, found.status[0].inactive
    ({'GPU0': 'Tesla V100'}, 1, 1)
    """
    listings: list[Listing] = []
    group: list[_Listed] = []
    for listed in _listed(lines):
        crosses = group and any(group[-1].line < at <= listed.line for at in breaks)
        if crosses or any(listed.index == other.index for other in group):
            listings += _listing(group)
            group = []
        group.append(listed)
    return (*listings, *_listing(group))


def _listed(lines: Sequence[Line]) -> Iterator[_Listed]:
    """Yield the GPUs of all lists, each with the links below it."""
    open_: list[_Listed] = []
    for line in lines:
        if not _HINT.search(line.text):
            continue
        for event in _EVENT.finditer(line.text):
            if event["gpus"]:
                yield from open_
                open_ = _headed(event, line)
            elif event["dots"]:
                for listed in open_[-1:]:
                    listed.is_followed_by_dots = True
            elif event["none"]:
                open_ = open_ or [_Listed(UNKNOWN, line.number)]
                open_[-1].is_all_inactive = True
            else:
                if not open_ or (open_[-1].index == UNKNOWN and _repeats(open_[-1], event)):
                    yield from open_
                    open_ = [_Listed(UNKNOWN, line.number)]
                _add_link(open_[-1], event)
    yield from open_


def _headed(event: re.Match[str], line: Line) -> list[_Listed]:
    """Return the GPUs that a line names: one, or several of one model (``GPU 0,1,2: …``)."""
    match = _MODEL.match(line.text, event.end(), event.end() + 200)
    model = match["model"].strip(" ,;.") if match else ""
    uuid = (match["uuid"] or "") if match else ""
    indices = [str(int(index)) for index in event["gpus"].split(",")]
    return [_Listed(index, line.number, model, uuid) for index in dict.fromkeys(indices)]


def _repeats(listed: _Listed, event: re.Match[str]) -> bool:
    return int(event["link"]) in listed.links


def _add_link(listed: _Listed, event: re.Match[str]) -> None:
    if event["cut"] is not None:
        listed.ends_inside = True
    elif event["rate"]:
        scale = 1 if event["unit"] == "B" else 8
        listed.links[int(event["link"])] = float(event["rate"]) / scale
    else:
        listed.links[int(event["link"])] = None


def _listing(group: Sequence[_Listed]) -> tuple[Listing, ...]:
    """Return the list that a group of GPUs is, if it is one."""
    gpus = [listed for listed in group if listed.is_plausible]
    if not gpus:
        return ()
    named = [listed for listed in gpus if listed.index != UNKNOWN]
    listing = Listing(
        line=gpus[0].line,
        last_line=max(listed.line + len(listed.links) for listed in gpus),
        models={_name(listed): listed.model for listed in named},
        uuids={_name(listed): listed.uuid for listed in named if listed.uuid},
        status=tuple(_statuses(gpus)),
    )
    return (listing,)


def _name(listed: _Listed) -> str:
    return listed.index if listed.index == UNKNOWN else f"GPU{listed.index}"


def _statuses(gpus: Sequence[_Listed]) -> Iterator[LinkStatus]:
    """Yield what is said of each GPU's links; nothing if the list is one of GPUs alone."""
    if not any(listed.has_status for listed in gpus):
        return
    for at, listed in enumerate(gpus):
        rates = [rate for rate in listed.links.values() if rate is not None]
        peers = [len(o.links) for o in gpus if o.model == listed.model and o is not listed]
        yield LinkStatus(
            gpu=_name(listed),
            active=len(rates),
            inactive=None if listed.is_all_inactive else len(listed.links) - len(rates),
            gb_per_s=min(rates) if rates else None,
            is_cut=_is_cut(listed, peers, is_last=at == len(gpus) - 1),
        )


def _is_cut(listed: _Listed, peers: Sequence[int], *, is_last: bool) -> bool:
    """Whether a GPU's links go on where the list stops: its equals have more of them."""
    if listed.is_all_inactive:
        return False
    ends = is_last or listed.is_followed_by_dots
    is_short = len(listed.links) < max(peers, default=0)
    return listed.ends_inside or (ends and (is_short or (not peers and listed.is_followed_by_dots)))
