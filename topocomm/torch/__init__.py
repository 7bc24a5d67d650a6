"""A torch.distributed backend: `import topocomm.torch`, then `init_process_group("topocomm")`.

Importing this module registers the backend for tensors in host memory. "cuda:nccl,cpu:topocomm" gives the tensors of
GPUs to another backend. Programs otherwise stay as they are: docs/guide/torch.md.
"""

from topocomm.torch.creation import NAME, register
from topocomm.torch.process_group import TopocommProcessGroup

__all__ = ["NAME", "TopocommProcessGroup"]

register()
