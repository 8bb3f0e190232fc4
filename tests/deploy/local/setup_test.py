"""Which CUDA toolkit and which NCCL deploy/local/setup.sh takes, with made-up ones."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import case_report

SETUP = pathlib.Path("deploy/local/setup.sh").resolve()
# Nothing is fetched, and nothing of this machine is found.
SCRIPT = """
set -euo pipefail
source "$1"
CUDA_PLACE="$2/usual" NCCL_PLACE="$2/system/include $2/system/lib"
fetch_wheels() {{ mkdir -p "$1"; printf 'fetched %s\\n' "${{*:3}}" >&2; }}
{}
"""


class ToolkitTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def toolkit(self, name, release):
        folder = pathlib.Path(self.folder, name)
        (folder / "bin").mkdir(parents=True)
        nvcc = folder / "bin/nvcc"
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
        nvcc.chmod(0o755)
        return str(folder)

    def header(self, name, major, minor):
        folder = pathlib.Path(self.folder, name, "include")
        folder.mkdir(parents=True)
        (folder / "nccl.h").write_text(f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH 3\n")
        return str(folder)

    def run_setup(self, command, **environment):
        """The exit status, the lines on stdout, and stderr."""
        kept = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "BITSHARD_CUDA")}
        ended = subprocess.run(["bash", "-c", SCRIPT.format(command), "bash", str(SETUP), self.folder],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                               env=kept | {"XDG_CACHE_HOME": self.folder + "/cache"} | environment)
        return ended.returncode, ended.stdout.splitlines(), ended.stderr

    def test_a_toolkit_of_12_8_or_later_is_taken(self):
        for release in ("12.8", "12.10", "13.0", "14.1"):
            home = self.toolkit("home-" + release, release)
            self.assertEqual(self.run_setup("cuda_toolkit", CUDA_HOME=home), (0, [home], ""))
        self.toolkit("usual", "12.9")
        self.assertEqual(self.run_setup("cuda_toolkit"), (0, [self.folder + "/usual"], ""))

    def test_an_older_one_is_passed_over_and_named(self):
        usual = self.toolkit("usual", "12.7")
        status, lines, said = self.run_setup("cuda_toolkit")
        self.assertEqual((status, lines), (0, []))
        self.assertIn(f"passing over {usual}: CUDA 12.7, and the kernels need 12.8 or later", said)
        status, lines, said = self.run_setup("cuda_toolkit", BITSHARD_CUDA="on")
        self.assertEqual((status, lines), (0, [self.folder + "/cache/bitshard/cuda-compiler-13.0/nvidia/cu13"]))
        self.assertIn(f"passing over {usual}", said)
        self.assertIn("nvidia-cuda-nvcc==13.0", said)

    def test_an_older_one_that_was_asked_for_is_an_error_where_the_build_needs_one(self):
        home = self.toolkit("home", "11.8")
        usual = self.toolkit("usual", "13.0")
        status, lines, said = self.run_setup("cuda_toolkit", CUDA_HOME=home, BITSHARD_CUDA="on")
        self.assertEqual((status, lines), (1, []))
        self.assertIn(f"error: CUDA_HOME={home} is CUDA 11.8", said)
        self.assertIn("set CUDA_HOME to a later toolkit, or unset it", said)
        status, lines, said = self.run_setup("cuda_toolkit", CUDA_HOME=home)
        self.assertEqual((status, lines), (0, [usual]))
        self.assertIn(f"passing over {home}: CUDA 11.8", said)

    def test_a_compiler_that_tells_no_version_is_passed_over(self):
        self.toolkit("usual", "unknown")
        status, lines, said = self.run_setup("cuda_toolkit")
        self.assertEqual((status, lines), (0, []))
        self.assertIn("of no known version", said)

    def test_nccl_of_2_27_or_later_is_taken_the_toolkits_first(self):
        home = self.toolkit("home", "12.8")
        system = self.header("system", 2, 27)
        found = (0, [system, self.folder + "/system/lib"], "")
        self.assertEqual(self.run_setup(f"nccl {home}"), found)
        self.assertEqual(self.run_setup("nccl ''"), found)
        mine = self.header("home", 3, 0)
        self.assertEqual(self.run_setup(f"nccl {home}"), (0, [mine, home + "/lib64"], ""))

    def test_an_older_nccl_is_passed_over_for_the_wheel_of_the_toolkits_cuda(self):
        self.header("system", 2, 26)
        for release, wheel, name in (("12.8", "nvidia-nccl-cu12", "nccl-cu12"), ("13.0", "nvidia-nccl-cu13", "nccl")):
            home = self.toolkit(wheel, release)
            self.header(wheel, 2, 9)
            cache = self.folder + "/cache/bitshard"
            status, lines, said = self.run_setup(f"nccl {home}")
            self.assertEqual((status, lines), (0, [f"{cache}/{name.replace('nccl', 'nccl-headers')}-2.30.7/nvidia/nccl/{part}"
                                                   for part in ("include", "lib")]))
            self.assertIn(f"passing over {home}/include/nccl.h: NCCL 2.9,", said)
            self.assertIn("/system/include/nccl.h: NCCL 2.26, and the workers need 2.27 or later", said)
            self.assertIn(f"fetched {wheel}==2.30.7", said)
            _, lines, _ = self.run_setup(f"nccl {home}", BITSHARD_CUDA="on")
            self.assertEqual(lines[1], f"{cache}/{name}-2.30.7/nvidia/nccl/lib")

    def test_without_a_toolkit_the_wheel_is_that_of_cuda_13(self):
        _, _, said = self.run_setup("nccl ''")
        self.assertIn("fetched nvidia-nccl-cu13==2.30.7", said)


if __name__ == "__main__":
    case_report.main()
