"""Examples of commands for the reference: those of a command use each of its options once, from top to bottom.

They run in one folder in the order of the commands, so that a later one reads what an earlier one wrote. Logs of
benchmarks are the reader's own: `all_reduce.log` of nccl-tests, `osu_allreduce.txt` of OSU. Jobs read a model's folder
and a text of the reader's, and some want GPUs.
"""

EXAMPLES = {
    "topocomm inspect": """
topocomm inspect
topocomm inspect --system dgx-1-v100 --format json --output machine.json
topocomm inspect --input machine.json --hosts 2 --format matrix
topocomm inspect --system dgx-h100 --compare machine.json
topocomm inspect --system dgx-h100 --invent-bus-ids --format nccl-xml --output topology.xml
mpirun -n 2 topocomm inspect --measure --format json --output measured.json
""",
    "topocomm plan": """
topocomm plan --system dgx-h100 --hosts 2 --bytes 16512 --operator attention.logsumexp
topocomm plan --input machine.json --collective broadcast --root 3 --objective latency --port-model alpha --ports 2
topocomm plan --system dgx-h100 --sizes 64:64MiB:4
topocomm plan --system dgx-h100 -b 1K -e 1M -f 32
topocomm plan --input machine.json --objective throughput --bytes 64MiB --max-trees 2 --max-scratch 64MiB
topocomm plan --input machine.json --ranks 4 --order canonical --launch-us 6.6 --save plan.json --trace plan-trace.json
topocomm plan --input machine.json --plan plan.json --format svg --output plan.svg
topocomm plan --system dgx-h100 --hosts 2 --without h1/NIC3 --what-if network=25
topocomm plan --input machine.json --bytes 1MiB --format msccl-xml --runtime azure --output program.xml
""",
    "topocomm simulate": """
topocomm simulate --system dgx-h100 --hosts 2 --bytes 1MiB --algorithm planned --protocols nccl --trace trace.json
topocomm simulate --input machine.json --plan plan.json --fold-gb-per-s 900
topocomm simulate --input machine.json --collective reduce --root 2 --ranks 4 --operator max --port-model alpha
topocomm simulate --input machine.json --bytes 1MiB --objective latency
topocomm simulate --system dgx-h100 --compare planned,ring,nccl -b 1K -e 1M -f 32 --ports 1 --launch-us 6.6
topocomm simulate --system dgx-h100 --sweep hosts=2,4 --without h0/NIC3 --what-if network=25
topocomm simulate --system dgx-h100 --model llama-3.1-8b --context 128K --batch 4 --methods tree,ring --format json
topocomm simulate --input machine.json --model llama-3.2-1b --context 32K --device v100 --efficiency 0.7
topocomm simulate --system dgx-h100 --model llama-3.2-1b --context 32K --weights replicated
""",
    "topocomm order": """
topocomm order --system dgx-1-v100 --collective allgather --bytes 8MiB --operator sum --objective latency
topocomm order --input machine.json --hosts 2 --ranks 4 --format devicemesh
""",
    "topocomm calibrate": """
topocomm calibrate --input all_reduce.log --system dgx-h100 --output calibrated.json
topocomm calibrate --input osu_allreduce.txt --topology machine.json --hosts 1 --ranks 8 --all-rows --format json
""",
    "topocomm schema": """
topocomm schema
topocomm schema plan
""",
    "topocomm bench": """
mpirun -n 2 topocomm bench --collective allgather --sizes 8:64KiB:8 --format csv
topocomm bench --ranks 2 -b 8 -e 4K -f 8 -n 20 -w 2 --trace calls.json
topocomm bench --ranks 3 --bits --operator attention.logsumexp --sizes 516
""",
    "topocomm doctor": """
mpirun -n 2 topocomm doctor
topocomm doctor --report
topocomm doctor --input machine.json
topocomm doctor --system dgx-h100 --hosts 2
""",
    "topocomm completion": """
eval "$(topocomm completion bash)"
""",
    "python -m attention generate": """
python -m attention generate --model smollm2 --prompt "Name three long rivers." --max-new-tokens 16 --ranks 2
mpirun -n 2 python -m attention generate --model smollm2 --prompt-file text.txt --weights sharded --verify --profile
mpirun -n 8 python -m attention generate --model ./llama --prompt-file text.txt --method ring --device cuda
""",
    "python -m attention serve": """
mpirun -n 2 python -m attention serve --model smollm2 --weights sharded --host 127.0.0.1 --port 8000
mpirun -n 8 python -m attention serve --model ./llama --device cuda --max-batch 32 --max-queue 256 --max-context 32768
""",
    "python -m attention decode": """
python -m attention decode --context 32K --batch 2 --ranks 2
mpirun -n 2 python -m attention decode --heads 32 --kv-heads 8 --head-dim 128 --method tree --steps 10
mpirun -n 8 python -m attention decode --context 1M --device cuda
""",
}
