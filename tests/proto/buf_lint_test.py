"""The public protos keep to buf's STANDARD and COMMENTS rules."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import case_report

# The folder is the repository's proto/, not bitshard/v1/; the services' names are those of the design.
CONFIG = """\
version: v2
lint:
  use: [STANDARD, COMMENTS]
  except: [PACKAGE_DIRECTORY_MATCH, SERVICE_SUFFIX]
"""


PUBLIC = ("proto/inference.proto", "proto/admin.proto")


class BufLintTest(unittest.TestCase):
    def lint(self, planted=""):
        """With `planted` at the end of the last one."""
        buf = pathlib.Path(sys.executable).parent / "buf"
        if not buf.exists():
            self.skipTest("buf is not installed beside this Python; tests/run.sh installs it")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            (pathlib.Path(folder) / "proto").mkdir()
            for name in PUBLIC:
                text = pathlib.Path(name).read_text(encoding="utf-8")
                (pathlib.Path(folder) / name).write_text(text + (planted if name == PUBLIC[-1] else ""), encoding="utf-8")
            (pathlib.Path(folder) / "buf.yaml").write_text(CONFIG, encoding="utf-8")
            return subprocess.run([str(buf), "lint"], cwd=folder, capture_output=True, text=True, check=False,
                                  timeout=60, env=dict(os.environ, HOME=folder))

    def test_the_public_api_is_clean(self):
        result = self.lint()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_field_without_a_comment_is_found(self):
        self.assertNotEqual(self.lint("// A.\nmessage Planted { optional int32 a = 1; }\n").returncode, 0)


if __name__ == "__main__":
    case_report.main()
