#!/usr/bin/env bash
# One command on a fresh Debian 12: installs what is missing, builds, serves SmolLM2-135M on two CPU workers, asks it one
# question over gRPC, prints the answer as it streams in, and keeps serving until Ctrl-C.
#
# usage: deploy/local/serve.sh [--once] [--port=N] [QUESTION]
#   --once      stop after the answer
#   --port=N    where to listen (default 50051); clients then need --address=localhost:N
#   QUESTION    one argument: quote it
# Ctrl-C lets running answers finish (30 s at most) and ends with 0; a second one ends at once.
set -euo pipefail
cd "$(dirname "$0")/../.."
source deploy/local/setup.sh

once=0 port=50051 question="What is tensor parallelism? Answer in two sentences." asked=0
while (($#)); do
  case "$1" in
    --once) once=1 ;;
    --port=*) port="${1#--port=}" ;;
    --port)
      (($# > 1)) || die "--port needs a number: --port=N"
      port="$2"
      shift
      ;;
    --help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "unknown flag $1 (see --help)" ;;
    *)
      ((!asked)) || die "one question only, but there is another word: $1 (quote the question: \"$question $1 ...\")"
      question="$1" asked=1
      ;;
  esac
  shift
done
[[ "$port" =~ ^[1-9][0-9]{0,4}$ ]] && ((port < 65536)) || die "--port=$port is not a port number (1 to 65535)"

install_packages "${BUILD_PACKAGES[@]}"
write_user_bazelrc
fetch_model
fetch_xgrammar

say "building (a few minutes the first time)"
bazel build --show_progress --show_progress_rate_limit=10 //coordinator:bitshard-coordinator //worker:bitshard-worker //coordinator/tools:bitshard
bitshard="$(bazel info bazel-bin)/coordinator/tools/bitshard"

work="$(mktemp -d)"
server="" client="" signals=0
# Every signal goes on to `bitshard serve`, which lets running answers finish at the first and ends at once at the second.
forward() {
  signals=$((signals + 1))
  if [[ -n "$client" ]]; then kill -INT "$client" 2> /dev/null || true; fi
  if [[ -n "$server" ]]; then kill -TERM "$server" 2> /dev/null || true; fi
}
# await PID: until that child has ended, whatever signals come meanwhile; returns its exit code.
await() {
  local before code
  while true; do
    before=$signals code=0
    wait "$1" || code=$?
    ((signals != before)) || return "$code"
  done
}
# Stops the server unless it has stopped; what is left after a minute is killed.
stop() {
  if [[ -n "$server" ]]; then
    kill -TERM "$server" 2> /dev/null || true
    for ((i = 0; i < 600; ++i)); do
      kill -0 "$server" 2> /dev/null || break
      sleep 0.1 || true
    done
    kill -KILL -- "-$server" 2> /dev/null || true
  fi
  rm -rf "$work"
}
# serve_on: until the server has ended; ends with its exit code.
serve_on() {
  local code=0
  await "$server" || code=$?
  server=""
  exit "$code"
}
trap stop EXIT
trap forward INT TERM HUP

is_listening() { (: > "/dev/tcp/localhost/$port") 2> /dev/null; }
is_listening && die "port $port is taken; choose another: --port=N"

# setsid: a process group of its own, so that nothing of it can be left behind.
setsid "$bitshard" serve "$BITSHARD_MODEL" --workers=2 --port="$port" &
server=$!

# In the background, so that a signal is seen at once.
ask() {
  local code=0
  "$bitshard" chat --address="$address" --once "$question" 2> "$work/chat.err" &
  client=$!
  await "$client" || code=$?
  client=""
  return "$code"
}

# The question is repeated only while the service says that it is not ready yet.
address="localhost:$port"
deadline=$((SECONDS + 180))
say "waiting until the model is loaded; then: $question"
until ((signals)) || { is_listening && ask; }; do
  ((!signals)) || break
  kill -0 "$server" 2> /dev/null || die "the server has stopped (its last words are above)"
  if [[ -s "$work/chat.err" ]] && ! grep -qi unavailable "$work/chat.err"; then
    cat "$work/chat.err" >&2
    die "the question was not answered"
  fi
  ((SECONDS < deadline)) || die "the service is not ready after 180 s: $(cat "$work/chat.err")"
  sleep 0.2 || true
done
((!signals)) || serve_on
cat "$work/chat.err" >&2
((!once)) || exit 0

cat << END

Serving on $address until Ctrl-C. In another terminal:
  bazel-bin/coordinator/tools/bitshard chat --address=$address
END
serve_on
