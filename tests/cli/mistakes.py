"""Fifty command lines with a typical mistake each, and what was meant.

`MACHINE` is a file with a topology, `PLAN` one with a plan; a suggestion of None is where the remedy is in the error.
"""

H100 = ("--system", "dgx-h100")
SMALL = (*H100, "--bytes", "64K")

MISTAKES = [
    # commands
    ("inspec", "inspect"),
    ("plna --bytes 64K", "plan"),
    ("sim --bytes 64K", "simulate"),
    ("benchmark", "bench"),
    ("topology", "inspect"),
    ("check", "doctor"),
    ("calibrat --input x", "calibrate"),
    ("completions bash", "completion"),
    ("--sistem dgx-h100 inspect", None),
    # options
    ("plan --sytem dgx-h100 --bytes 64K", "--system"),
    ("plan --system dgx-h100 --byts 64K", "--bytes"),
    ("plan --system dgx-h100 -bytes 64K", "--bytes"),
    ("plan --system dgx-h100 --nodes 2 --bytes 64K", "--hosts"),
    ("plan --system dgx-h100 --bytes 64K --np 4", "--ranks"),
    ("plan --system dgx-h100 --bytes 64K --max_trees 2", "--max-trees"),
    ("plan --system dgx-h100 --bytes 64K --jsn", "--json"),
    ("plan --system dgx-h100 --bytes 64K --svg", "--format svg"),
    ("plan --system dgx-h100 --bytes 64K --throughput", "--objective throughput"),
    ("plan --topology MACHINE --bytes 64K", "--input"),
    ("plan --file MACHINE --bytes 64K", "--input"),
    ("inspect --ouput x.json", "--output"),
    ("inspect --system dgx-h100 -o x.json", "--output"),
    ("simulate --system dgx-h100 --bytes 64K --algoritm ring", "--algorithm"),
    ("simulate --system dgx-h100 --bytes 64K --comapre ring", "--compare"),
    ("bench --iters 5", "--iterations"),
    ("bench --op sum --warm-up 3", "--warmup"),
    ("order --system dgx-h100 --formt map-by", "--format"),
    ("calibrate --sytem dgx-h100 --input x", "--system"),
    # options of another command
    ("plan --iterations 5", "belongs to `topocomm bench`"),
    ("order --system dgx-h100 --ports 2", "belongs to `topocomm plan`, `topocomm simulate`"),
    ("doctor --json", "`topocomm calibrate`, `topocomm bench`"),
    # words without their option
    ("plan dgx-h100 --bytes 64K", "--system dgx-h100"),
    ("plan --system dgx-h100 64K", "--bytes 64K"),
    ("inspect MACHINE", "--input MACHINE"),
    ("plan --system dgx-h100 --bytes 64K allgather", "--collective allgather"),
    # names
    ("plan --system dgxh10 --bytes 64K", "dgx-h100"),
    ("plan --system h100 --bytes 64K", "dgx-h100"),
    ("inspect --system mi300x", "mi300x-8"),
    ("inspect --system dgx-a10", "dgx-a100"),
    ("plan --system dgx-h100 --bytes 64K --collective allredcue", "allreduce"),
    ("plan --system dgx-h100 --bytes 64K --collective bcast", "broadcast"),
    ("plan --system dgx-h100 --bytes 64K --operator add", "sum"),
    ("plan --system dgx-h100 --bytes 16512 --operator logsumexp", "attention.logsumexp"),
    ("plan --system dgx-h100 --bytes 64K --objective bandwidth", "throughput"),
    ("plan --system dgx-h100 --bytes 64K --format jsn", "json"),
    ("plan --system dgx-h100 --bytes 64K --ranks GPU0,GPU11", "GPU1"),
    ("simulate --system dgx-h100 --bytes 64K --algorithm nccl_rng", "nccl-ring"),
    ("simulate --system dgx-h100 --model lama3-8b --context 128K", "llama-3.1-8b"),
    # values
    ("plan --system dgx-h100 --bytes 64Kbit", None),
    ("plan --system dgx-h100 --bytes 65535", None),
    ("plan --system dgx-h100 --sizes 8-128M", None),
    ("plan --system dgx-h100 --ranks 0,1 --bytes 64K", "GPU0,GPU1"),
    # files
    ("plan --input NEAR --bytes 64K", "MACHINE"),
    ("inspect --input dgx-h100", "--system dgx-h100"),
    ("plan --input PLAN --bytes 64K", None),
    ("plan --system dgx-h100 --plan MACHINE", None),
    ("inspect --system dgx-h100 --input MACHINE", None),
]
