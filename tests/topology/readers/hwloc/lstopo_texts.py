"""Texts of lstopo for invented machines."""

WORKSTATION = """\
Machine (31GB total)
  Package L#0
    NUMANode L#0 (P#0 31GB)
    L3 L#0 (16MB)
      L2 L#0 (512KB) + L1d L#0 (32KB) + L1i L#0 (32KB) + Core L#0
        PU L#0 (P#0)
        PU L#1 (P#2)
      L2 L#1 (512KB) + L1d L#1 (32KB) + L1i L#1 (32KB) + Core L#1
        PU L#2 (P#1)
        PU L#3 (P#3)
  HostBridge
    PCIBridge
      PCI 01:00.0 (NVMExp)
        Block(Disk) "nvme0n1"
    PCIBridge
      PCIBridge
        PCIBridge
          PCI 04:00.0 (Ethernet)
            Net "enp4s0"
        PCIBridge
          PCI 05:00.0 (Network)
            Net "wlp5s0"
    PCIBridge
      PCI 0a:00.0 (VGA)
        GPU(NVML) "nvml1"
        CoProc(CUDA) "cuda0"
    PCIBridge
      PCI 09:00.0 (VGA)
        GPU(NVML) "nvml0"
        CoProc(CUDA) "cuda1"
  Misc(MemoryModule)
"""

VERBOSE = """\
Machine (P#0 total=528279532KB DMIProductName="Box 4" Backend=Linux OSName=Linux hwlocVersion=2.9.3 ProcessName=lstopo)
  Package L#0 (P#0 total=264092652KB CPUVendor=AuthenticAMD CPUModel="AMD EPYC 7763 64-Core Processor")
    NUMANode L#0 (P#0 local=264092652KB total=264092652KB)
    L3Cache L#0 (P#0 size=32768KB linesize=64 ways=16)
      Core L#0 (P#0)
        PU L#0 (P#0)
    HostBridge L#0 (buses=0001:[00-04])
      PCIBridge L#1 (busid=0001:00:01.1 id=1022:1483 class=0604(PCIBridge) link=31.51GB/s buses=0001:[01-04])
        PCIBridge L#2 (busid=0001:01:00.0 id=1000:c010 class=0604(PCIBridge) link=31.51GB/s buses=0001:[02-04])
          PCIBridge L#3 (busid=0001:02:00.0 id=1000:c010 class=0604(PCIBridge) link=31.51GB/s buses=0001:[03-03])
            PCI L#0 (busid=0001:03:00.0 id=10de:20b5 class=0302(3D) link=31.51GB/s PCISlot=7)
              GPU(NVML) L#0 (Backend=NVML GPUVendor="NVIDIA Corporation" GPUModel="NVIDIA A100 80GB PCIe") "nvml0"
          PCIBridge L#4 (busid=0001:02:01.0 id=1000:c010 class=0604(PCIBridge) link=31.51GB/s buses=0001:[04-04])
            PCI L#1 (busid=0001:04:00.0 id=15b3:101b class=0207(InfiniBand) link=31.51GB/s)
              Network L#1 (Address=00:00:10:29 Port=1) "ib0"
              OpenFabrics L#2 (NodeGUID=b859:9f03:0000:0001 Port1State=4) "mlx5_0"
  Package L#1 (P#1 total=264186880KB CPUVendor=AuthenticAMD CPUModel="AMD EPYC 7763 64-Core Processor")
    NUMANode L#1 (P#1 local=264186880KB total=264186880KB)
    L3Cache L#1 (P#16 size=32768KB linesize=64 ways=16)
      Core L#1 (P#0)
        PU L#1 (P#64)
    HostBridge L#5 (buses=0002:[00-01])
      PCIBridge L#6 (busid=0002:00:01.1 id=1022:1483 class=0604(PCIBridge) link=31.51GB/s buses=0002:[01-01])
        PCI L#2 (busid=0002:01:00.0 id=10de:20b5 class=0302(3D) link=31.51GB/s PCISlot=3)
          GPU(NVML) L#3 (Backend=NVML GPUVendor="NVIDIA Corporation" GPUModel="NVIDIA A100 80GB PCIe") "nvml1"
    HostBridge L#7 (buses=0003:[00-01])
      PCIBridge L#8 (busid=0003:00:01.1 id=1022:1483 class=0604(PCIBridge) link=0.50GB/s buses=0003:[01-01])
        PCI L#3 (busid=0003:01:00.0 id=8086:1521 class=0200(Ethernet) link=2.00GB/s)
          Network L#4 (Address=00:25:90:00:00:01) "eno1"
depth 0:           1 Machine (type #0)
 depth 1:          2 Package (type #1)
Special depth -4:  4 PCIDev (type #15)
Relative latency matrix (name NUMALatency kind 5) between 2 NUMANodes (depth -3) by logical indexes:
  index     0     1
      0    10    32
      1    32    10
Topology not from this system
"""

OLD = """\
Machine (128GB total)
  NUMANode L#0 (P#0 64GB)
    Package L#0 + L3 L#0 (20MB)
      L2 L#0 (256KB) + L1d L#0 (32KB) + L1i L#0 (32KB) + Core L#0 + PU L#0 (P#0)
      L2 L#1 (256KB) + L1d L#1 (32KB) + L1i L#1 (32KB) + Core L#1 + PU L#1 (P#2)
    HostBridge L#0
      PCIBridge
        PCI 10de:1db1
          GPU L#0 "card1"
          GPU L#1 "renderD128"
          CoProc L#2 "cuda0"
      PCIBridge
        PCI 10de:1db1
          CoProc L#3 "cuda1"
      PCIBridge
        PCI 1a03:2000
          GPU L#4 "card0"
  NUMANode L#1 (P#1 64GB)
    Package L#1 + L3 L#1 (20MB)
      L2 L#2 (256KB) + L1d L#2 (32KB) + L1i L#2 (32KB) + Core L#2 + PU L#2 (P#1)
      L2 L#3 (256KB) + L1d L#3 (32KB) + L1i L#3 (32KB) + Core L#3 + PU L#3 (P#3)
    HostBridge L#4
      PCIBridge
        PCI 15b3:1013
          Net L#5 "ib0"
          OpenFabrics L#6 "mlx5_0"
"""

ARM = """\
Machine (15GB total) + Package L#0
  NUMANode L#0 (P#0 15GB)
  L2 L#0 (1024KB) + L1d L#0 (64KB) + L1i L#0 (64KB) + Core L#0 + PU L#0 (P#0)
  L2 L#1 (1024KB) + L1d L#1 (64KB) + L1i L#1 (64KB) + Core L#1 + PU L#1 (P#1)
  HostBridge
    2 x { PCI 00:05.0-1 (Ethernet) }
"""
