"""Writes a machine as NCCL topology XML, for ``NCCL_TOPO_FILE`` and other tools that read it.

What a machine does not state is left out; NCCL fills it in from the host that it runs on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from xml.sax.saxutils import quoteattr

from blinkrun.topology.fabric import fabric_of
from blinkrun.topology.machine import Gpu, Machine, PciKind, PciNode
from blinkrun.topology.nccl_values import bus_id_of, cpu_mask, is_bus_id
from blinkrun.topology.pcie_tree import path_up, pcie_tree

HIDDEN_SWITCH = "fffffff:ffff:ff"  # NCCL's name for an NVSwitch that the host does not see

_NVIDIA_GPU = "0x030200"
_AMD_GPU = "0x038000"
_NVSWITCH = "0x068000"
_CLASSES = {PciKind.BRIDGE: "0x060400", PciKind.NIC: "0x020000", PciKind.OTHER: "0x088000"}
# NCCL asks every x86 CPU for family and model; these are a common one of each maker
_CPUS: Mapping[str, Mapping[str, str]] = {
    "intel": {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "85"},
    "amd": {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"},
    "zhaoxin": {"arch": "x86_64", "vendor": "CentaurHauls", "familyid": "7", "modelid": "91"},
    "arm": {"arch": "arm64"},
    "power": {"arch": "ppc64"},
}
_NUMBERED = re.compile(r"GPU([0-9]{1,9})")
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_Attributes = Mapping[str, object]


def write_nccl_xml(machine: Machine) -> str:
    """Return the topology file of a machine.

    Parameters
    ----------
    machine : Machine
        Where it has no exact PCI tree, the one that its levels come to is written. Bus ids that
        it does not tell are made up, in a domain that no device has.

    Returns
    -------
    str
        XML that NCCL and `read_nccl_xml` take. GPUs behind switches that have no name get a
        link to `HIDDEN_SWITCH`, as NCCL itself writes it. NICs are called by their devices.

    Examples
    --------
    >>> from blinkrun.topology.machine import Wire
    >>> gpus = (Gpu("GPU0", bus_id="0000:07:00.0"), Gpu("GPU1", bus_id="0000:0a:00.0"))
    >>> pair = Machine("pair", "by hand", gpus, nvlink=(Wire(0, 1, 4),))
    >>> print(write_nccl_xml(pair).splitlines()[4].strip())
    <nvlink target="0000:0a:00.0" count="4" tclass="0x030200"/>
    """
    writer = _Writer(machine)
    lines = ['<system version="1">']
    for at, node in enumerate(writer.tree):
        if node.parent < 0:
            lines += writer.lines_of(at, "  ")
    return "\n".join([*lines, "</system>", ""])


class _Writer:
    """Writes the elements of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tree = pcie_tree(machine)
        self.inside: defaultdict[int, list[int]] = defaultdict(list)
        for at, node in enumerate(self.tree):
            if node.parent >= 0:
                self.inside[node.parent].append(at)
        self.hosts = [self.tree[path_up(self.tree, at)[-1]].host for at in range(len(self.tree))]
        self.bus_ids = _bus_ids(machine, self.tree, self.hosts)
        self.bus_id_of_gpu = {
            gpu: self.bus_ids[at] for at, node in enumerate(self.tree) for gpu in node.gpus
        }
        self.numbers = _numbers(machine, self.tree, self.hosts)
        self.links = _links(machine, self.bus_id_of_gpu)

    def lines_of(self, at: int, indent: str) -> Iterator[str]:
        """Yield the lines of a node and of what hangs on it."""
        node = self.tree[at]
        if node.parent < 0:
            tag, attributes = "cpu", self._cpu(at)
        elif self._is_virtual(node):
            yield from self._nic(node, indent)
            return
        else:
            tag, attributes = "pci", self._pci(at)
        inner = [line for child in self.inside[at] for line in self.lines_of(child, indent + "  ")]
        if node.kind is not PciKind.CPU:
            own = [line for gpu in node.gpus for line in self._gpu(gpu, indent + "  ")]
            inner = own + list(self._nic(node, indent + "  ")) + inner
        yield from _element(tag, attributes, inner, indent)

    def _is_virtual(self, node: PciNode) -> bool:
        """Whether a NIC of a file has no PCI device."""
        is_stated = bool(self.machine.tree)
        return is_stated and node.kind is PciKind.NIC and not is_bus_id(node.name)

    def _cpu(self, at: int) -> _Attributes:
        node = self.tree[at]
        below = [
            self.machine.gpus[gpu]
            for index, device in enumerate(self.tree)
            if path_up(self.tree, index)[-1] == at
            for gpu in device.gpus
        ]
        mask = next((mask for gpu in below if (mask := cpu_mask(gpu.cpus))), "")
        return {
            **({"host_hash": node.host} if node.host else {}),
            "numaid": -1 if node.numa is None else node.numa,
            **({"affinity": mask} if mask else {}),
            **_CPUS.get(node.vendor, {}),
        }

    def _pci(self, at: int) -> _Attributes:
        node = self.tree[at]
        return {
            "busid": self.bus_ids[at],
            **self._class(node),
            "link_speed": "" if node.gt_per_s is None else f"{node.gt_per_s:g} GT/s",
            "link_width": node.width or 0,
        }

    def _class(self, node: PciNode) -> _Attributes:
        if node.gpus and not self.machine.is_identified:
            return {}
        if node.gpus:
            is_amd = self.machine.xgmi or self.machine.gpus[node.gpus[0]].arch.startswith("gfx")
            return {"class": _AMD_GPU if is_amd else _NVIDIA_GPU}
        if any(switch.name == node.name for switch in self.machine.switches):
            return {"class": _NVSWITCH}
        return {"class": _CLASSES.get(node.kind, _CLASSES[PciKind.OTHER])}

    def _gpu(self, index: int, indent: str) -> list[str]:
        """Return the ``gpu`` element, none where there is nothing to say in it."""
        gpu = self.machine.gpus[index]
        links = [
            _element(tag, attributes, [], indent + "  ") for tag, attributes in self.links[index]
        ]
        if gpu.c2c_mb_per_s:
            c2c = {"bw": gpu.c2c_mb_per_s, "count": 1}
            links.append(_element("c2c", c2c, [], indent + "  "))
        number = self.numbers.get(index)
        if number is None and not links and not gpu.arch:
            return []
        attributes = {
            **({} if number is None else {"dev": number}),
            **_arch(gpu),
            "rank": index,
            "gdr": 1,
        }
        return _element("gpu", attributes, [line for link in links for line in link], indent)

    def _nic(self, node: PciNode, indent: str) -> list[str]:
        """Return the ``nic`` element with its ports, none where they have no names."""
        ports: list[str] = []
        for index in node.nics:
            nic = self.machine.nics[index]
            name = nic.device or nic.name
            if not is_bus_id(bus_id_of(name)):
                speed = {"speed": nic.mbit_per_s} if nic.mbit_per_s else {}
                attributes = {"name": name, "dev": index, **speed, "port": 1, "gdr": 1}
                ports += _element("net", attributes, [], indent + "  ")
        return _element("nic", {}, ports, indent) if ports else []


def _element(tag: str, attributes: _Attributes, inner: Sequence[str], indent: str) -> list[str]:
    values = {key: quoteattr(_UNWRITABLE.sub("?", str(value))) for key, value in attributes.items()}
    words = "".join(f" {key}={value}" for key, value in values.items())
    if not inner:
        return [f"{indent}<{tag}{words}/>"]
    return [f"{indent}<{tag}{words}>", *inner, f"{indent}</{tag}>"]


def _arch(gpu: Gpu) -> dict[str, str]:
    if gpu.arch.startswith("gfx"):
        return {"gcn": gpu.arch.removeprefix("gfx")}
    return {"sm": gpu.arch} if gpu.arch else {}


def _numbers(machine: Machine, tree: Sequence[PciNode], hosts: Sequence[str]) -> dict[int, int]:
    """Return the number of each GPU on its host; a GPU that is called by its bus id has none."""
    host_of = {gpu: hosts[at] for at, node in enumerate(tree) for gpu in node.gpus}
    several = len(set(host_of.values())) > 1
    numbers: dict[int, int] = {}
    next_on: defaultdict[str, int] = defaultdict(int)
    for index, gpu in enumerate(machine.gpus):
        if machine.is_identified and not is_bus_id(gpu.name):
            stated = _NUMBERED.fullmatch(gpu.name)
            on_host = next_on[host_of[index]]
            numbers[index] = on_host if several or not stated else int(stated[1])
            next_on[host_of[index]] += 1
    return numbers


def _bus_ids(machine: Machine, tree: Sequence[PciNode], hosts: Sequence[str]) -> list[str]:
    """Return the bus id of every device, made up where it is not known or not its own.

    A CPU has none.
    """
    stated = [_stated_bus_id(machine, node) for node in tree]
    used: set[tuple[str, str]] = set()
    bus_ids = []
    free = _made_up({bus_id for bus_id in stated if bus_id})
    for node, host, bus_id in zip(tree, hosts, stated, strict=True):
        is_own = node.parent < 0 or (bus_id and (host, bus_id) not in used)
        chosen = bus_id if is_own else next(free)
        used.add((host, chosen))
        bus_ids.append(chosen)
    return bus_ids


def _stated_bus_id(machine: Machine, node: PciNode) -> str:
    told = [
        node.name,
        *(machine.gpus[gpu].bus_id for gpu in node.gpus),
        *(machine.nics[nic].bus_id for nic in node.nics),
    ]
    return next((bus_id_of(text) for text in told if is_bus_id(bus_id_of(text))), "")


def _made_up(taken: set[str]) -> Iterator[str]:
    """Yield bus ids such as ``ffff:ff:01.0``, as vendors make them up for their files."""
    made = (
        f"ffff:{0xFF - number // 32 % 256:02x}:{number % 32:02x}.{number // 8192}"
        for number in count(1)
    )
    return (bus_id for bus_id in made if bus_id not in taken)


def _links(
    machine: Machine, bus_ids: Mapping[int, str]
) -> defaultdict[int, list[tuple[str, _Attributes]]]:
    """Return the link elements of every GPU."""
    links: defaultdict[int, list[tuple[str, _Attributes]]] = defaultdict(list)

    def add(tag: str, gpu: int, target: str, count: int, target_class: str) -> None:
        attributes = {"target": target, "count": count, "tclass": target_class}
        links[gpu].append((tag, attributes))

    fabric = fabric_of(machine)
    for wire in fabric.wires:
        tag, kind = ("xgmi", _AMD_GPU) if fabric.is_xgmi else ("nvlink", _NVIDIA_GPU)
        for gpu, peer in ((wire.low, wire.high), (wire.high, wire.low)):
            add(tag, gpu, bus_ids[peer], wire.lanes, kind)
    for switch in machine.switches:
        for gpu, lanes in enumerate(switch.lanes):
            if lanes:
                add("nvlink", gpu, switch.name, lanes, _NVSWITCH)
    if not machine.switches:
        for number, island in enumerate(fabric.islands):
            target = HIDDEN_SWITCH if number == 0 else f"{HIDDEN_SWITCH[:-2]}{0xFF - number:02x}"
            for gpu in island:
                add("nvlink", gpu, target, fabric.ports[gpu], _NVSWITCH)
    for gpu, lanes in machine.self_links:
        add("nvlink", gpu, bus_ids[gpu], lanes, _NVIDIA_GPU)
    return links
