#!/usr/bin/env bash
# A whole service under load, in figures.
#
# usage: tests/bench/under_load.sh [PEERS_DIR] [--parts=overload,ttft] [--model=FILE.gguf] [--bin-dir=FOLDER] [--json=FILE]
#                                  [-- FURTHER FLAGS of the part's program]
#   overload    the peak of tokens a second, then three times as many calls as that, open loop: refusals, first tokens, goodput
#   ttft        eight callers at a time on bitshard and on llama-server, in turn: time to the first token. Builds
#               llama-server in PEERS_DIR (~/.cache/bitshard/peers) the first time, some twenty minutes
#   --model     SmolLM2-135M-Instruct.Q4_1.gguf, fetched if it is missing
#   --json      write every figure there (FILE.overload, FILE.ttft when there are two parts)
#   --bin-dir   bitshard, bitshard-coordinator, bitshard-worker and load_client, already built (else Bazel builds them)
# Takes the machine for itself: run nothing else. Ten thousand streams at once: tests/e2e/many_streams_test.py.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."
source deploy/local/setup.sh

peers="$BITSHARD_CACHE/peers" model="$BITSHARD_MODEL" parts=overload,ttft bin_dir="" json="" further=()
while (($#)); do
  case "$1" in
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --model=*) model="${1#*=}" ;;
    --parts=*) parts="${1#*=}" ;;
    --bin-dir=*) bin_dir="${1#*=}" ;;
    --json=*) json="${1#*=}" ;;
    --) shift; further=("$@"); break ;;
    -*) die "unknown option $1; --help lists them" ;;
    *) peers="$1" ;;
  esac
  shift
done
[[ "$model" == "$BITSHARD_MODEL" ]] && fetch_model
[[ -e "$model" ]] || die "no model $model"

if [[ -z "$bin_dir" ]]; then
  install_packages "${BUILD_PACKAGES[@]}"
  write_user_bazelrc
  bazel build //coordinator/tools:bitshard //coordinator:bitshard-coordinator //worker:bitshard-worker \
    //tests/bench/load:load_client >&2
  bin_dir="$(mktemp -d)"
  trap 'rm -rf "$bin_dir"' EXIT
  cp -L bazel-bin/coordinator/tools/bitshard bazel-bin/coordinator/bitshard-coordinator bazel-bin/worker/bitshard-worker \
    bazel-bin/tests/bench/load/load_client "$bin_dir/"
fi
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$here/../support:$here/load:$here/peers"

# json_of PART: its --json flag, if any.
json_of() {
  [[ -z "$json" ]] && return 0
  if [[ "$parts" == *,* ]]; then echo "--json=$json.$1"; else echo "--json=$json"; fi
}

status=0
if [[ ",$parts," == *,overload,* ]]; then
  # shellcheck disable=SC2046
  python3 "$here/load/overload.py" --bin-dir="$bin_dir" --model="$model" $(json_of overload) "${further[@]}" || status=$?
fi
if [[ ",$parts," == *,ttft,* ]]; then
  mkdir -p "$peers"
  peers="$(cd "$peers" && pwd)"
  source "$here/peers/build.sh"
  build_llama_server "$peers"
  # shellcheck disable=SC2046
  python3 "$here/peers/compare_ttft.py" --peers="$peers" --bin-dir="$bin_dir" --model="$model" $(json_of ttft) \
    "${further[@]}" || status=$?
fi
exit "$status"
