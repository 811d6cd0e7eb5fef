"""Bandwidths per direction, in whole MB/s (10^6 bytes), with their sources.

They only need to be right relative to one another: a plan depends on ratios. What a collective
achieves is measured, never computed from here.
"""

from __future__ import annotations

# Achieved per lane; Blink (Wang et al., MLSys 2020), section 2 and figures 14 to 16:
# 18 to 20 GB/s for NVLink 1 (P100), 22 to 25 GB/s for NVLink 2 (V100).
NVLINK1_LANE_MB_PER_S = 19_000
NVLINK2_LANE_MB_PER_S = 23_000

# Gen3 x16 achieves 8 to 12 GB/s of its 15.75 (same paper).
PCIE3_X16_MB_PER_S = 10_000

# Between the sockets of a DGX-1, device to device: QPI of the Broadwell Xeon, about 6 GB/s.
QPI_MB_PER_S = 6_000

# One core that reads and writes memory beyond its caches: 10 to 15 GB/s on current servers.
CORE_MB_PER_S = 12_000

# Between two CPU sockets, memory traffic: two to three UPI or xGMI links of about 20 GB/s raw,
# of which two thirds are payload.
SOCKET_MB_PER_S = 30_000
