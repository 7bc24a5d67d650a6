#!/usr/bin/env bash
# Checks and times everything on one GPU, in four calls of less than ten minutes each: tools/gpu/run.sh OUT [CALL]
#
#   1 correctness   card and versions; every kernel against the formula
#   2 kernels       timed by the rules, tuned, timed again with the tables just tuned
#   3 ranks         several on the one card, beside NCCL
#   4 generation    every kernel against the formula with the tuned tables; a small model, beside SDPA
#
# Without CALL all four. Nothing is installed and no setting of the card is touched. In OUT (8 files at most) are
# results-CALL.json, results.md of all calls, ready for docs/results, log.txt, and the tuned tables, which later calls
# use; all are written as it goes. Ends with status 1 if a check of its own failed, or a part did not come to its end.
#
#   EARLIER=folder     what earlier calls left, where OUT begins empty: it is copied into OUT first
#   TOTAL_S=570        what a call may take
#   PYTHON=python3     with which Python
#   NCCL_DIR=folder    has an NCCL of 2.30 or later for ranks: see carried_nccl.py, slim_nccl.py
#   PARTS="..."        other parts, as program:seconds or program:seconds:tables
set -uo pipefail
shopt -s nullglob
cd "$(dirname "$0")/../.."
out=${1:?usage: tools/gpu/run.sh OUT [1|2|3|4|correctness|kernels|ranks|generation]}
case ${2:-all} in
	all) calls=(1 2 3 4) ;;
	1 | correctness) calls=(1) ;;
	2 | kernels) calls=(2) ;;
	3 | ranks) calls=(3) ;;
	4 | generation) calls=(4) ;;
	*) echo "run.sh: CALL=$2: expected 1, 2, 3, 4, correctness, kernels, ranks or generation" >&2; exit 2 ;;
esac
read -ra python <<< "${PYTHON:-python3}"
# In order of worth, with seconds for each.
parts_of_call=(
	[1]="facts:45 check_kernels:450"
	[2]="facts:30 bench_kernels:190:rules tune:140 bench_kernels:180:tuned"
	[3]="facts:30 bench_ranks:480"
	[4]="facts:30 check_kernels:150:tuned bench_generate:330"
)

mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [[ -n ${EARLIER:-} ]]; then
	earlier=("$EARLIER"/results-*.json "$EARLIER"/*_table.json)
	((${#earlier[@]} == 0)) || cp -n "${earlier[@]}" "$out"
fi

run_call() {
	local began=$SECONDS parts names=() part name seconds tables left status words
	export RUN_CALL=$1
	rm -f "$out/results-$RUN_CALL.json"
	read -ra parts <<< "${PARTS:-${parts_of_call[$1]}}"
	for part in "${parts[@]}"; do
		IFS=: read -r name seconds tables <<< "$part"
		words=("tools/gpu/$name.py" "$out" ${tables:+--tables "$tables"})
		if [[ $name == facts ]]; then names+=("facts$RUN_CALL"); else names+=("$name${tables:+ $tables}"); fi
		left=$((${TOTAL_S:-570} - (SECONDS - began)))
		((seconds < left)) || seconds=$left
		if ((seconds < 5)); then
			echo "$name${tables:+ $tables}: no time left" | tee -a "$out/log.txt"
			continue
		fi
		echo "== call $RUN_CALL: $name${tables:+ $tables}, $seconds s, at $((SECONDS - began)) s" | tee -a "$out/log.txt"
		# Ranks and generation run with what was tuned on this card; what is checked, and what is tuned, by the rules.
		local chosen=()
		if ((RUN_CALL > 2)) && [[ -e $out/decode_table.json ]]; then chosen=("TOPOCOMM_TUNED_DIR=$(realpath "$out")"); fi
		# A program ends by itself a little before its limit; one that hangs is stopped, and killed if that does not help.
		env "${chosen[@]}" timeout --kill-after=5 "$seconds" "${python[@]}" "${words[@]}" --seconds "$((seconds * 85 / 100))" \
			< /dev/null 2>&1 | tee -a "$out/log.txt"
		status=${PIPESTATUS[0]}
		((status == 0)) || echo "$name${tables:+ $tables}: status $status" | tee -a "$out/log.txt"
	done
	"${python[@]}" tools/gpu/results.py "$out" "${names[@]}" 2>&1 | tee -a "$out/log.txt"
	return "${PIPESTATUS[0]}"
}

worst=0
for call in "${calls[@]}"; do
	run_call "$call" || worst=1
done
exit "$worst"
