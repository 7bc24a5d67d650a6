"""A torch.distributed backend: `import topocomm.torch`, then `init_process_group("topocomm")`.

Importing this module registers the backend for tensors in host memory. "cuda:nccl,cpu:topocomm" gives the tensors of
GPUs to another backend. Programs otherwise stay as they are: docs/guide/torch.md. For those that keep their backend
`ddp_hook` reduces the gradients of DistributedDataParallel.
"""

from topocomm.execute.transports.torch_group import load_torch

load_torch()  # raises, and says what to install, where there is none

from topocomm.torch.creation import NAME, register  # noqa: E402
from topocomm.torch.gradient_hook import HookState, ddp_hook  # noqa: E402
from topocomm.torch.process_group import TopocommProcessGroup  # noqa: E402

__all__ = ["NAME", "HookState", "TopocommProcessGroup", "ddp_hook"]

register()
