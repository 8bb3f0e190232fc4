#!/usr/bin/env bash
# Builds llama.cpp, measures it and us in turn on the same model file, and prints one table: each row with the peer's
# default and best setting, our figure, the ratios, the gates of the project, and our share of what the machine can do.
#
# usage: tests/bench/against_llama_cpp.sh [PEERS_DIR] [--model=FILE.gguf] [--repeat=N] [--parts=cpu,wall,tp] [--json=FILE]
#                                         [--bin-dir=FOLDER]
#   PEERS_DIR   where the peers are built and kept (~/.cache/bitshard/peers)
#   --model     the file that both read (SmolLM2-135M-Instruct.Q4_1.gguf, fetched if it is missing);
#               "synthetic" makes a random Q4_0 Llama of 130M parameters, whose heads divide over two and four workers
#   --repeat    rounds; figures are their medians (7)
#   --parts     cpu: one thread, by process CPU time; wall: two workers x one thread against two threads, by the clock;
#               tp: decoding over two processes, also llama.cpp's -sm tensor over two RPC workers, and distributed-llama
#               when DLLAMA_GIT names its git repository (a bare clone) (cpu,wall)
#   --json      write every figure there
#   --bin-dir   bitshard's programs, already built (else Bazel builds them)
# Needs, beside what tests/run.sh installs: cmake, ninja, and PyPI. Takes the machine for itself: run nothing else.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."
source deploy/local/setup.sh

peers="$BITSHARD_CACHE/peers" model="$BITSHARD_MODEL" parts=cpu,wall bin_dir="" options=()
for argument in "$@"; do
  case "$argument" in
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --model=*) model="${argument#*=}" ;;
    --parts=*) parts="${argument#*=}" ;;
    --bin-dir=*) bin_dir="${argument#*=}" ;;
    --repeat=* | --json=*) options+=("$argument") ;;
    -*) die "unknown option $argument; --help lists them" ;;
    *) peers="$argument" ;;
  esac
done
mkdir -p "$peers"
peers="$(cd "$peers" && pwd)"
source "$here/peers/build.sh"

build_llama_cpp "$peers"
if [[ "$model" == synthetic ]]; then
  model="$peers/synthetic-130m.Q4_0.gguf"
  make_synthetic_model "$peers" "$model"
elif [[ "$model" == "$BITSHARD_MODEL" ]]; then
  fetch_model
fi
[[ -f "$model" ]] || die "no model $model"
if [[ ",$parts," == *,tp,* && -n "${DLLAMA_GIT:-}" ]]; then
  build_distributed_llama "$peers" "$DLLAMA_GIT" "$model"
fi

if [[ -z "$bin_dir" ]]; then
  install_packages "${BUILD_PACKAGES[@]}"
  write_user_bazelrc
  bazel build //coordinator/tools:bitshard //coordinator:bitshard-coordinator //worker:bitshard-worker >&2
  bin_dir="$(mktemp -d)"
  trap 'rm -rf "$bin_dir"' EXIT
  cp -L bazel-bin/coordinator/tools/bitshard bazel-bin/coordinator/bitshard-coordinator bazel-bin/worker/bitshard-worker \
    "$bin_dir/"
fi
PYTHONDONTWRITEBYTECODE=1 python3 "$here/peers/compare.py" --peers="$peers" --bin-dir="$bin_dir" --model="$model" \
  --parts="$parts" "${options[@]}"
