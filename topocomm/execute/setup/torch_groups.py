"""What a program may hand over as its torch process group, checked."""

from __future__ import annotations

from typing import Any

from topocomm.errors import TopocommError
from topocomm.execute.transports.torch_group import load_torch

HOW_TO = "call torch.distributed.init_process_group('gloo') first, or topocomm.init(), which does it under torchrun"


def process_group(group: Any) -> Any:
    """The torch.distributed.ProcessGroup that is meant: a group, a 1-D DeviceMesh, or None for the default group.

    Raises:
        MissingExtraError: torch is missing.
        TopocommError: There is no such group, this process is not in it, or it has no backend for host memory.
    """
    dist = load_torch().distributed
    from torch.distributed.device_mesh import DeviceMesh

    where = "Communicator.from_torch"
    if not dist.is_initialized():
        raise TopocommError(f"{where}: torch.distributed is not initialised; {HOW_TO}")
    if group is None:
        group = dist.group.WORLD
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise TopocommError(
                f"{where}: expected a 1-D DeviceMesh, got one of shape {tuple(group.shape)}; "
                f"pass one dimension of it: mesh[name], name one of {group.mesh_dim_names}"
            )
        group = group.get_group()
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise TopocommError(
            f"{where}: this process, rank {dist.get_rank()} of the default group, is not a member of the group; "
            "only its members make the call"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TopocommError(
            f"{where}: expected a torch.distributed.ProcessGroup, a 1-D DeviceMesh or None, got {type(group).__name__}"
        )
    backends = str(dist.get_backend_config(group))
    if "cpu" not in [part.split(":")[0] for part in backends.split(",")]:
        raise TopocommError(
            f"{where}: the group has only the backend {backends}, and values go through host memory here; "
            "pass torch.distributed.new_group(backend='gloo')"
        )
    return group
