"""NCCL and RCCL topology files: what is taken, what is refused, and where that is said to stand."""

import re

import pytest
from support.corpus import case

from blinkrun.errors import ReportError
from blinkrun.topology.machine import Gpu, NvSwitch, PciKind, Wire, Xgmi
from blinkrun.topology.nccl_values import bus_id_of, cpu_list, cpu_mask, kind_of_class, pci_class
from blinkrun.topology.nccl_xml import read_nccl_xml
from blinkrun.topology.serialize import facts
from blinkrun.topology.xml_text import documents, read_elements

GPU = 'class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"'


def gpu(bus, inner="", dev=None):
    number = "" if dev is None else f' dev="{dev}"'
    return f'<pci busid="{bus}" {GPU}><gpu{number} sm="80">{inner}</gpu></pci>'


def link(target, count=1, tclass="0x030200", tag="nvlink"):
    return f'<{tag} target="{target}" count="{count}" tclass="{tclass}"/>'


def system(*devices, cpu='numaid="0" arch="x86_64" vendor="GenuineIntel"'):
    """A file with a line for each device: the first stands on line 3."""
    inner = "\n".join(devices)
    return f'<system version="1">\n<cpu {cpu}>\n{inner}\n</cpu>\n</system>\n'


def read(text, **options):
    return read_nccl_xml(text, "f.xml", **options)


def levels(machine):
    return {(path.low, path.high): path.level for path in machine.pcie}


A, B, C = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"


def test_levels_are_those_of_nccl():
    bridge = '<pci busid="0000:{0}0:00.0" class="0x060400">{1}</pci>'.format
    text = system(
        bridge("1", gpu(A, dev=0) + gpu(B, dev=1) + bridge("2", gpu(C, dev=2))),
        bridge("3", gpu("0000:0d:00.0", dev=3)),
        "</cpu><cpu numaid='1'>" + gpu("0000:0e:00.0", dev=4),
    )
    machine = read(text)
    assert levels(machine) == {
        (0, 1): "PIX",
        (0, 2): "PXB",
        (1, 2): "PXB",
        (0, 3): "PHB",
        (1, 3): "PHB",
        (2, 3): "PHB",
        **{(low, 4): "SYS" for low in range(4)},
    }
    assert [node.kind for node in machine.tree if node.parent < 0] == [PciKind.CPU, PciKind.CPU]
    assert machine.gpus[4].numa == 1


def test_gpus_are_ordered_by_their_numbers():
    machine = read(system(gpu(A, dev=2), gpu(B, dev=0), gpu(C)))
    assert [(one.name, one.bus_id) for one in machine.gpus] == [
        ("GPU0", B),
        ("GPU2", A),
        (C, C),
    ]
    assert [node.gpus for node in machine.tree] == [(), (1,), (0,), (2,)]


def test_numbers_that_stand_twice_are_no_order():
    machine = read(system(gpu(A, dev=1), gpu(B, dev=1), gpu(C, dev=0)))
    assert [(one.name, one.bus_id) for one in machine.gpus] == [
        ("GPU0", A),
        ("GPU1", B),
        ("GPU2", C),
    ]


def test_several_hosts_are_kept_apart():
    link_out = link("fffffff:ffff:ff", 18, "0x068000")
    hosts = [
        f'<cpu host_hash="0x{host}" numaid="0">{gpu(A, link_out, 0)}{gpu(B, link_out, 1)}'
        f'<nic><net name="mlx5_0" dev="0"/></nic></cpu>'
        for host in "ab"
    ]
    machine = read(f"<system version='1'>{''.join(hosts)}</system>")
    assert [one.name for one in machine.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [node.host for node in machine.tree if node.kind is PciKind.CPU] == ["0xa", "0xb"]
    assert len(machine.nvlink) == 6  # one fabric through switches that no host sees
    assert levels(machine)[1, 2] == "SYS"
    assert facts(machine)["nics"] == ["mlx5_0", "mlx5_0"]


def test_a_switch_of_a_host_does_not_join_others():
    link_out = link("0000:f0:00.0", 6, "0x068000")
    hosts = [
        f'<cpu host_hash="{host}" numaid="0">{gpu(A, link_out, 0)}{gpu(B, link_out, 1)}</cpu>'
        for host in "ab"
    ]
    machine = read(f"<system version='1'>{''.join(hosts)}</system>")
    assert machine.nvlink == (Wire(0, 1, 6), Wire(2, 3, 6))
    assert machine.switches == (
        NvSwitch("0000:f0:00.0", (6, 6, 0, 0)),
        NvSwitch("0000:f0:00.0", (0, 0, 6, 6)),
    )


def test_one_host_needs_no_name():
    assert read(system(gpu(A, dev=0), cpu='host_hash="0x1" numaid="0"')).tree[0].host == ""


def test_a_link_to_another_host_is_found_by_its_bus_id():
    text = (
        '<system version="1">'
        f'<cpu host_hash="a" numaid="0">{gpu(A, link(B, 2), 0)}</cpu>'
        f'<cpu host_hash="b" numaid="0">{gpu(B, link(A, 2), 1)}</cpu></system>'
    )
    assert read(text).nvlink == (Wire(0, 1, 2),)


def test_switched_pairs_have_the_lanes_of_the_lesser_gpu():
    first, second = (link(f"0000:f{at}:00.0", 3, "0x068000") for at in range(2))
    machine = read(system(gpu(A, first + second, 0), gpu(B, first, 1), gpu(C, second, 2)))
    assert machine.nvlink == (Wire(0, 1, 3), Wire(0, 2, 3))
    assert facts(machine)["nvswitch"] == {
        "switches": ["0000:f0:00.0", "0000:f1:00.0"],
        "lanes_per_gpu": [6, 3, 3],
        "lanes_per_switch": {"f0": [3, 3, 0], "f1": [3, 0, 3]},
    }


def test_a_switch_in_the_tree_needs_no_class_at_the_link():
    switch = '<pci busid="0000:f0:00.0" class="0x068000"/>'
    links = link("0000:F0:00.0", 6, "")
    machine = read(system(gpu(A, links, 0), gpu(B, links, 1), switch))
    assert machine.nvlink == (Wire(0, 1, 6),)
    assert machine.tree[-1].kind is PciKind.OTHER


def test_links_of_a_pair_add_up_and_the_lesser_side_counts():
    machine = read(
        system(
            gpu(A, link(B) + link(B) + link(C, 3) + link(C, 0), 0),
            gpu(B, link(A, 2), 1),
            gpu(C, link(A, 2), 2),
        )
    )
    assert machine.nvlink == (Wire(0, 1, 2), Wire(0, 2, 2))
    assert machine.notes == ("GPU0 states 3 lanes to GPU2, which states 2; taken: 2",)
    assert machine.gpus[0].lanes == 5


def test_a_link_that_one_side_states_counts():
    machine = read(system(gpu(A, link(B, 4), 0), gpu(B, dev=1)))
    assert machine.nvlink == (Wire(0, 1, 4),)
    assert machine.notes == ("GPU0 states 4 lanes to GPU1, which states 0; taken: 4",)
    assert machine.gpus[1].lanes is None


def test_links_out_of_the_job_and_to_cpus_are_noted():
    links = link("0000:99:00.0", 2) + link("0004:00:00.0", 3, "0x068001")
    machine = read(system(gpu(A, links, 0)))
    assert machine.nvlink == ()
    assert machine.gpus[0].lanes == 5
    assert machine.notes == (
        "links that lead to a CPU: GPU0: 3",
        "links that lead to GPUs that are not in the file: GPU0: 2",
    )


def test_amd_gpus_have_xgmi():
    machine = read(
        system(
            '<pci busid="0000:0a:00.0" class="0x120000"><gpu dev="0" gcn="910">'
            + link(B, 2, "0x120000", "xgmi")
            + '</gpu></pci><pci busid="0000:0b:00.0" class="0x038000"><gpu dev="1" gcn="gfx942">'
            + link(A, 2, "0x120000", "xgmi")
            + "</gpu></pci>"
        )
    )
    assert machine.source == "RCCL topology XML"
    assert machine.xgmi == (Xgmi(0, 1, lanes=2),)
    assert [one.arch for one in machine.gpus] == ["gfx90a", "gfx942"]
    assert machine.gpus[0].lanes is None


def test_grace_is_told_by_c2c():
    c2c = '<c2c bw="45000" count="8"/>'
    machine = read(system(gpu(A, c2c, 0), cpu='numaid="-1" arch="arm64"'))
    assert machine.gpus[0].c2c_mb_per_s == 360_000
    assert (machine.tree[0].vendor, machine.tree[0].numa) == ("arm", None)
    assert read(system(gpu(A, "<c2c/>", 0))).gpus[0].c2c_mb_per_s is None


def test_nics_have_ports_or_are_called_by_their_bus_ids():
    machine = read(
        system(
            gpu(A, dev=0),
            '<pci busid="0000:10:00.0" class="0x020700"/>',
            '<pci busid="0000:11:00.0" class="0x020000"><nic>'
            '<net name="mlx5_0" speed="200000"/><net name="mlx5_1" speed="-1"/>'
            '<net name="mlx5_0" coll="1"/><net/></nic></pci>',
            '<pci busid="0000:12:00.0" class="0x0c0330"><nic><net name="usb0"/></nic></pci>',
            '<nic><net name="eth0"/></nic><nic/>',
        )
    )
    names = ["0000:10:00.0", "mlx5_0", "mlx5_1", "usb0", "eth0"]
    assert [nic.name for nic in machine.nics] == names
    assert [nic.mbit_per_s for nic in machine.nics] == [None, 200_000, None, None, None]
    assert machine.tree[3].nics == (1, 2)
    assert {path.level for path in machine.gpu_nic} == {"PHB"}


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("16 GT/s", "16", (16.0, 16)),
        ("2.5 GT/s PCIe", "1", (2.5, 1)),
        ("8", "8", (8.0, 8)),
        ("", "0", (None, None)),
        ("Unknown speed", "255", (None, None)),
        ("0", "x16", (None, None)),
    ],
)
def test_speeds_and_widths_are_as_stated(speed, width, expected):
    text = f'<pci busid="{A}" class="0x030000" link_speed="{speed}" link_width="{width}"/>'
    node = read(system(text)).tree[1]
    assert (node.gt_per_s, node.width) == expected


@pytest.mark.parametrize(
    ("attributes", "vendor"),
    [
        ('vendor="AuthenticAMD"', "amd"),
        ('arch="x86_64" vendor="CentaurHauls"', "zhaoxin"),
        ('vendor="  Shanghai  "', "zhaoxin"),
        ('arch="ppc64"', "power"),
        ("", ""),
    ],
)
def test_cpus_are_told_by_their_makers(attributes, vendor):
    assert read(system(gpu(A), cpu=attributes)).tree[0].vendor == vendor


def test_what_says_no_class_is_left_out_beside_gpus():
    machine = read(system(gpu(A, dev=0), f'<pci busid="{B}"/>', f'<pci busid="{C}" class=""/>'))
    assert [one.name for one in machine.gpus] == ["GPU0"]
    assert machine.is_identified
    assert machine.notes == (f"devices that do not say their class, left out: {B}, {C}",)


def test_a_bridge_needs_no_class():
    inner = f'<pci busid="{B}"/><pci busid="{C}"/>'
    machine = read(system(f'<pci busid="{A}">{inner}</pci>'))
    assert not machine.is_identified
    assert levels(machine) == {(0, 1): "PIX"}


@pytest.mark.parametrize(
    ("broken", "problem", "gpus_left"),
    [
        ('<pci class="0x030200"/>', "pci has busid ''; expected one such as", 2),
        ('<pci busid="first"/>', "pci has busid 'first'", 2),
        (gpu(A), f"pci {A} stands here a second time", 2),
        (f'<pci busid="{C}" class="GPU"/>', "pci has class 'GPU'; expected one such as", 2),
        (gpu(C, dev="two"), "gpu has dev 'two'; expected a whole number", 3),
        (f'<pci busid="{C}" {GPU}><gpu/><gpu/></pci>', f"pci {C} has a second gpu", 3),
        (gpu(C, link(A, "many")), "nvlink has count 'many'", 3),
        (gpu(C, link(A, -2)), "nvlink has count '-2'", 3),
        (gpu(C, f'<nvlink target="{A}"/>'), f"nvlink to {A} has no count", 3),
        (gpu(C, link("GPU0")), "nvlink has target 'GPU0'; expected the bus id", 3),
        (gpu(C, '<nvlink count="1"/>'), "nvlink has target ''", 3),
        (gpu(C, link("0000:77:00.0", tclass="")), "leads to 0000:77:00.0, which is not in", 3),
        (gpu(C, link("0000:01:00.0", tclass="")), "leads to 0000:01:00.0, which is a nic", 3),
        (gpu(C, link("0000:02:00.0", tclass="")), "which is another device", 3),
        ("<net/></cpu><nic/><cpu>", "nic stands outside of every cpu", 2),
        ("</cpu><pci/><cpu>", "pci stands outside of every cpu", 2),
        ('</cpu><cpu numaid="x">', "cpu has numaid 'x'", 2),
    ],
)
def test_what_contradicts_is_refused_by_its_line(broken, problem, gpus_left):
    others = (
        '<pci busid="0000:01:00.0" class="0x0200"/><pci busid="0000:02:00.0" class="0x010802"/>'
    )
    text = system(gpu(A, dev=0) + gpu(B, dev=1) + others, "", broken)
    with pytest.raises(ReportError, match=re.escape(problem)) as caught:
        read(text)
    assert caught.value.line == 5
    assert caught.value.partial
    machine = read(text, partial=True)
    assert machine.num_gpus == gpus_left
    assert any(problem in note and note.startswith("line 5: ") for note in machine.notes)


@pytest.mark.parametrize("text", ["<system version='1'/>", system(""), system("<pci")])
def test_a_file_without_gpus_is_refused_even_in_part(text):
    with pytest.raises(ReportError, match="no GPU in the XML") as caught:
        read(text, partial=True)
    assert not caught.value.partial


def test_more_gpus_than_any_machine_has_are_refused():
    many = [f'<pci busid="{at:04x}:00:00.0" class="0x0302"/>' for at in range(1025)]
    with pytest.raises(ReportError, match="1025 GPUs; expected at most 1024"):
        read(system(*many))


def test_text_without_xml_is_refused():
    with pytest.raises(ReportError, match="no topology XML; expected a <system> element"):
        read("GPU0 <b>system</b>")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]><system version="1">&a;</system>', "undefined entity"),
        ('<system version="1"><!DOCTYPE x></system>', "syntax error|not well-formed"),
        ('<!DOCTYPE x><cpu numaid="0"/>', None),
        ('<system version="1">&a;</system>', "undefined entity"),
        ('<system version="1">' + "<pci>" * 100, "nested too deeply"),
    ],
)
def test_entities_and_depth_are_bounded(text, problem):
    """Declarations before the file are not even looked at; inside they break it."""
    _, broken = read_elements(documents(text)[0])
    assert broken is None if problem is None else re.search(problem, broken.problem)


def test_a_file_in_a_log_is_found_with_its_lines():
    text = system(gpu(A, dev=0), gpu(B, dev="x"))
    log = "".join(f"node1:12 [0] NCCL INFO {line}\n" for line in text.splitlines())
    with pytest.raises(ReportError, match=r"f\.xml:7: gpu has dev 'x'"):
        read(f"NCCL version 2.19\n<not it>\nlog\n{log}")
    good = log.replace('"x"', '"1"')
    assert read(f"start\n{good}done <&\n").num_gpus == 2


@pytest.mark.parametrize("head", ["", "<!-- <system> -->\n", "\ufeff<?xml version='1.0'?>\n"])
def test_what_stands_before_a_file_is_skipped(head):
    assert read(head + system(gpu(A), "</cpu><other/><cpu>")).num_gpus == 1


def test_a_file_without_its_head_is_read():
    text = system(gpu(A, dev=0), gpu(B, dev=1))
    without_head = text.partition("\n")[2]
    without_ends = without_head.replace("</system>", "")
    for part in (without_head, without_ends):
        assert facts(read(part)) == facts(read(text))


def test_escapes_of_terminals_and_web_pages_are_undone():
    text = system(gpu(A, dev=0))
    escaped = text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    curly = text.replace('"', "\u201d")
    coloured = "\x1b[1m" + text.replace("\n", "\x1b[0m\r\n")
    for other in (escaped, curly, coloured):
        assert facts(read(other)) == facts(read(text))


def test_a_cut_file_gives_what_is_whole():
    """Each device of the file is there as soon as its last tag is, and not before."""
    text = case("ibm-h100-8-nvswitch-slow-bridge").text
    lines = text.splitlines()
    for end in range(len(lines) - 2):
        cut = "\n".join(lines[:end])
        closed = sum(line.strip() == "</gpu>" for line in lines[:end])
        if closed:
            machine = read(cut, partial=True)
            assert machine.num_gpus == closed
            with pytest.raises(ReportError, match="the XML breaks here") as caught:
                read(cut)
            assert caught.value.line == end


def test_masks_and_lists_of_processors_agree():
    for cpus in ("0", "0-7,32", "31-32", "0-23,48-71", "127"):
        assert cpu_list(cpu_mask(cpus)) == cpus
    assert cpu_list("no mask") == ""
    assert cpu_mask("0-1-2") == ""


def test_classes_of_consoles_are_no_gpus():
    assert kind_of_class("030000", "0x1a03") is PciKind.OTHER
    assert kind_of_class("030000", "0x10de") is PciKind.GPU
    assert bus_id_of("00000000:8A:00.0") == bus_id_of("8a:00.0") == "0000:8a:00.0"
    assert (pci_class("0x0302"), pci_class(" "), pci_class("x")) == ("030200", "", None)


def test_details_of_a_gpu_are_kept():
    cpu = 'numaid="1" affinity="00000000,0000ffff"'
    assert read(system(gpu(A, dev=3), cpu=cpu)).gpus == (
        Gpu("GPU3", bus_id=A, arch="80", numa=1, cpus="0-15"),
    )
