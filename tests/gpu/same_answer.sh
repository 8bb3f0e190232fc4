#!/usr/bin/env bash
# same_answer.sh BUNDLE WORK RUN...: the greedy answer of a service on the GPU is that of one on the CPU. RUN: what programs of
# the bundle are begun with. For check.sh, which limits its time.
set -euo pipefail

bundle="$1" work="$2"
shift 2
run=("$@")

# The answer of a service with one worker on DEVICE, in WORK/DEVICE/answer.txt. For one request few sizes of steps are made
# ready. The prompt is one that the small model answers with words: many of its answers repeat a character, whatever the sums.
answer() {
  local device="$1" place="$work/$1" status=1 port=
  mkdir -p "$place"
  "${run[@]}" "$bundle/bin/bitshard" serve "$bundle/model" --workers=1 --port=0 --port-file="$place/ports" \
    --bin-dir="$bundle/start" --device="$device" --coordinator-flags=--max-running=4,--token-budget=256 \
    > "$place/serve.log" 2>&1 &
  local server=$!
  # It listens before it is ready.
  while ((status != 0)) && kill -0 "$server" 2> /dev/null; do
    sleep 0.3
    port="$(sed -n 's/^port=//p' "$place/ports" 2> /dev/null)"
    [[ -n "$port" ]] || continue
    status=0
    "${run[@]}" "$bundle/bin/bitshard" complete "If the argument is not a string, a" --max-tokens=32 --timeout=20s \
      --address="localhost:$port" > "$place/answer.txt" 2> "$place/complete.log" || status=$?
  done
  kill -TERM "$server" 2> /dev/null
  (sleep 5 && kill -KILL "$server" 2> /dev/null) &
  local killer=$!
  wait "$server"
  kill "$killer" 2> /dev/null
  echo "---- serve --device=$device"
  cat "$place/serve.log"
  ((status != 0)) || return 0
  echo "---- complete"
  cat "$place/complete.log"
  return "$status"
}

for device in cpu cuda; do
  if ! answer "$device"; then
    echo "no answer on $device: $(tail -n 1 "$work/$device/serve.log")"
    exit 1
  fi
done
# Not with cmp, which the machine need not have. The dot keeps the ends of lines before it.
text() { cat "$work/$1/answer.txt" && echo .; }
if [[ ! -s "$work/cpu/answer.txt" || "$(text cpu)" != "$(text cuda)" ]]; then
  echo "the answers differ; on the CPU: $(head -c 200 "$work/cpu/answer.txt" | tr '\n' ' ')"
  echo "and on the GPU: $(head -c 200 "$work/cuda/answer.txt" | tr '\n' ' ')"
  exit 1
fi
echo "the same answer, $(wc -c < "$work/cpu/answer.txt") bytes"
