#!/usr/bin/env bash
# run_python_test.sh MAIN.py [ARGUMENT...]: see deploy/bazel/python_test.bzl.
set -euo pipefail
export PYTHONPATH="$PWD/tests/support:$PWD/${1%/*}" PYTHONDONTWRITEBYTECODE=1
exec "${BITSHARD_TEST_PYTHON:-/usr/bin/python3}" "$@"
