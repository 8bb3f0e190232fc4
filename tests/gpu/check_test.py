"""check.sh without a GPU: its phases and limits, and what it does when programs fail, hang or are missing. Its programs are
stubs here; each of them has tests of its own.
"""

import ast
import glob
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest

import case_report

HERE = "tests/gpu"
FILES = ["check.sh", "same_answer.sh"]
PACKED_LIMIT = 30000000  # bytes; the project's own

FILES_OF_A_RUN = ["ceilings.json", "kernels.tsv", "ptx.bin", "roofline.tsv", "counters.tsv", "e2e.json"]

# What ceilings prints where there is no GPU; kernels/cuda/device_cuda.cc.
NO_GPU = ("no CUDA device: no NVIDIA driver is loaded here. Install one (nvidia-smi must work), give the container devices "
          "(docker run --gpus all; Kubernetes: resources.limits nvidia.com/gpu), or use --device=cpu or --device=auto")

# What a stub does besides noting its call in $CALLS; bash, "$@" are its arguments.
GOOD = {
    "bin/faults": "exit 2",
    "bin/bitshard": """
if [[ $1 == serve ]]; then
  for word in "$@"; do
    case "$word" in
      --port-file=*) file="${word#*=}" ;;
      --device=*) device="${word#*=}" ;;
    esac
  done
  echo "port=$device" > "$file"
  trap 'exit 0' TERM
  while :; do sleep 0.05; done
fi
if [[ $1 == bench ]]; then
  sum=true speed=200 note=8B
  for word in "$@"; do
    case "$word" in
      --json-file=*) file="${word#*=}" ;;
      --deterministic=false) sum=false speed=250 ;;
      --synthetic-shard=*) note="70B; rank 0's share of 8" speed=90 ;;
    esac
  done
  line() { echo "{\\"name\\":\\"$1\\",\\"kind\\":\\"$2\\",\\"median\\":{\\"tokens_per_s\\":$3,\\"read_share\\":$4}}"; }
  echo "{\\"service\\":{\\"note\\":\\"$note\\"},\\"flags\\":{\\"deterministic\\":\\"$sum\\"},\\"lines\\":[\
$(line p prefill 9e3 null),$(line "decode at 0" decode $speed.5 0.65),$(line "decode at 2048" decode 1 0.1)]}" >> "$file"
fi
address="${*: -1}"
echo "Paris"
cat "$CALLS.${address##*:}" 2> /dev/null || true""",
    "bin/ceilings": 'echo "{}" > "$1"; echo "copies 4000 GB/s"',
    "bin/kernels_on_gpu": 'echo "[  PASSED  ] 70 tests."',
    "bin/kernel_cases": """
case "$1" in
  metrics) echo "launch__grid_size,known_metric.sum,unknown_metric.sum" ;;
  join) cp "$3" "$CALLS.ncu"; echo "5 of 6 figures" > "$4" ;;
  *) echo "60 launches" ;;
esac""",
    "bin/nccl_check": 'ls "${LD_LIBRARY_PATH##*:}"; echo "0 of 14 checks failed"',
    "bin/ptx_vectors": 'echo "0 of 28 fields beyond their tolerance"',
    "bin/roofline": 'echo "a line" > "$2"; echo "84 lines"',
    "tools/nvidia-smi": 'echo "580.1, 143771 MiB, 1980 MHz, 9.0, Disabled, NVIDIA H200"',
    # Reports planted faults alone.
    "tools/compute-sanitizer": """
echo "========= ERROR SUMMARY"
case "${*: -1}" in oob | race | uninit) exit 9 ;; esac""",
    "tools/ncu": """
if [[ $1 == --query-metrics ]]; then
  echo "known_metric   Counter"
else
  printf '"ID","known_metric.sum"\\n"0","17"\\n'
fi""",
    "tools/ldconfig": """
echo "	libnccl.so.2 (libc6,x86-64) => /fake/libnccl.so.2"
echo "	libcublas.so.13 (libc6,x86-64) => /fake/libcublas.so.13\"""",
    "tools/python3": "exit 1",
    "tools/cmp": "exit 127",  # as if there were none
    # One phase has less time than check.sh gives it: the one that hangs.
    "tools/timeout": """
if [[ "$*" == *bin/ptx_vectors* ]]; then set -- "$1" "$2" 3 "${@:4}"; fi
exec /usr/bin/timeout "$@\"""",
}


class Bundle:
    """An unpacked bundle of stubs. `changes`: what some of them do instead; None: there is none."""

    def __init__(self, changes=None):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        for name in FILES:
            shutil.copy(os.path.join(HERE, name), self.folder)
        for folder in ("bin", "lib", "libc", "model", "start", "tools"):
            os.mkdir(os.path.join(self.folder, folder))
        self.calls_path = os.path.join(self.folder, "calls")
        self.out = os.path.join(self.folder, "out")
        self.scratch = os.path.join(self.folder, "scratch")
        os.mkdir(self.scratch)
        self.environment = {"PATH": self.folder + "/tools:/usr/bin:/bin", "CUDA_HOME": "/nowhere", "HOME": self.folder,
                            "TMPDIR": self.scratch}
        for name, does in {**GOOD, **(changes or {})}.items():
            if does is not None:
                path = os.path.join(self.folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f'#!/bin/bash\nCALLS={self.calls_path}\necho "{name} $*" >> "$CALLS"\n{does}\n')
                os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def run(self, *before, **environment):
        done = subprocess.run([*before, self.folder + "/check.sh", self.out], env={**self.environment, **environment},
                              check=False, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def start(self):
        """check.sh as a terminal would start it: in a process group of its own, which Ctrl-C is for."""
        return subprocess.Popen([self.folder + "/check.sh", self.out], env=self.environment, start_new_session=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def verdicts(self):
        """{phase: (verdict, the whole line)} of summary.txt."""
        found = {}
        for line in self.text("out/summary.txt").splitlines():
            match = re.match(r"(\S+) +(ok|FAILED|TIMED OUT|SKIPPED|NOT THERE|NO TIME) +\d+ s", line)
            if match:
                found[match.group(1)] = (match.group(2), line)
        return found

    def text(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def calls(self, program):
        return [line for line in self.text("calls").splitlines() if line.startswith(program)]


def ends(process):
    """Whether it is gone, or soon is; one that nobody has waited for yet is."""
    for _ in range(200):
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def phases(*args):
    """[(name, limit, command)] of a dry run."""
    text = subprocess.run([HERE + "/check.sh", "--dry-run", *args, "OUT"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    lines = [line.split("\t") for line in text.splitlines()]
    assert lines[0] == ["phase", "limit s", "command"], lines[0]
    return [(name, int(limit), command) for name, limit, command in lines[1:]]


class DryRun(unittest.TestCase):

    def test_limits_add_up_to_less_than_the_whole(self):
        self.assertLessEqual(sum(limit for _, limit, _ in phases()), 535)
        short = phases("--seconds=240")
        self.assertLessEqual(sum(limit for _, limit, _ in short), 240)
        names = [name for name, _, _ in short]
        self.assertEqual(names[:5], ["machine", "ceilings", "kernels", "cases", "ptx"])
        self.assertTrue({"memcheck", "racecheck", "roofline"} <= set(names))
        self.assertTrue({"ncu", "nccl", "answer"} <= {name for name, _, _ in phases()} - set(names))

    def test_what_it_names_is_in_the_bundle(self):
        with open(HERE + "/BUILD.bazel", encoding="utf-8") as file:
            packed = ast.literal_eval(re.search(r"_PROGRAMS = (\{.*?\n\})", file.read(), re.S).group(1))
        with open(HERE + "/pack.sh", encoding="utf-8") as file:
            pack = file.read()
        here = os.path.abspath(HERE)
        commands = " ".join(command for _, _, command in phases())
        named = set(re.findall(re.escape(here) + r"/bin/(\w[\w-]*)", commands))
        self.assertGreater(len(named), 5)
        self.assertEqual(named - set(packed), set())
        files = set(re.findall(re.escape(here) + r"/([\w.]+)(?=\s|$)", commands)) - {"lib", "start"}
        self.assertTrue({"same_answer.sh", "cases_emulated.bin", "ptx_emulated.bin", "counters_emulated.tsv"} <= files, files)
        for name in files:
            self.assertIn(f'$rest/{name}"', pack)

    def test_bad_arguments_are_refused(self):
        for words in (["--seconds=239"], ["--seconds="], ["--seconds=5m"], ["--fast"]):
            done = subprocess.run([HERE + "/check.sh", *words, "--dry-run"], check=False, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("error: " + words[0], done.stderr)


class Refusal(unittest.TestCase):
    """Where it cannot run."""

    def test_outside_the_bundle_it_says_how_to_get_one(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        done = subprocess.run([HERE + "/check.sh", folder + "/out"], check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^error: .* not the unpacked bundle.* bazel build --config=cuda //tests/gpu:bundle")
        self.assertEqual(os.listdir(folder), [])

    def test_help_is_its_head_comment(self):
        for word in ("--help", "-h"):
            done = subprocess.run([HERE + "/check.sh", word], check=True, stdout=subprocess.PIPE, text=True)
            self.assertTrue(done.stdout.startswith("What a machine with an NVIDIA GPU must confirm"), done.stdout)
            self.assertIn("\n  tar -xzf bundle.tar.gz && bundle/check.sh ", done.stdout)
            self.assertTrue(done.stdout.endswith("its phases are skipped.\n"), done.stdout)

    def test_a_machine_of_another_kind_is_named(self):
        code, text = Bundle({"tools/uname": "echo aarch64"}).run()
        self.assertEqual(code, 1)
        self.assertEqual(text, "error: the programs of the bundle are for x86-64, and this machine is aarch64\n")

    def test_a_folder_that_cannot_be_written_is_named(self):
        bundle = Bundle()
        with open(bundle.folder + "/rest.tar.xz", "w", encoding="utf-8"):
            pass
        os.chmod(bundle.folder, 0o555)
        # Root may write everywhere, unless it gives that up.
        code, text = bundle.run(*(["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []))
        os.chmod(bundle.folder, 0o755)
        self.assertEqual(code, 1)
        self.assertRegex(text, rf"^error: cannot write to {bundle.folder}, .*\n$")


class Pack(unittest.TestCase):
    """pack.sh with programs that do nothing, and what check.sh makes of its bundle."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.archive = self.folder + "/bundle.tar.gz"
        for name in ("ptx", "cases", "counted"):
            self.script(name, 'echo "$*" > "$2"')
        # Whoever unpacks has gzip, but no xz.
        os.mkdir(self.folder + "/tools")
        for name in os.listdir("/usr/bin"):
            if not name.startswith("xz"):
                os.symlink("/usr/bin/" + name, f"{self.folder}/tools/{name}")

    def script(self, name, does):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\n{does}\n")
        os.chmod(os.path.join(self.folder, name), 0o755)

    def pack(self, limit):
        return subprocess.run(
            [HERE + "/pack.sh", str(limit), "0", self.archive, HERE + "/check.sh", HERE + "/same_answer.sh", self.folder + "/ptx",
             self.folder + "/cases", self.folder + "/counted", HERE + "/BUILD.bazel", "--", "faults=/bin/true", "bitshard=/bin/ls"],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_a_bundle_beyond_the_limit_is_an_error_that_says_what_is_large(self):
        done = self.pack(100000)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"error: the packed bundle has \d+ bytes and may have 100000 ")
        self.assertRegex(done.stdout, r"\d+ bin/bitshard\n")
        self.assertFalse(os.path.exists(self.archive))
        with open(HERE + "/BUILD.bazel", encoding="utf-8") as file:
            self.assertIn(f'"$(location pack.sh) {PACKED_LIMIT} 9 $@ ', file.read())

    def test_the_first_run_unpacks_the_rest_without_the_machines_xz(self):
        done = self.pack(PACKED_LIMIT)
        self.assertEqual(done.returncode, 0, done.stdout)
        environment = {"PATH": self.folder + "/tools", "HOME": self.folder, "CUDA_HOME": "/nowhere"}
        subprocess.run(["tar", "-xzf", self.archive, "-C", self.folder], env=environment, check=True)
        bundle = self.folder + "/bundle"
        self.assertEqual(set(os.listdir(bundle)), {"check.sh", "libc", "rest.tar.xz"})
        for packed in (True, False):  # the second run finds all in place
            self.assertEqual(os.path.exists(bundle + "/rest.tar.xz"), packed)
            subprocess.run([bundle + "/check.sh", self.folder + "/out"], env=environment, check=False, timeout=120,
                           stdout=subprocess.DEVNULL)
            for name in ("bin/faults", "start/bitshard", "same_answer.sh", "cases_emulated.bin", "model/BUILD.bazel",
                         "lib/libselinux.so.1", "libc/libc.so.6"):
                self.assertTrue(os.path.exists(os.path.join(bundle, name)), name)

    def test_what_cannot_be_unpacked_is_said(self):
        self.assertEqual(self.pack(PACKED_LIMIT).returncode, 0)
        subprocess.run(["tar", "-xzf", self.archive, "-C", self.folder], check=True)
        rest = self.folder + "/bundle/rest.tar.xz"
        with open(rest, "r+b") as file:
            file.truncate(os.path.getsize(rest) // 2)
        done = subprocess.run([self.folder + "/bundle/check.sh", self.folder + "/out"], check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"error: cannot unpack {rest}", done.stdout)


class Run(unittest.TestCase):
    """Few runs that show much: each takes seconds."""

    def test_all_phases_pass_and_the_summary_comes_last(self):
        bundle = Bundle()
        code, text = bundle.run()
        self.assertEqual(code, 0, text)
        verdicts = bundle.verdicts()
        for name, _, _ in phases():
            self.assertEqual(verdicts[name][0], "ok", text)
        self.assertTrue(text.endswith(bundle.text("out/summary.txt")), text)
        self.assertIn("NVIDIA H200", verdicts["machine"][1])
        self.assertIn("70 tests", verdicts["kernels"][1])
        # At most 8 files, all in one folder.
        files = os.listdir(bundle.out)
        self.assertLessEqual(len(files), 8, files)
        self.assertTrue({"summary.txt", "phases.log", "ceilings.json", "roofline.tsv", "counters.tsv"} <= set(files), files)
        # The machine's libraries are found and handed over; ncu is asked for what it has.
        self.assertIn("/fake/libcublas.so.13", bundle.calls("bin/ceilings")[0])
        self.assertIn("libnccl.so.2\n", bundle.text("out/phases.log"))
        self.assertIn("--metrics launch__grid_size,known_metric.sum ", bundle.calls("tools/ncu")[1])
        self.assertIn('"0","17"', bundle.text("calls.ncu"))
        # 250.5 and 200.5 tokens a second.
        self.assertIn("decode 1.25 x, prefill 1.00 x the speed of --deterministic; one sequence has 0.650 of the bandwidth",
                      verdicts["e2e_verdict"][1])

    def test_what_fails_or_hangs_does_not_stop_the_next(self):
        bundle = Bundle({"bin/kernels_on_gpu": "echo '2 FAILED TESTS'; exit 1", "bin/ceilings": "exit 3",
                         "bin/ptx_vectors": "sleep 100", "tools/compute-sanitizer": "exit 0",
                         "bin/bitshard": 'echo "no such device"; exit 1',
                         "bin/kernel_cases": '[ "$1" != compare ] || [ "$BITSHARD_EARLY_LAUNCH" = 0 ]'})
        os.mkdir(bundle.out)
        for name in FILES_OF_A_RUN:
            with open(os.path.join(bundle.out, name), "w", encoding="utf-8") as file:
                file.write("of an earlier run\n")
        code, text = bundle.run()
        self.assertEqual(code, 1)
        verdicts = bundle.verdicts()
        # A planted fault that is not reported fails, too.
        wrong = {name for name, (verdict, _) in verdicts.items() if verdict != "ok"}
        self.assertEqual({name for name in wrong if not name.startswith("e2e")},
                         {"kernels", "cases", "ceilings", "ptx", "answer", "planted_memcheck", "planted_racecheck",
                          "planted_initcheck"}, text)
        self.assertIn("2 FAILED TESTS (exit status 1)", verdicts["kernels"][1])
        self.assertIn("it printed nothing (exit status 3)", verdicts["ceilings"][1])
        self.assertEqual(verdicts["cases_in_order"][0], "ok")
        self.assertEqual(verdicts["ptx"][0], "TIMED OUT")
        self.assertIn("no answer on cpu: no such device", verdicts["answer"][1])
        self.assertTrue(text.endswith(f"{len(wrong)} phases failed\n"), text)
        # Nor is a file of an earlier run left for later phases.
        self.assertFalse(os.path.exists(bundle.out + "/ceilings.json"))
        for name in os.listdir(bundle.out):
            self.assertNotIn("of an earlier run", bundle.text("out/" + name), name)

    def test_without_a_gpu_it_says_why_and_stops(self):
        bundle = Bundle({"bin/ceilings": f"echo 'error: FAILED_PRECONDITION: {NO_GPU}' >&2; exit 1",
                         "tools/nvidia-smi": "exit 9"})
        code, text = bundle.run()
        self.assertEqual(code, 1)
        self.assertTrue(text.endswith(f"\nno GPU that CUDA can use: {NO_GPU}\n"), text)
        self.assertEqual(text, bundle.text("out/summary.txt"))
        self.assertEqual(list(bundle.verdicts()), ["machine", "ceilings"])

    def test_the_machine_phase_asks_for_the_card_that_cuda_takes(self):
        for visible, asked in (({}, "--id=0 "), ({"CUDA_VISIBLE_DEVICES": "GPU-17,0"}, "--id=GPU-17 "),
                               ({"CUDA_VISIBLE_DEVICES": "MIG-5"}, "")):
            bundle = Bundle({"bin/ceilings": f'echo "error: order $CUDA_DEVICE_ORDER; {NO_GPU}"; exit 1'})
            _, text = bundle.run(**visible)
            self.assertIn("order PCI_BUS_ID", text)
            self.assertTrue(any(call.startswith(f"tools/nvidia-smi {asked}--format") for call in bundle.calls("tools")),
                            (visible, bundle.calls("tools")))

    def test_a_signal_ends_it_and_all_that_it_started(self):
        for number, code, deaf in ((signal.SIGINT, 130, ""), (signal.SIGTERM, 143, "trap '' TERM; ")):
            bundle = Bundle({
                "bin/kernels_on_gpu": f"""
({deaf}echo "$BASHPID" > "$CALLS.new"; mv "$CALLS.new" "$CALLS.child"; exec sleep 1000) &
wait""",
                "tools/nvidia-smi": """
[[ $1 != -l ]] || { echo "$BASHPID" > "$CALLS.holder"; exec sleep 1000; }
echo H200"""})
            run = bundle.start()
            while not os.path.exists(bundle.calls_path + ".child"):
                self.assertIsNone(run.poll())
                time.sleep(0.05)
            if number == signal.SIGINT:
                os.killpg(run.pid, number)
            else:
                run.send_signal(number)
            text, _ = run.communicate(timeout=60)
            self.assertEqual(run.returncode, code, text)
            self.assertRegex(text, rf"\nstopped by {number.name} after \d+ s, in the phase kernels; .* in {bundle.out}\n$")
            self.assertEqual(text, bundle.text("out/summary.txt"))  # no word more
            self.assertEqual(list(bundle.verdicts()), ["machine", "ceilings"])
            self.assertTrue({"ceilings.json", "phases.log", "summary.txt"} <= set(os.listdir(bundle.out)))
            self.assertEqual(os.listdir(bundle.scratch), [])
            for name in ("calls.child", "calls.holder"):
                self.assertTrue(ends(int(bundle.text(name))), name)

    def test_tools_that_the_machine_does_not_support_are_skipped_and_the_roofline_gets_their_time(self):
        bundle = Bundle({"tools/compute-sanitizer": "echo '========= Error: Device not supported'; exit 1",
                         "bin/bitshard": GOOD["bin/bitshard"].replace("0.65", "0.55"),
                         "tools/ncu": "[[ $1 == --query-metrics ]] || { echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1; }"})
        with open(bundle.calls_path + ".cuda", "w", encoding="utf-8") as file:
            file.write(", or London\n")
        code, text = bundle.run()
        verdicts = bundle.verdicts()
        for name in ("planted_memcheck", "sanitizers", "ncu", "counters"):
            self.assertEqual(verdicts[name][0], "SKIPPED", text)
        self.assertNotIn("racecheck", verdicts)
        planned = [command for name, _, command in phases() if name == "roofline"]
        self.assertGreater(int(bundle.calls("bin/roofline")[0].split()[-1]), int(planned[0].split()[-1]) + 60)
        # And another answer on the GPU than on the CPU is a failure, and so is too small a share of the bandwidth.
        self.assertEqual(code, 1)
        self.assertEqual(verdicts["answer"][0], "FAILED")
        self.assertIn("or London", verdicts["answer"][1])
        self.assertEqual(verdicts["e2e_verdict"][0], "FAILED")
        self.assertIn("has 0.550 of the bandwidth, the bar is 0.60: BELOW", verdicts["e2e_verdict"][1])
        self.assertTrue(text.endswith("2 phases failed\n"), text)

    def test_what_the_machine_does_not_have_is_said(self):
        if glob.glob("/opt/nvidia/nsight-compute/*/ncu"):
            self.skipTest("check.sh looks there, too")
        bundle = Bundle({"tools/compute-sanitizer": None, "tools/ncu": None, "tools/ldconfig": "exit 0"})
        code, text = bundle.run()
        self.assertEqual(code, 0, text)
        for name in ("sanitizers", "ncu", "nccl"):
            self.assertEqual(bundle.verdicts()[name][0], "SKIPPED", text)
        self.assertEqual(len(bundle.calls("bin/ceilings")[0].split()), 2)  # no cuBLAS


if __name__ == "__main__":
    case_report.main()
