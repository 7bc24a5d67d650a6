"""The energy whose gradient is attention, of four keys that lie on several ranks, and its derivatives.

python docs/examples/energy.py runs three ranks on threads; under mpirun, srun or torchrun the ranks are the job's.
"""

import numpy as np
import torch

import topocomm
from attention import Spec
from attention.energy import attention_energy, attention_from_energy, value_covariance

SCORES, VALUES = np.array([0.2, 1.0, 1.4, -0.3]), np.array([-1.0, 0.0, 1.0, 2.0])
PROBES = np.linspace(-3, 3, 121)  # of which the middle one is 0
ZERO, SPEC = 60, Spec(scale=1)

k, v = (torch.from_numpy(x).view(1, 1, -1, 1) for x in (SCORES, VALUES))  # [batch, kv_heads, n, dim]
zeta = torch.from_numpy(PROBES).view(1, 1, -1, 1)  # [batch, heads, q_len, d_v]: a query row for every probe
q = torch.ones_like(zeta)


def energies(comm):
    """F at all probes: of this rank's keys, then of all. A rank may have none."""
    mine = np.array_split(np.arange(len(SCORES)), comm.size)[comm.rank]
    part = attention_energy(q, k[:, :, mine], v[:, :, mine], zeta, spec=SPEC)
    return comm.allreduce(part, topocomm.LOGADDEXP).flatten().numpy()


def main():
    with topocomm.init() as job:
        energy, *_ = topocomm.run_local(energies, ranks=3) if job.size == 1 else [energies(job)]
        slope = attention_from_energy(q[:, :, :1], k, v, spec=SPEC).item()
        curvature = value_covariance(q[:, :, :1], k, v, spec=SPEC).item()
        behind, here, ahead, step = *energy[ZERO - 1 : ZERO + 2], PROBES[1] - PROBES[0]
        if job.rank == 0:
            print(f"energy at 0:    {here:.3f}, lse of the scores {np.log(np.exp(SCORES).sum()):.3f}")
            print(f"slope at 0:     {(ahead - behind) / (2 * step):.3f} from energies, attention {slope:.3f}")
            second = (ahead - 2 * here + behind) / step**2
            print(f"curvature at 0: {second:.3f} from energies, variance {curvature:.3f}")


if __name__ == "__main__":
    main()
