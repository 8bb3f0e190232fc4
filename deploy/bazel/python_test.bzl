"""Tests written in Python (unittest), each case counted.

They run under the interpreter that tests/run.sh prepared (--test_env=BITSHARD_TEST_PYTHON, which has grpcio), else under
Debian's python3. The working directory is the runfiles' root, so $(location) paths and paths from the root both work.
"""

def python_test(name, main, srcs = [], data = [], args = [], **kwargs):
    """`main` ends with `case_report.main()` (tests/support/case_report.py). `srcs`: other Python files it imports."""
    native.sh_test(
        name = name,
        srcs = ["//tests/support:run_python_test.sh"],
        args = ["$(location {})".format(main)] + args,
        data = [main, "//tests/support:case_report.py"] + srcs + data,
        **kwargs
    )
