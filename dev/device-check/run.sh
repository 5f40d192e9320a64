#!/usr/bin/env bash
# Shows on a machine with a CUDA device that the kernels do there what they do on the simulated driver,
# and how fast. `cargo xtask device-check` builds what it needs and puts this script beside it; from then
# on neither cargo nor the repository is needed.
#
#   run.sh [--quick] [--out FOLDER]
#
# --quick takes the smallest set of everything. Full logs go to the folder (device-check-<time> by
# default), a short table to standard output, last. The exit code is 0 if every step passed, 1 if one
# failed, and 2 without a device. On a simulated device nothing is timed.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
quick=
out=device-check-$(date -u +%Y%m%dT%H%M%SZ)
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=--quick ;;
        --out) out=${2:?--out takes a folder}; shift ;;
        *) echo "run.sh: unknown argument $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift
done
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
: >"$out/table"

fucina=$here/fucina
check=$here/device_check
start=$SECONDS
failed=0

# step NAME SECONDS COMMAND..: one line of the table; the output goes to NAME.log.
step() {
    local name=$1 limit=$2 begin=$SECONDS code last
    shift 2
    if [ "$(type -t "$1")" = function ]; then
        # `timeout` runs programs only.
        export -f "$1"
        timeout "$limit" bash -c '"$@"' bash "$@" >"$out/$name.log" 2>&1
    else
        timeout "$limit" "$@" >"$out/$name.log" 2>&1
    fi
    code=$?
    last=$(tail -n 1 "$out/$name.log" | cut -c 1-100)
    if [ $code -eq 0 ]; then
        row "$name" ok $((SECONDS - begin)) "$last"
    else
        failed=1
        [ $code -eq 124 ] && last="not done after $limit s"
        row "$name" FAILED $((SECONDS - begin)) "$last"
    fi
    return $code
}

row() { printf '%-22s %-7s %5s  %s\n' "$@" >>"$out/table"; }

# The ids that a prompt is continued with, on the CPU and with every call offered to the device.
same_tokens() {
    local model=$1 prompt=$2 tokens=$3 on ids count
    for on in 0 force; do
        FUCINA_GPU=$on "$fucina" run $model "$prompt" --greedy --ignore-eos -n "$tokens" --json -q \
            >"$out/ids.$on.json" || return 1
        cat "$out/ids.$on.json"
        sed 's/.*"ids":\(\[[^]]*\]\).*"stop".*/\1/' "$out/ids.$on.json" >"$out/ids.$on"
    done
    count=$(sed 's/.*"offloaded":{\([^}]*\)}.*/\1/' "$out/ids.force.json")
    if ! grep -q '"offloaded":{"' "$out/ids.force.json"; then
        echo "no call ran on the device"
        return 1
    fi
    if ! cmp -s "$out/ids.0" "$out/ids.force"; then
        diff "$out/ids.0" "$out/ids.force"
        echo "the tokens differ"
        return 1
    fi
    echo "$tokens tokens are the same; calls on the device: $count"
}

# The mean log likelihood of a text, on both sides: they may differ by a hundredth.
same_likelihood() {
    local on
    "$fucina" run "It is a truth" --seed 1 -n 200 -q >"$out/text" || return 1
    for on in 0 force; do
        FUCINA_GPU=$on "$fucina" perplexity "$out/text" --ctx "$1" --chunks 1 --json -q \
            >"$out/nll.$on.json" || return 1
        cat "$out/nll.$on.json"
        sed 's/.*"mean_nll":\([0-9.eE+-]*\),.*/\1/' "$out/nll.$on.json" >"$out/nll.$on"
    done
    paste "$out/nll.0" "$out/nll.force" | awk '
        { d = $1 - $2; if (d < 0) d = -d
          printf "mean log likelihood %s on the CPU and %s on the device\n", $1, $2
          exit !($1 > 0 && $2 > 0 && d <= 0.01) }'
}

if ! "$check" about >"$out/about.log" 2>&1; then
    cat "$out/about.log" >&2
    exit 2
fi
about=$(cat "$out/about.log")
"$fucina" doctor >"$out/doctor.log" 2>&1
command -v nvidia-smi >/dev/null && nvidia-smi >"$out/nvidia-smi.log" 2>&1
simulated=
case $about in *[Ss]imulated*) simulated=--allow-simulated ;; esac

export out fucina

step conformance 120 "$check" conformance
step parity 200 "$check" parity $quick
if command -v compute-sanitizer >/dev/null && [ -z "$simulated" ]; then
    step sanitizer 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$check" parity --quick
else
    row sanitizer skipped 0 "there is no compute-sanitizer here"
fi

prompt="It is a truth universally acknowledged"
step model-tokens 120 same_tokens "" "$prompt" $([ -n "$quick" ] && echo 4 || echo 64)
step model-likelihood 120 same_likelihood $([ -n "$quick" ] && echo 16 || echo 128)

if [ -n "$simulated" ]; then
    # Shapes that a simulated device can do, and no times.
    step gpu-dispatch 60 "$fucina" bench gpu-dispatch --dims 33 40 40 $simulated
    step gpu-formats 60 "$fucina" bench gpu-formats --section quant --dims 9 256 256 $simulated
else
    step gpu-dispatch 90 "$fucina" bench gpu-dispatch ${quick:+--quick} --csv
    step gpu-formats 150 "$fucina" bench gpu-formats ${quick:+--shape prefill32 --iters 3} --csv
    model=$out/qwen3-0.6b.gguf
    if [ -z "$quick" ] && "$here/xtask" synth-model --out "$model" >"$out/synth.log" 2>&1; then
        for on in 0 1 force; do
            step "qwen3-0.6b-gpu=$on" 90 env FUCINA_GPU=$on "$fucina" bench "$model" -p 512 -n 32 -r 3 --csv
        done
        rm -f "$model"
    fi
fi

echo
echo "$about"
printf '%-22s %-7s %5s  %s\n' step result s "last line of its log"
cat "$out/table"
echo "$((SECONDS - start)) s; logs in $out"
exit $failed
