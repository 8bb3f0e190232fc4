#!/usr/bin/env bash
# What a machine with an NVIDIA GPU must confirm, in one command of at most 9 minutes. Runs from the unpacked bundle:
#
#   bazel build --config=cuda //tests/gpu:bundle        (where the build is)
#   tar -xzf bundle.tar.gz && bundle/check.sh [--seconds=N] [OUT]   (where the GPU is: Linux on x86-64)
#
# Of several GPUs it takes the first, or the first of CUDA_VISIBLE_DEVICES: nvidia-smi's number of it, or its UUID.
#
# OUT (default ./gpu-check) gets few files, written as it goes: summary.txt, phases.log (all that the phases print),
# ceilings.json, kernels.tsv, ptx.bin, roofline.tsv, counters.tsv, e2e.json; those of an earlier run go first. Each
# phase has its time limit; one that fails does not stop the next, but without a GPU there is no next. The last lines
# printed are the summary; exit status 1 if a phase failed. Ctrl-C ends it at once. --seconds (535; 240 is the least):
# with less than 535 what matters least is left out: ncu, the services, NCCL, two of the sanitizers, many tokens.
# --dry-run prints the phases, their limits and commands, and runs nothing. --help prints this.
#
# No clock, power or MIG setting is touched; no root, no network. Needs glibc and the driver; of the machine's own it takes what
# there is: compute-sanitizer, ncu, libcublas, libnccl. What is missing is said, and its phases are skipped.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
whole=535
seconds=$whole
dry=0
out=
for word in "$@"; do
  case "$word" in
    --seconds=*) seconds="${word#*=}" ;;
    --dry-run) dry=1 ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "error: $word: the options are --seconds=N, --dry-run and --help" >&2; exit 2 ;;
    *) out="$word" ;;
  esac
done
if [[ ! "$seconds" =~ ^[0-9]{1,5}$ ]] || ((10#$seconds < 240)); then
  echo "error: --seconds=$seconds: a number from 240 on; less is not enough for the phases that matter" >&2
  exit 2
fi
seconds=$((10#$seconds))
out="${out:-$PWD/gpu-check}"
failures=0
phase=  # the one that runs
phase_offset=0

# One card for CUDA and nvidia-smi, whose order is that of the PCI bus.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
card="${CUDA_VISIBLE_DEVICES:-0}"
card="${card%%,*}"
[[ "$card" != MIG-* ]] || card=  # a part of a card: nvidia-smi is not asked for those

# The phase that runs ends, with all that it has started, and no other begins.
stop() {  # SIGNAL EXIT_STATUS
  local pid tries text="stopped by $1 after $SECONDS s${phase:+, in the phase $phase}; what it has so far is in $out"
  trap '' HUP INT PIPE TERM
  exec 2> /dev/null  # bash would say whom it killed
  for pid in $(jobs -rp); do  # a phase's timeout, which leads the phase's group; nvidia-smi
    kill -TERM "$pid" || true
    for ((tries = 0; tries < 30; ++tries)); do
      kill -0 -- "-$pid" || break
      sleep 0.1
    done
    kill -KILL -- "-$pid" || true
  done
  echo "$text" >> "$out/summary.txt"
  echo "$text" || true
  exit "$2"
}

if ((dry)); then
  work=WORK
  printf 'phase\tlimit s\tcommand\n'
else
  if [[ ! -e "$here/rest.tar.xz" && ! -d "$here/bin" ]]; then
    echo "error: $here is not the unpacked bundle; check.sh runs from that:" \
      "bazel build --config=cuda //tests/gpu:bundle, then tar -xzf bazel-bin/tests/gpu/bundle.tar.gz -C /tmp" \
      "and /tmp/bundle/check.sh" >&2
    exit 2
  fi
  if [[ "$(uname -m)" != x86_64 ]]; then
    echo "error: the programs of the bundle are for x86-64, and this machine is $(uname -m)" >&2
    exit 1
  fi
  if [[ -e "$here/rest.tar.xz" ]]; then  # the first run
    if [[ ! -w "$here" ]]; then
      echo "error: cannot write to $here, where the first run unpacks the rest:" \
        "unpack the bundle in a folder of yours" >&2
      exit 1
    fi
    if ! "$here/libc/ld-linux-x86-64.so.2" --library-path "$here/libc" "$here/libc/xz" -dc "$here/rest.tar.xz" |
      tar --no-same-owner -C "$here" -xf -; then
      echo "error: cannot unpack $here/rest.tar.xz: it needs 250 MB there" >&2
      exit 1
    fi
    rm "$here/rest.tar.xz"
  fi
  work="$(mktemp -d)" || exit 1
  # A GPU that nobody holds is set up anew by each program, which takes it seconds.
  nvidia-smi -l 3600 > /dev/null 2>&1 < /dev/null &
  holder=$!
  trap 'kill "$holder" 2> /dev/null || true; rm -rf "$work"' EXIT
  mkdir -p "$out" || exit 1
  trap 'stop SIGHUP 129' HUP
  trap 'stop SIGINT 130' INT
  trap 'stop SIGTERM 143' TERM
  : > "$out/summary.txt"
  : > "$out/phases.log"
  # No phase takes an earlier run's for its own.
  rm -f "$out"/{ceilings.json,kernels.tsv,kernels_in_order.tsv,ptx.bin,roofline.tsv,counters.tsv,e2e.json}
fi

# A line of the summary: PHASE VERDICT SECONDS TEXT.
note() {
  ((dry)) || printf '%-18s %-9s %4s s  %s\n' "$@" | tee -a "$out/summary.txt"
}

skip() {  # PHASE WHY
  if ((dry)); then printf '%s\t0\tskipped: %s\n' "$1" "$2"; else note "$1" SKIPPED 0 "$2"; fi
}

# t NAME LIMIT_S COMMAND...: one phase; `passed` says how it went. A failure whose output matches `forgive` is none: the machine
# cannot do it.
forgive=
passed=1
t() {
  local name="$1" limit="$2" status=0 began=$SECONDS left=$((seconds - SECONDS)) verdict=ok said
  shift 2
  passed=1
  if ((dry)); then
    printf '%s\t%s\t%s\n' "$name" "$limit" "$*"
    return 0
  fi
  if ((left < 3)); then
    failures=$((failures + 1))
    passed=0
    note "$name" "NO TIME" 0 "the phases before it took all $seconds s"
    return 0
  fi
  ((limit <= left)) || limit=$left
  phase="$name"
  phase_offset="$(stat -c %s "$out/phases.log")"
  printf '==== %s: at most %s s: %s\n' "$name" "$limit" "$*" >> "$out/phases.log"
  # Bash tends to signals while it waits for a job, not while a command runs.
  timeout -k 3 "$limit" "$@" < /dev/null >> "$out/phases.log" 2>&1 &
  wait "$!" || status=$?
  phase=
  if ((status == 124 || status == 137)); then
    verdict="TIMED OUT"
  elif ((status != 0)) && [[ -n "$forgive" ]] && phase_says "$forgive"; then
    verdict=SKIPPED
  elif ((status != 0)); then
    verdict="FAILED"
  fi
  [[ $verdict == ok || $verdict == SKIPPED ]] || failures=$((failures + 1))
  said="$(phase_log | awk 'NR > 1 && NF { said = $0 } END { print substr(said, 1, 200) }')"
  note "$name" "$verdict" "$((SECONDS - began))" "${said:-it printed nothing}$( ((status == 0)) || echo " (exit status $status)")"
  ((status == 0)) || passed=0
}

# What the last phase has printed, its head line first.
phase_log() { tail -c "+$((phase_offset + 1))" "$out/phases.log"; }
# Whether it has printed something like PATTERN.
phase_says() { grep -qiE "$1" <(phase_log); }

cuda_folders=("${CUDA_HOME:-/usr/local/cuda}")
[[ -n "${CUDA_HOME:-}" ]] || cuda_folders+=(/usr/local/cuda-*)

# The path of the first of these libraries that the machine has; nothing when it has none.
find_library() {
  local name path folder
  for name in "$@"; do
    path="$( (ldconfig -p || /sbin/ldconfig -p) 2> /dev/null | awk -v name="$name" '$1 == name { print $NF; exit }')"
    [[ -z "$path" ]] || { echo "$path"; return; }
    for folder in "${cuda_folders[@]}"; do
      [[ ! -e "$folder/lib64/$name" ]] || { echo "$folder/lib64/$name"; return; }
    done
    # Where NVIDIA's packages of Python keep theirs.
    path="$(timeout 10 python3 -c '
import glob, sys
for folder in sys.path:
    for path in glob.glob(folder + "/nvidia/*/lib/" + sys.argv[1]):
        print(path)' "$name" 2> /dev/null | head -n 1)"
    [[ -z "$path" ]] || { echo "$path"; return; }
  done
}

find_tool() {
  local path
  path="$(command -v "$1" || true)"
  for path in $path "${cuda_folders[@]/%//bin/$1}" /opt/nvidia/nsight-compute/*/"$1"; do
    [[ ! -x "$path" ]] || { echo "$path"; return; }
  done
}

# runner FOLDER...: sets `run`, what programs of the bundle are begun with: the bundle's libraries and those in the folders;
# the host's libc, unless it is too old: then the bundle's own and its loader.
too_old=0
runner() {
  local folders
  folders="$(IFS=: && echo "$here/lib${*:+:$*}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  run=(env "LD_LIBRARY_PATH=$folders")
  ((!too_old)) || run=("$here/libc/ld-linux-x86-64.so.2" --library-path "$here/libc:$folders")
}
runner
if ((!dry)); then
  status=0
  timeout -k 3 20 "${run[@]}" "$here/bin/faults" < /dev/null > "$work/start.log" 2>&1 &
  wait "$!" || status=$?
  if ((status != 2)); then  # its usage
    cat "$work/start.log" >> "$out/phases.log"
    too_old=1
    export BUNDLE_LOADER=1  # for start/*
    runner
  fi
fi
short=$((seconds < whole))

# ---- 0: the machine, and what it can do at most: all later shares are of these rates.
t machine 10 bash -c 'uname -srm; ldd --version | head -n 1; sha256sum "$1"/bin/* | sha256sum | cut -c 1-16; exec "${@:2}"' \
  machine "$here" nvidia-smi ${card:+"--id=$card"} --format=csv,noheader \
  --query-gpu=driver_version,memory.total,clocks.max.sm,compute_cap,mig.mode.current,name
cublas=
((dry)) || cublas="$(find_library libcublas.so.13 libcublas.so.12)"
t ceilings 20 "${run[@]}" "$here/bin/ceilings" "$out/ceilings.json" ${cublas:+"$cublas"}
no_gpu='no CUDA device|cudaDriverGetVersion: |cudaGetDeviceCount: '  # of what OpenDevice says
if ((!dry && !passed)) && phase_says "$no_gpu"; then
  why="$(grep -m 1 -iE "$no_gpu" <(phase_log) | sed -E 's/^error: ([A-Z_]+: )?//')"
  echo "no GPU that CUDA can use: $why" | tee -a "$out/summary.txt"
  exit 1
fi

# ---- 1: the kernel tests of continuous integration, same seeds, against the same references; then each kernel, and shapes of
# a model's layers, beside the emulator's results.
t kernels 40 "${run[@]}" "$here/bin/kernels_on_gpu"
t cases 20 "${run[@]}" "$here/bin/kernel_cases" compare "$here/cases_emulated.bin" "$out/kernels.tsv" small calibration large
# Is it that launches begin before the one ahead has ended?
((passed || dry)) || t cases_in_order 20 env BITSHARD_EARLY_LAUNCH=0 "${run[@]}" "$here/bin/kernel_cases" compare \
  "$here/cases_emulated.bin" "$out/kernels_in_order.tsv" small calibration large

# ---- 2: every PTX wrapper on random registers, against the emulator's results.
t ptx 12 "${run[@]}" "$here/bin/ptx_vectors" compare "$here/ptx_emulated.bin" "$out/ptx.bin"

# ---- 3: the sanitizers, first on kernels with a planted fault: they must be reported. Then one launch of each kernel.
saved=0
sanitizer_seconds=122  # of all phases behind the first
((!short)) || sanitizer_seconds=74
sanitizer=compute-sanitizer
((dry)) || sanitizer="$(find_tool compute-sanitizer)"
if [[ -z "$sanitizer" ]]; then
  skip sanitizers "no compute-sanitizer on this machine"
  saved=$sanitizer_seconds
else
  # Only the kernels that run: all others would be instrumented first.
  sanitize=(env CUDA_MODULE_LOADING=LAZY "$sanitizer" --target-processes all --error-exitcode 9 --print-limit 20)
  # planted TOOL FAULT: the tool exits with its own code.
  planted() {
    t "planted_$1" 8 bash -c '"$@"; status=$?; echo "exit status $status; 9 says that the fault was reported"; ((status == 9))' \
      planted "${sanitize[@]}" --tool "$1" "${run[@]}" "$here/bin/faults" "$2"
  }
  forgive='device not supported'
  planted memcheck oob
  forgive=
  if ((!dry)) && phase_says 'device not supported'; then
    skip sanitizers "compute-sanitizer does not support this device"
    saved=$sanitizer_seconds
  else
    planted racecheck race
    small=("${run[@]}" "$here/bin/kernel_cases" run small)
    t memcheck 30 "${sanitize[@]}" --tool memcheck "${small[@]}"
    t racecheck 36 "${sanitize[@]}" --tool racecheck --racecheck-report all "${small[@]}"
    if ((!short)); then
      planted initcheck uninit
      t initcheck 20 "${sanitize[@]}" --tool initcheck "${small[@]}"
      t synccheck 20 "${sanitize[@]}" --tool synccheck "${small[@]}"
    fi
  fi
fi

# ---- 4: every form of weights, attention, and what lies between, against the ceilings. It gets what the sanitizers did not need.
if ((short)); then
  limit=$((50 + saved))
  t roofline "$limit" "${run[@]}" "$here/bin/roofline" "$out/ceilings.json" "$out/roofline.tsv" "$((limit - 5))" 1
else
  limit=$((105 + saved))
  t roofline "$limit" "${run[@]}" "$here/bin/roofline" "$out/ceilings.json" "$out/roofline.tsv" "$((limit - 10))"
fi

# ---- 5: the emulator's counters beside ncu's, of nine launches.
if ((!short)); then
  ncu=ncu
  ((dry)) || ncu="$(find_tool ncu)"
  if [[ -z "$ncu" ]]; then
    skip ncu "no ncu on this machine"
  else
    metrics=METRICS
    ((dry)) || metrics="$("${run[@]}" "$here/bin/kernel_cases" metrics || true)"
    forgive='ERR_NVGPUCTRPERM|device not supported|LibraryNotLoaded'
    # A name that this ncu does not know would end it.
    t ncu_query 10 "$ncu" --query-metrics
    if ((passed && !dry)); then
      phase_log | awk '{ print $1 }' > "$work/known"
      known=
      for metric in ${metrics//,/ }; do
        if [[ "$metric" == launch__* ]] || grep -qxF "${metric%%.*}" "$work/known"; then known+="${known:+,}$metric"; fi
      done
      metrics="$known"
    fi
    t ncu 55 "$ncu" --target-processes all --clock-control none --csv --page raw --print-units base --metrics "$metrics" \
      "${run[@]}" "$here/bin/kernel_cases" run calibration
    if ((passed)); then
      ((dry)) || phase_log > "$work/ncu.csv"
      t counters 5 "${run[@]}" "$here/bin/kernel_cases" join "$here/counters_emulated.tsv" "$work/ncu.csv" "$out/counters.tsv"
    else
      skip counters "ncu read none"
    fi
    forgive=
  fi
fi

# What --deterministic costs, and whether one sequence without context has 0.60 of the data sheet's bandwidth. Of e2e.json: a
# document a line, in it a part a measurement. Not of a rank's share: it sums nothing over ranks.
e2e_verdict='
function value(text, key) {
  return match(text, "\"" key "\":[0-9.][0-9.e+-]*") ? substr(text, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : ""
}
function ratio(kind) {
  return speed["true", kind] && speed["false", kind] ? sprintf("%.2f", speed["false", kind] / speed["true", kind]) : "unknown"
}
!/s share of [0-9]/ {
  order = /"deterministic":"false"/ ? "false" : "true"
  parts = split($0, part, "\"name\":")
  for (i = 2; i <= parts; ++i) {
    kind = part[i] ~ /"kind":"prefill"/ ? "prefill" : "decode"
    if ((order, kind) in speed) continue  # of decodes the first: one sequence, no context
    speed[order, kind] = value(part[i], "tokens_per_s")
    share[order, kind] = value(part[i], "read_share")
  }
}
END {
  of = share["true", "decode"]
  below = of != "" && of < 0.60
  printf "8B, any order of sums: decode %s x, prefill %s x the speed of --deterministic; ", ratio("decode"), ratio("prefill")
  printf "one sequence has %s of the bandwidth%s\n", of == "" ? "an unknown share" : sprintf("%.3f", of),
    of == "" ? "" : ", the bar is 0.60" (below ? ": BELOW" : "")
  exit below || speed["true", "decode"] == ""
}'

# ---- 6: a service on the GPU answers as one on the CPU does (greedy, one worker).
if ((!short)); then
  t answer 35 "$here/same_answer.sh" "$here" "$work/answer" "${run[@]}"
  # Tokens a second of 4-bit weights that the worker makes on the GPU: 8B, and what one of eight GPUs has of 70B. A prompt of
  # 2048 is one step.
  e2e=("${run[@]}" "$here/bin/bitshard" bench --device=cuda "--bin-dir=$here/start" --synthetic-bits=4 --prefill=2048
    --context=0,2048 --concurrent=8,32 --repeat=1 "--json-file=$out/e2e.json"
    --coordinator-flags=--token-budget=2048,--max-running=32,--max-context=4096)
  t e2e_8b 27 "${e2e[@]}" --synthetic=llama-3.1-8b
  t e2e_8b_any_order 18 "${e2e[@]}" --synthetic=llama-3.1-8b --deterministic=false --context=0 --concurrent=
  t e2e_70b_share 28 "${e2e[@]}" --synthetic=llama-3.1-70b --synthetic-shard=0/8
  ((dry)) || echo "$e2e_verdict" > "$work/e2e.awk"
  t e2e_verdict 2 awk -f "$work/e2e.awk" "$out/e2e.json"
fi

# ---- 7: NCCL, with one rank. The machine's own library: it is larger than this bundle.
if ((!short)); then
  nccl=libnccl.so.2
  ((dry)) || nccl="$(find_library libnccl.so.2)"
  if [[ -z "$nccl" ]]; then
    skip nccl "no libnccl.so.2 on this machine"
  else
    ((dry)) || { mkdir -p "$work/nccl" && ln -s "$nccl" "$work/nccl/"; }
    runner "$work/nccl"
    t nccl 18 "${run[@]}" "$here/bin/nccl_check"
    runner
  fi
fi

((!dry)) || exit 0
echo "---- $out, $SECONDS s"
cat "$out/summary.txt"
echo "$failures phases failed" | tee -a "$out/summary.txt"
((failures == 0))
