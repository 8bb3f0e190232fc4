#!/usr/bin/env bash
# One command on a fresh Debian 12: installs what is missing, builds, serves SmolLM2-135M on two CPU workers, asks it one
# question over gRPC, prints the answer as it streams in, and keeps serving until Ctrl-C.
#
# usage: deploy/local/serve.sh [--once] [--port=N] [QUESTION]
#   --once      stop after the answer
#   --port=N    where to listen (default 50051)
set -euo pipefail
cd "$(dirname "$0")/../.."
source deploy/local/setup.sh

once=0 port=50051 question="What is tensor parallelism? Answer in two sentences."
for argument in "$@"; do
  case "$argument" in
    --once) once=1 ;;
    --port=*) port="${argument#--port=}" ;;
    --help | -h) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "unknown flag $argument (see --help)" ;;
    *) question="$argument" ;;
  esac
done
[[ "$port" =~ ^[1-9][0-9]{0,4}$ ]] || die "--port=$port is not a port number"

install_packages "${BUILD_PACKAGES[@]}"
write_user_bazelrc
fetch_model

say "building (a few minutes the first time)"
bazel build --show_progress --show_progress_rate_limit=10 //coordinator:bitshard-coordinator //worker:bitshard-worker //coordinator/tools:bitshard
bitshard="$(bazel info bazel-bin)/coordinator/tools/bitshard"

work="$(mktemp -d)"
server=""
# `bitshard serve` stops its coordinator and workers when it gets SIGTERM; what is left after a minute is killed.
stop() {
  trap - EXIT INT TERM HUP
  if [[ -n "$server" ]]; then
    kill -TERM "$server" 2> /dev/null || true
    for ((i = 0; i < 600; ++i)); do
      kill -0 "$server" 2> /dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$server" 2> /dev/null || true
  fi
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

is_listening() { (: > "/dev/tcp/localhost/$port") 2> /dev/null; }
is_listening && die "port $port is taken; choose another: --port=N"

# setsid: a process group of its own, so that nothing of it can be left behind.
setsid "$bitshard" serve "$BITSHARD_MODEL" --workers=2 --port="$port" &
server=$!

# The question is repeated only while the service says that it is not ready yet.
address="localhost:$port"
deadline=$((SECONDS + 180))
say "waiting until the model is loaded; then: $question"
until is_listening && "$bitshard" chat --address="$address" --once "$question" 2> "$work/chat.err"; do
  kill -0 "$server" 2> /dev/null || die "the server has stopped (its last words are above)"
  if [[ -s "$work/chat.err" ]] && ! grep -qi unavailable "$work/chat.err"; then
    cat "$work/chat.err" >&2
    die "the question was not answered"
  fi
  ((SECONDS < deadline)) || die "the service is not ready after 180 s: $(cat "$work/chat.err")"
  sleep 0.2
done
cat "$work/chat.err" >&2
((once)) && exit 0

cat << END

Serving on $address until Ctrl-C. In another terminal:
  bazel-bin/coordinator/tools/bitshard chat --address=$address
END
wait "$server"
