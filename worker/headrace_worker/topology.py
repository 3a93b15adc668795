"""How the GPUs of a machine are connected: NVLink, a PCIe switch, a NUMA node. Read from NVML, or made up for fake
GPUs.

The scheduler uses it to place gangs (`core/placement/joints`). A pair about which the driver says nothing is
unknown, not bad.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from headrace.v1 import worker_pb2

Kind: TypeAlias = "worker_pb2.LinkKind.ValueType"
Links = list[list[Kind]]
"""By the positions of two devices in a list."""
_ISLANDS = re.compile(r"(nvlink|switch|numa):([1-9]\d{0,3})")
_NAMED = {
    "nvlink": worker_pb2.LINK_KIND_NVLINK,
    "switch": worker_pb2.LINK_KIND_SWITCH,
    "numa": worker_pb2.LINK_KIND_NUMA_NODE,
}


def nvml_links(uuids: Sequence[str]) -> Links:
    """Asks NVML about each pair of GPUs; it must be initialised."""
    return _matrix(len(uuids), lambda one, other: _nvml_link(uuids[one], uuids[other]))


def fake_links(count: int, text: str) -> Links:
    """Interconnects of fake GPUs: `nvlink:2,numa:4` joins each two by NVLink, and puts each four on one NUMA node.

    Empty for an empty text. Raises `ValueError` for any other form.
    """
    if not text:
        return []
    islands: dict[str, int] = {}
    for part in text.split(","):
        found = _ISLANDS.fullmatch(part.strip())
        if found is None or found[1] in islands:
            raise ValueError(
                f"--fake-links {text}: give islands of GPUs such as nvlink:2,numa:4, each of nvlink, switch and numa "
                "once at most"
            )
        islands[found[1]] = int(found[2])

    def joined(one: int, other: int) -> Kind:
        for name, kind in _NAMED.items():
            if name in islands and one // islands[name] == other // islands[name]:
                return kind
        return worker_pb2.LINK_KIND_MACHINE

    return _matrix(count, joined)


def _matrix(count: int, joined: Callable[[int, int], Kind]) -> Links:
    links: Links = [[worker_pb2.LINK_KIND_UNSPECIFIED] * count for _ in range(count)]
    for one in range(count):
        for other in range(one + 1, count):
            links[one][other] = links[other][one] = joined(one, other)
    return links


def _nvml_link(one: str, other: str) -> Kind:
    import pynvml

    try:
        first, second = (pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in (one, other))
    except pynvml.NVMLError:
        return worker_pb2.LINK_KIND_UNSPECIFIED
    with suppress(pynvml.NVMLError):  # not supported on some devices
        status = pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == pynvml.NVML_P2P_STATUS_OK:
            return worker_pb2.LINK_KIND_NVLINK
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
    except pynvml.NVMLError:
        return worker_pb2.LINK_KIND_UNSPECIFIED
    if level <= pynvml.NVML_TOPOLOGY_MULTIPLE:  # they meet at PCIe bridges, not at the host's
        return worker_pb2.LINK_KIND_SWITCH
    if level <= pynvml.NVML_TOPOLOGY_NODE:
        return worker_pb2.LINK_KIND_NUMA_NODE
    return worker_pb2.LINK_KIND_MACHINE
