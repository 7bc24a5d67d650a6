"""Compile the peer kernel for a GPU that need not be there: `python -m tests.operators.kernels.peer_compiled ARCH`.

Prints a JSON object {case: {"spills": bytes or registers, "text": what of the assembly orders memory, in order}}. A
program of its own, since kernels are interpreted in the tests' process.
"""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tools" / "gpu"))

from configs import resources
from configs.peer_configs import peer_configs

PTX = {
    r"bar\.sync": "barrier",
    r"st\.release\.sys\.global\.u64": "raise",
    r"atom\.global\.sys\.acquire\.add\.u64": "look",
    r"globaltimer": "clock",
    r"ld\.global\.v4": "wide load",
    r"st\.global\.v4": "wide store",
    r"atom\.global\.gpu\.acq_rel\.add": "arrive",
}
AMD = {
    r"s_barrier": "barrier",
    r"buffer_wbl2": "write back",
    r"global_atomic_swap_x2": "raise",
    r"global_atomic_add_x2": "look",
    r"buffer_inv": "invalidate",
    r"s_memrealtime": "clock",
    r"buffer_store_dwordx4": "wide store",
}


def ordering(text, names):
    found = []
    for line in text.splitlines():
        found += [name for pattern, name in names.items() if re.search(pattern, line.split("//")[0])]
    return found


def main(arch):
    kept = {}

    def keep(made, of):
        kept["text"] = ordering(made.asm["ptx"], PTX) if "ptx" in made.asm else ordering(made.asm["amdgcn"], AMD)
        return of(made)

    nvidia, amd = resources._nvidia, resources._amd
    resources._nvidia, resources._amd = lambda made: keep(made, nvidia), lambda made: keep(made, amd)
    told = {}
    for config in peer_configs(arch):
        found = resources.compiled(config, arch)
        told[config.what] = {"spills": found.spills, "text": kept["text"]}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
