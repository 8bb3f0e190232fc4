"""What the Python client's README tells a newcomer to do works: its commands, but for those that install packages, in a
folder of the test, against a real service.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import case_report
from live_service import ROOT, Service, golden_model

README = ROOT / "docs/clients/python/README.md"


class ReadmeTest(unittest.TestCase):
    def setUp(self):
        # "~" of the commands, and the repository: real files, where the test itself has links.
        self.home = tempfile.mkdtemp(prefix="bitshard-home-", dir=os.environ.get("TEST_TMPDIR"))
        self.repository = pathlib.Path(self.home) / "repository"
        shutil.copytree(ROOT / "docs/clients/python", self.repository / "docs/clients/python",
                        ignore=shutil.ignore_patterns("__pycache__"))
        (self.repository / "proto").mkdir()
        shutil.copy(ROOT / "proto/inference.proto", self.repository / "proto")
        self.environment = dict(os.environ, HOME=self.home, PYTHONPATH="", PYTHONDONTWRITEBYTECODE="1",
                                PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")

    def _run(self, script, **more):
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.repository, env=self.environment, text=True,
                              capture_output=True, timeout=120, check=False, **more)

    def test_five_minutes(self):
        block = re.search(r"## Five minutes.*?```sh\n(.*?)```", README.read_text(), re.S).group(1)
        lines = [line for line in block.splitlines() if not line.startswith(("python3 -m venv", "pip install"))]
        self.assertEqual(len(lines), 4, block)
        (pathlib.Path(self.home) / "bitshard-app").mkdir()  # as venv does
        with Service(golden_model("tiny-llama-q"), workers=1) as service:
            script = "\n".join(lines).replace("localhost:50051", f"127.0.0.1:{service.ports['port']}")
            result = self._run(script)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"\[FINISH_REASON_(STOP|LENGTH), \d+ \+ \d+ tokens, request req-[0-9a-f]{16}\]")
            asynchronous = self._run(
                f"cd ~/bitshard-app && python example_async.py --target=127.0.0.1:{service.ports['port']}",
                input="def main\nimport os\n\nclass A\n")
            self.assertEqual(asynchronous.returncode, 0, asynchronous.stderr)
            self.assertEqual([line.split(" -> ")[0] for line in asynchronous.stdout.splitlines() if " -> " in line],
                             ["def main", "import os", "class A"])
            wrong = self._run(f"cd ~/bitshard-app && python example.py --target=127.0.0.1:{service.ports['port']} --max-tokens=0")
            self.assertEqual(wrong.returncode, 2, wrong.stderr)
            self.assertIn("max_tokens: must be at least 1", wrong.stderr)

    def test_snippets(self):
        shutil.copytree(self.repository / "docs/clients/python", pathlib.Path(self.home) / "app")
        self._run('python -m grpc_tools.protoc -Ibitshard_client=proto --python_out="$HOME/app" --grpc_python_out="$HOME/app" '
                  "proto/inference.proto").check_returncode()
        blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
        self.assertEqual(len(blocks), 4)
        with Service(golden_model("tiny-llama-q"), workers=1) as service:
            code = "\n".join(blocks).replace("bitshard.example:50051", f"127.0.0.1:{service.ports['port']}")
            # This model may write blanks until max_tokens.
            code += "\nprint([whole.choices[0].text])"
            (pathlib.Path(self.home) / "app/snippets.py").write_text(code)
            result = self._run("cd ~/app && python snippets.py")
        self.assertEqual(result.returncode, 0, result.stderr)
        print(result.stdout)
        self.assertRegex(result.stdout.splitlines()[-1], r"^\['(\\n| )*\{")

    def tearDown(self):
        shutil.rmtree(self.home, ignore_errors=True)


if __name__ == "__main__":
    case_report.main()
