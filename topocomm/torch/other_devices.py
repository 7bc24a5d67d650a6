"""The tensors of a group that are not in host memory: another backend moves them, made when it is first needed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from topocomm.errors import TopocommError


class OtherDevices:
    """The backends of one group for devices, by the part of "cuda:nccl,cpu:topocomm" that names them."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._groups: dict[str, dist.ProcessGroup] = {}

    def group(self, device: torch.device, config: str) -> dist.ProcessGroup:
        """Return the group that moves tensors of a device; `config` is torch's "device:backend,device:backend".

        Raises:
            TopocommError: There is no backend for this device, or not in this build of torch.
        """
        if device.type not in self._groups:
            backend, kind = self._backend(device, config)
            group = dist.ProcessGroup(PrefixStore(f"{device.type}/", self._store), self._rank, self._size)
            group._set_default_backend(kind)
            group._register_backend(torch.device(device.type), kind, backend)
            self._groups[device.type] = group
        return self._groups[device.type]

    def close(self) -> None:
        """Shut all of them down."""
        for group in self._groups.values():
            group.shutdown()

    def _backend(self, device: torch.device, config: str) -> tuple[Any, Any]:
        names = dict(part.split(":") for part in config.split(",") if ":" in part)
        name = names.get(device.type)
        store = PrefixStore(f"{device.type}/{name}/", self._store)
        if name == "nccl" and dist.is_nccl_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            backend: Any = dist.ProcessGroupNCCL(store, self._rank, self._size, options)
            return backend, dist.ProcessGroup.BackendType.NCCL
        if name == "gloo":
            backend = dist.ProcessGroupGloo(store, self._rank, self._size, timeout=self._timeout)
            return backend, dist.ProcessGroup.BackendType.GLOO
        if name is None:
            raise TopocommError(
                f"a tensor is on {device}, and this group serves {config}; name a backend for it, as in "
                'init_process_group("cuda:nccl,cpu:topocomm")'
            )
        raise TopocommError(
            f"{device.type}:{name} beside cpu:topocomm: expected nccl, of a torch built with it, or gloo"
        )
