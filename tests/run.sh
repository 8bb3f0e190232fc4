#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every test. Last line: "N passed, N failed" (test cases).
#
# usage: tests/run.sh [BAZEL TARGET PATTERN ...]   (default: //...)
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/local/setup.sh

if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  exit 0
fi
targets=("$@")
((${#targets[@]})) || targets=(//...)

install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
write_user_bazelrc
install_python_packages tests/support/python_requirements.txt
fetch_model
fetch_xgrammar
cuda_headers > /dev/null
nccl "$(cuda_toolkit)" > /dev/null

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# run_tests NAME BAZEL_ARGUMENT...: keeps going after a failure; what happened is in $work/NAME.json.
run_tests() {
  local name="$1" status=0
  shift
  say "building and testing: $name"
  bazel test --keep_going --show_progress --show_progress_rate_limit=15 --build_event_json_file="$work/$name.json" \
    --test_env=BITSHARD_TEST_MODELS="$(dirname "$BITSHARD_MODEL")" \
    --test_env=BITSHARD_TEST_PYTHON="$BITSHARD_VENV/bin/python" \
    "$@" || status=$?
  # 3: a test failed; 4: there are no tests. Others: the build broke, which the summary must not take for success.
  ((status == 0 || status == 3 || status == 4)) || echo "bazel test exited with status $status" > "$work/$name.broken"
}

# run_sanitizer NAME: again under --config=NAME, the tests that carry NAME as a tag.
run_sanitizer() {
  # No convenience links: bazel-bin stays the plain build's.
  run_tests "$1" --config="$1" --symlink_prefix=/ --build_tests_only --build_tag_filters="$1" --test_tag_filters="$1" "${targets[@]}"
}

run_tests plain "${targets[@]}"
run_sanitizer asan
run_sanitizer tsan

/usr/bin/python3 tests/support/summarize.py "$work"
