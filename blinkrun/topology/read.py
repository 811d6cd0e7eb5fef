"""Reads a machine from whatever people have, recognised by its content."""

from __future__ import annotations

from blinkrun.errors import ReportError
from blinkrun.topology.amd_tables import is_amd_text
from blinkrun.topology.deserialize import read_json
from blinkrun.topology.machine import Machine
from blinkrun.topology.nccl_xml import read_nccl_xml
from blinkrun.topology.rocm_smi import read_rocm_smi
from blinkrun.topology.xml_text import documents

KNOWN = (
    "nvidia-smi topo -m, topo -p2p, nvlink -s",
    "an NCCL or RCCL topology file (XML)",
    "rocm-smi --showtopo",
    "amd-smi topology",
    "what blinkrun topo --json prints",
)


def read_machine(
    text: str, source: str = "-", *, partial: bool = False, report: int | None = None
) -> Machine:
    """Return the machine that a text describes, in any format of `KNOWN`.

    Parameters
    ----------
    text : str
        As people pasted it.
    source : str, default "-"
        The file's name, for messages.
    partial : bool, default False
        Take what is whole where the text is broken, and note what is left out.
    report : int, optional
        Which of several reports in the text, from 1; the first if not given.

    Raises
    ------
    ReportError
        If the text is of no known format or is broken.
    """
    if documents(text):
        return read_nccl_xml(text, source, partial=partial)
    if text.lstrip().startswith("{"):
        return read_json(text, source, partial=partial)
    if is_amd_text(text):
        return read_rocm_smi(text, source, partial=partial)
    raise ReportError(source, 0, f"nothing here is understood; expected {'; '.join(KNOWN)}")
