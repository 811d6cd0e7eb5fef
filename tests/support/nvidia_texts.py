"""Random machines as nvidia-smi prints them, in all the shapes that pastes have."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
OLD_LEGEND = """
Legend:

  X   = Self
  SOC = Path traverses a socket-level link (e.g. QPI)
  PHB = Path traverses a PCIe host bridge
"""
HEADINGS = (
    (),
    ("CPU Affinity",),
    ("CPU Affinity", "NUMA Affinity"),
    ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"),
    ("NUMA",),
)
NIC_NAMES = (
    lambda k: f"NIC{k}",
    lambda k: f"mlx5_{k}",
    lambda k: f"mlx4_{k}" if k == 0 else f"mlx5_{k}",
    lambda k: f"bnxt_re{k}",
    lambda k: f"hfi1_{k}",
    lambda k: f"irdma{k}",
    lambda k: f"cxi{k}",
    lambda k: f"mlx5_bond_{k}",
    lambda k: f"rdmap{16 * k + 16}s27",
    lambda k: f"zz{k}net",
)
PREFIXES = (
    "",
    "",
    "",
    "    ",
    "# ",
    "#        ",
    "> ",
    "> > ",
    "// ",
    " * ",
    "[rank0]: ",
    "[1,0]<stdout>:",
    "2024-05-01 12:30:00,123 INFO ",
    "worker-3: ",
    "| ",
)
NOISE = (
    "",
    "Collecting environment information...",
    "$ nvidia-smi topo -m",
    "root@node01:~# nvidia-smi topo -m",
    "GPU Topology:",
    "GPU0 and GPU1 are slower than expected:",
    "NVIDIA Topology: ",
    "CPU:\nArchitecture:                    x86_64\nNUMA node0 CPU(s):               0-63",
    "```",
)


@dataclass
class Drawn:
    """A machine and what a reader must get out of its text."""

    gpus: list[str]
    nics: list[str]
    cells: dict[tuple[str, str], str]
    headings: tuple[str, ...]
    cpus: dict[str, str] = field(default_factory=dict)
    numa: dict[str, int | None] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    has_nic_rows: bool = True
    has_clear_values: bool = True  # whether the text that was rendered tells affinities

    @property
    def names(self):
        return self.gpus + self.nics

    def facts(self):
        """Return gpu_names, nics, nvlink, pcie and gpu_nic as case.json has them."""
        nvlink, pcie = [], {}
        for low, first in enumerate(self.gpus):
            for high in range(low + 1, len(self.gpus)):
                cell = self.cells[first, self.gpus[high]]
                if cell.startswith("NV"):
                    nvlink.append([low, high, int(cell[2:])])
                else:
                    pcie[f"{low}-{high}"] = cell
        gpu_nic = {
            gpu: {nic: self.cells[gpu, nic] for nic in self.nics} for gpu in self.gpus if self.nics
        }
        return {
            "gpu_names": self.gpus,
            "nics": self.nics,
            "nvlink": nvlink,
            "pcie": pcie,
            "gpu_nic": gpu_nic,
        }


def draw_machine(rng: random.Random, max_gpus=9) -> Drawn:
    """Return a random machine: any numbering, any NICs, any of the header's generations."""
    size = rng.randint(1, max_gpus)
    first = rng.choice((0, 0, 0, 4))
    gpus = [f"GPU{first + k}" for k in range(size)]
    if rng.random() < 0.15:
        rng.shuffle(gpus)
    name = rng.choice(NIC_NAMES[:-1] if size == 1 else NIC_NAMES)  # one odd name is no header yet
    nics = [name(k) for k in range(rng.choice((0, 0, 1, 2, 4, 11)))]
    if rng.random() < 0.3:
        rng.shuffle(nics)
    levels = [*LEVELS[:4], "SOC"] if rng.random() < 0.2 else list(LEVELS)
    cells = {}
    for at, one in enumerate(gpus + nics):
        cells[one, one] = "X"
        for other in (gpus + nics)[at + 1 :]:
            is_pair = one in gpus and other in gpus
            wired = is_pair and rng.random() < 0.4
            cell = f"NV{rng.choice((1, 2, 3, 4, 6, 12, 18))}" if wired else rng.choice(levels)
            cells[one, other] = cells[other, one] = cell
    drawn = Drawn(gpus, nics, cells, rng.choice(HEADINGS), has_nic_rows=rng.random() < 0.8)
    _draw_affinities(rng, drawn)
    if nics and nics[0].startswith("NIC") and rng.random() < 0.5:
        drawn.devices = {nic: f"mlx5_gdr_{k}" for k, nic in enumerate(nics)}
    return drawn


def _draw_affinities(rng, drawn):
    cores = rng.choice((16, 32, 48))
    style = rng.choice(("range", "pair", "list", "one"))
    for gpu in drawn.gpus:
        node = rng.choice((0, 1, 8))
        low = cores * node
        drawn.cpus[gpu] = {
            "range": f"{low}-{low + cores - 1}",
            "pair": f"{low}-{low + cores - 1},{low + 1024}-{low + 1024 + cores - 1}",
            "list": ",".join(str(low + 2 * k) for k in range(6)),
            "one": str(low),
        }[style]
        drawn.numa[gpu] = node


def rows_of(drawn: Drawn) -> list[list[str]]:
    """Return the header and the rows as cells; the header begins with an empty one."""
    rows = [["", *drawn.names, *drawn.headings]]
    values = {"CPU Affinity": drawn.cpus, "NUMA Affinity": drawn.numa, "NUMA": drawn.numa}
    for name in drawn.names if drawn.has_nic_rows else drawn.gpus:
        row = [name, *(drawn.cells[name, other] for other in drawn.names)]
        if name in drawn.cpus:
            row += [str(values.get(heading, {}).get(name, "N/A")) for heading in drawn.headings]
        rows.append(row)
    return rows


def _tabs(rng, rows):
    pad = rng.random() < 0.7
    return ["\t".join(f" {c} " if c == "X" and pad else c for c in row) for row in rows]


def _spaces(rng, rows):
    width = rng.choice((8, 8, 6, 10))
    gap = rng.choice((" ", "  "))
    return [gap.join(f"{cell:<{width}}" for cell in row).rstrip() for row in rows]


def _two_spaces(_rng, rows):
    return ["  ".join(row) for row in rows]


def _markdown(rng, rows):
    header = [*rows[0][1:], ""] if rng.random() < 0.4 else rows[0]
    rule = "|" + "---|" * len(header)
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows[1:])]
    return [lines[0], rule, *lines[1:]] if rng.random() < 0.8 else lines


def _html(rng, rows):
    glue = rng.choice(("", "\n", "\n    "))
    lines = ["<table class='t'>"]
    for row in rows:
        cells = glue.join(f'<td align="left">{cell or "&nbsp;"}</td>' for cell in row)
        lines += f"<tr>{glue}{cells}</tr>".split("\n")
    return [*lines, "</table>"] if rng.random() < 0.5 else ["".join(lines) + "</table>"]


def _glued_header(rng, rows):
    lines = _tabs(rng, rows)
    return ["".join(rows[0]) if _are_known(rows) else lines[0], *lines[1:]]


def _are_known(rows):
    names = [name for name in rows[0] if name]
    return all(
        name.startswith(("GPU", "NIC", "mlx", "bnxt", "hfi", "irdma", "cxi", "CPU", "NUMA"))
        for name in names
    )


def _lost_tab(rng, rows):
    lines = _tabs(rng, rows)
    return [lines[0].lstrip("\t"), *lines[1:]]


def _csv(_rng, rows):
    return [",".join(row) for row in rows]


def _quoted(rng, rows):
    del rng
    return ['"' + "\\t".join(row) + '\\n"' for row in rows]


def _glued(rng, rows):
    """All tabs lost, as in text copied from some web pages; affinities cannot be told any more."""
    return ["".join(row) for row in rows] if _are_known(rows) else _tabs(rng, rows)


STYLES = (
    _tabs,
    _spaces,
    _two_spaces,
    _markdown,
    _html,
    _glued_header,
    _lost_tab,
    _quoted,
    _csv,
    _glued,
)


def _wrapped(rng, lines):
    """Break lines between words, as mail programs do."""
    width = rng.choice((20, 40, 72))
    wrapped = []
    for line in lines:
        part = ""
        for word in line.split():
            if part and len(part) + len(word) >= width:
                wrapped.append(part)
                part = ""
            part += (" " if part else "") + word
        wrapped.append(part)
    return wrapped


def _cells_alone(rng, lines):
    del rng
    return [word for line in lines for word in line.replace(" Affinity", "_Affinity").split()]


def _one_line(rng, lines):
    del rng
    return [" ".join(line.strip() for line in lines)]


def _blank_lines(rng, lines):
    return [part for line in lines for part in (line, rng.choice(("", "   ")))]


def _as_is(rng, lines):
    del rng
    return lines


def _numbered(rng, lines):
    start = rng.randint(1, 90)
    mark = rng.choice(("  ", ": ", "\t", "|"))
    return [f"{start + k}{mark}{line}" for k, line in enumerate(lines)]


LAYOUTS = (_as_is, _as_is, _as_is, _blank_lines, _wrapped, _cells_alone, _one_line, _numbered)


def render(rng: random.Random, drawn: Drawn) -> str:
    """Return the machine as somebody might have pasted it."""
    style, layout = rng.choice(STYLES), rng.choice(LAYOUTS)
    drawn.has_clear_values = style not in (_glued, _csv)
    lines = style(rng, rows_of(drawn))
    if style in (_html, _quoted) or (style is _glued and layout is _wrapped):
        layout = _as_is
    lines = layout(rng, lines)
    if rng.random() < 0.2:
        lines[0] = lines[0].replace("GPU", "\x1b[4mGPU", 1) + "\x1b[0m"
    if layout in (_as_is, _blank_lines, _wrapped):
        prefix = rng.choice(PREFIXES)
        lines = [prefix + line for line in lines]
    lines = [
        *rng.choice(NOISE).split("\n"),
        *lines,
        *rng.choice(("", LEGEND, OLD_LEGEND)).split("\n"),
    ]
    if drawn.devices:
        lines += ["NIC Legend:", "", *(f"  {nic}: {dev}" for nic, dev in drawn.devices.items())]
    text = "\n".join(lines)
    if rng.random() < 0.1:
        text = text.replace(" ", "\u00a0")
    if rng.random() < 0.1:
        text = "\ufeff" + text
    return text.replace("\n", "\r\n") if rng.random() < 0.15 else text


def damage(rng: random.Random, texts: list[str]) -> str:
    """Return one of the texts damaged: cut, spliced with another one, words or letters changed."""
    text = rng.choice(texts)
    for _ in range(rng.randint(1, 4)):
        text = rng.choice((_cut, _splice, _drop_lines, _swap_words, _scramble, _repeat))(
            rng, text, texts
        )
    return text


def _cut(rng, text, _texts):
    at = rng.randint(0, len(text))
    return text[:at] if rng.random() < 0.7 else text[at:]


def _splice(rng, text, texts):
    other = rng.choice(texts)
    return text[: rng.randint(0, len(text))] + other[rng.randint(0, len(other)) :]


def _drop_lines(rng, text, _texts):
    return "\n".join(line for line in text.split("\n") if rng.random() > 0.1)


def _swap_words(rng, text, _texts):
    words = text.split(" ")
    for _ in range(3):
        one, two = rng.randrange(len(words)), rng.randrange(len(words))
        words[one], words[two] = words[two], words[one]
    return rng.choice((" ", " ", "\n", "\t", "")).join(words)


def _scramble(rng, text, _texts):
    letters = list(text[:20000])
    for _ in range(rng.randint(1, 20)):
        if letters:
            at = rng.randrange(len(letters))
            letters[at] = rng.choice("XNVG0123-,:|<>\n\t \x1b[;m\u00a0é\x00GPU9")
    return "".join(letters)


def _repeat(rng, text, _texts):
    at = rng.randint(0, len(text))
    return text[:at] + text[at : at + rng.randint(1, 200)] * rng.randint(1, 50) + text[at:]
