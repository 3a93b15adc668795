#!/usr/bin/env bash
# The runs in docs/explanation/auto.md: what the default achieves, against other tools and without its parts.
#
#   DATA=FOLDER benchmarks/policies/auto_runs.sh RUN...
#
# RUN is choose, confirm, ablation, hard (machines that fail, pauses that cost), few (27 and 81 trials), many (500) or
# rules. `confirm`, `hard` and `rules` need the record of `choose`. DATA has the files named below; docs/how-to/simulate-a-study.md
# says how to get them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../results
orders=${ORDERS:-20}
: "${DATA:?names the folder with the recorded curves}"
choosing=(algoperf_imagenet_vit algoperf_fastmri deepobs_cifar10_3c3d taskset_imdb_patch128_LSTM128_bs64)
confirming=(algoperf_ogbg deepobs_svhn_wrn164 algoperf_librispeech_conformer ts_gru ts_lstm ts_vrnn)
taskset=(ts_gru ts_lstm ts_vrnn)

files() { printf "$DATA/%s.csv.gz\n" "$@"; }
anytime() { python "$here/anytime.py" --orders "$orders" --processes "${PROCESSES:-2}" "$@"; }
# The tools that were best at some spend, and the one whose final result is compared.
best() { python "$here/auto_table.py" --peers "$1"; }
pair() { # NAME TRIALS, then the confirming files: choose the peers with the same number of trials, and confirm
    local name=$1 trials=$2
    shift 2
    local chosen=$out/auto/choose_$name
    local first=("${choosing[@]}")
    ((trials < 500)) || first=("${choosing[3]}")
    anytime --no-plots --workers 16 --trials "$trials" --policies auto --out "$chosen" $(files "${first[@]}")
    anytime --no-plots --workers 16 --trials "$trials" --policies auto --peers "$(best "$chosen")" \
        --judge auto --best-of "$chosen/anytime.json" --out "$out/auto/$name" $(files "$@")
}
hard() { # NAME OPTION VALUE
    local chosen=$out/auto/choose
    anytime --no-plots --workers 16 "$2" "$3" --policies auto --peers "$(best "$chosen")" \
        --judge auto --best-of "$chosen/anytime.json" --out "$out/auto/$1" $(files "${confirming[@]}")
}

for run in "$@"; do
    case $run in
    choose) anytime --policies auto --out "$out/auto/choose" $(files "${choosing[@]}") ;;
    confirm)
        anytime --policies auto --peers "$(best "$out/auto/choose")" --judge auto \
            --best-of "$out/auto/choose/anytime.json" --out "$out/auto/confirm" $(files "${confirming[@]}")
        ;;
    ablation)
        python "$here/ablation.py" --orders 10 --processes "${PROCESSES:-2}" --out "$out/ablation/choose" $(files "${choosing[@]}")
        python "$here/ablation.py" --orders 10 --processes "${PROCESSES:-2}" --out "$out/ablation/confirm" $(files "${confirming[@]}")
        ;;
    hard)
        hard fail --fail 5
        hard pause --pause 0.01
        ;;
    few)
        pair 27 27 "${confirming[@]}"
        pair 81 81 "${confirming[@]}"
        ;;
    many) pair 500 500 "${taskset[@]}" ;;
    rules)
        python "$here/effort_rules.py" --orders 10 --processes "${PROCESSES:-2}" --best-of "$out/auto/choose/anytime.json" \
            --out "$out/effort_rules" $(files "${choosing[@]}")
        for effort in 0.03 0.1; do
            python "$here/effort_rules.py" --orders 10 --processes "${PROCESSES:-2}" --effort "$effort" \
                --best-of "$out/auto/choose/anytime.json" --out "$out/effort_rules/effort_$effort" $(files "${choosing[@]:0:2}")
        done
        ;;
    *)
        echo "there is no run '$run'" >&2
        exit 2
        ;;
    esac
done
