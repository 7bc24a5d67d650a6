#!/usr/bin/env bash
# Checks and times everything on one GPU, in less than ten minutes: tools/gpu/run.sh [OUT]
#
# Nothing is installed and no setting of the card is touched. In OUT ($OUT, else gpu-results) are results.md, ready for
# docs/results, results.json, log.txt and the tuned tables; whatever stops a part, what it had is there. Ends with
# status 1 if a check failed or a part did not come to its end.
#
#   TOTAL_S=570        what all of it may take
#   PARTS="..."        which parts, in which order
#   PYTHON=python3     with which Python
#   NCCL_DIR=folder    has libnccl.so.2, or the wheel nvidia-nccl-cu1x whole or in parts: bench_ranks.py takes that one
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-gpu-results}}
total=${TOTAL_S:-570}
read -ra python <<< "${PYTHON:-python3}"
# In order of worth, with seconds for each.
read -ra parts <<< "${PARTS:-facts:30 check_kernels:150 bench_kernels:150 bench_ranks:105 bench_generate:60 tune:75}"

mkdir -p "$out"
rm -f "$out"/results.json "$out"/results.md "$out"/log.txt
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
names=()
for part in "${parts[@]}"; do
	name=${part%%:*} seconds=${part##*:}
	names+=("$name")
	left=$((total - SECONDS))
	((seconds < left)) || seconds=$left
	if ((seconds < 5)); then
		echo "$name: no time left" | tee -a "$out/log.txt"
		continue
	fi
	echo "== $name, $seconds s, at $SECONDS s" | tee -a "$out/log.txt"
	# A program ends by itself a little before its limit; one that hangs is stopped, and killed if that does not help.
	timeout --kill-after=5 "$seconds" "${python[@]}" "tools/gpu/$name.py" "$out" --seconds "$((seconds * 8 / 10))" \
		< /dev/null 2>&1 | tee -a "$out/log.txt"
	status=${PIPESTATUS[0]}
	((status == 0)) || echo "$name: status $status" | tee -a "$out/log.txt"
done
"${python[@]}" tools/gpu/results.py "$out" "${names[@]}" 2>&1 | tee -a "$out/log.txt"
exit "${PIPESTATUS[0]}"
