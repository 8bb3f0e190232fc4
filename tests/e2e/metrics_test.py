"""The metrics pages of both processes, scraped and read as Prometheus does: complete and at 0 from the start, documented,
and true after 5,000 requests that ended in every way there is."""

import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest
import urllib.parse
import urllib.request

import grpc

import case_report
from live_service import ROOT, Service, Stream, golden_model, pb
from metrics_page import Page, settled

REQUESTS = 5000
AT_ONCE = 48
KV_BLOCKS, MAX_RUNNING, MAX_WAITING = 256, 16, 24
BURST = 80
SETTLE_S = 30  # for what is counted when the last one lets go of a call

# The bounds that vLLM's dashboards know (docs/metrics.md names our sets): ours must have them all.
VLLM_TTFT = [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
VLLM_ITL = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
VLLM_LATENCY = [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
VLLM_STEP_TOKENS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
VLLM_BOUNDS = {
    "time_to_first_token_seconds": VLLM_TTFT,
    "inter_token_latency_seconds": VLLM_ITL,
    "request_time_per_output_token_seconds": VLLM_ITL,
    "e2e_request_latency_seconds": VLLM_LATENCY,
    "request_queue_time_seconds": VLLM_LATENCY,
    "request_inference_time_seconds": VLLM_LATENCY,
    "request_prefill_time_seconds": VLLM_LATENCY,
    "request_decode_time_seconds": VLLM_LATENCY,
    "step_tokens": VLLM_STEP_TOKENS,
    "request_params_n": [1, 2, 5, 10, 20],
    "request_prompt_tokens": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
}
PHASES = ("frontend", "queue", "prefill", "decode", "recompute", "paused")


def listed(program):
    return subprocess.run([str(ROOT / program), "--list-metrics"], check=True, capture_output=True, text=True).stdout


def documented(markdown):
    """{name: type} of the metrics in a page of docs/metrics.md."""
    return dict(re.findall(r"^\| `([a-z0-9_]+)` \| (counter|gauge|histogram)", markdown, re.MULTILINE))


def worker_ports(service):
    """Of the workers' pages, in the order in which they started."""
    return [int(port) for port in re.findall(r"worker: starting .*metrics_port=(\d+)", service.log())]


def identity(page):
    """Both sides of the accounting identity."""
    received = page.sum("bitshard_requests_received_total")
    parts = {name: page.sum("bitshard_" + name) for name in (
        "requests_total", "admission_rejections_total", "requests_validating", "requests_waiting", "requests_running",
        "requests_paused", "requests_recovering")}
    return received, parts


class StartTest(unittest.TestCase):
    """A service that nobody has asked anything yet."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service(golden_model("tiny-llama-q"), workers=2, worker_flags=["--metrics-port=0"])
        cls.page = Page(cls.service.ports["metrics_port"])
        cls.workers = [Page(port) for port in worker_ports(cls.service)]

    @classmethod
    def tearDownClass(cls):
        cls.service.close()

    def test_the_pages_have_what_the_table_lists_and_nothing_else(self):
        self.assertEqual(len(self.workers), 2)
        for page, program in ((self.page, "coordinator/bitshard-coordinator"),
                              (self.workers[0], "worker/bitshard-worker"), (self.workers[1], "worker/bitshard-worker")):
            wanted = documented(listed(program))
            self.assertGreater(len(wanted), 20)
            # The library's own, about scrapes.
            found = {name: family.type for name, family in page.families.items() if not name.startswith("exposer_")}
            self.assertEqual(found, wanted)

    def test_every_series_is_there_at_zero(self):
        page = self.page
        not_zero = re.compile(r"_info$|^process_|^bitshard_(kv_blocks|group_|worker_|step_|scheduler_|grpc_|exposer_)")
        for name, family in page.families.items():
            self.assertTrue(family.samples, f"{name} has no series")
            if not not_zero.search(name) and not name.startswith("exposer_"):
                self.assertEqual([s for s in family.samples if s.value != 0], [], name)
        self.assertEqual(page.labels("bitshard_requests_total", "finished_reason"),
                         {"stop", "length", "cancelled", "deadline", "error", "worker_lost", "shutdown"})
        self.assertLessEqual({"queue_full", "queue_tokens", "prompt_too_long", "kv_impossible", "draining", "group_down",
                              "bad_request", "auth"}, page.labels("bitshard_admission_rejections_total", "reason"))
        self.assertEqual(page.labels("bitshard_step_seconds_count", "kind"), {"prefill", "decode", "mixed", "idle"})
        self.assertLessEqual({"Generate", "Complete", "Score", "Embed", "GetLoad", "Drain", "Check", "other"},
                             page.labels("bitshard_grpc_server_handled_total", "grpc_method"))
        self.assertEqual(len(page.labels("bitshard_grpc_server_handled_total", "grpc_code")), 17)
        self.assertEqual(page.sum("bitshard_worker_up"), 2)
        self.assertEqual(page.sum("bitshard_group_state", state="ready"), 1)
        for name, samples in page.samples.items():
            for labels, _ in samples:
                if name.startswith("bitshard_"):
                    self.assertEqual((labels["engine"], bool(labels["model_name"])), ("0", True), name)

    def test_workers_begin_with_their_rank(self):
        ranks = set()
        for page in self.workers:
            found = page.labels("bitshard_worker_step_seconds_count", "rank")
            self.assertEqual(len(found), 1)
            ranks |= found
            self.assertEqual(page.sum("bitshard_worker_step_seconds_count"), 0, "only empty steps so far")
            self.assertEqual(page.labels("bitshard_worker_step_seconds_count", "phase"),
                             {"gemm", "attention", "collective", "device", "other"})
            self.assertEqual(page.sum("bitshard_weight_load_errors_total"), 0)
            for name in ("weight_bytes", "weight_read_bytes_total", "weight_load_seconds", "worker_kernel_info",
                         "worker_peak_read_bytes_per_second", "worker_peak_flops_per_second"):
                self.assertGreater(page.sum("bitshard_" + name), 0, name)
            for kind in ("weights", "kv", "workspace"):
                self.assertGreater(page.sum("bitshard_memory_bytes", kind=kind), 0)
            self.assertGreater(page.sum("bitshard_worker_bring_up_seconds", phase="total"),
                               page.sum("bitshard_worker_bring_up_seconds", phase="load"))
        self.assertEqual(ranks, {"0", "1"})

    def test_buckets_have_every_bound_of_vllm(self):
        for name, bounds in VLLM_BOUNDS.items():
            ours = {float(le) for le in self.page.labels(f"bitshard_{name}_bucket", "le")}
            self.assertEqual([b for b in bounds if b not in ours], [], name)
        tokens = {float(le) for le in self.page.labels("bitshard_request_prompt_tokens_bucket", "le")} - {float("inf")}
        self.assertGreaterEqual(max(tokens), self._context(), "the longest prompt has no bucket")

    def _context(self):
        return self.service.inference.ListModels(pb.ListModelsRequest()).models[0].context_tokens

    @unittest.skipUnless(shutil.which("promtool"), "no promtool here (Debian package prometheus)")
    def test_promtool_finds_nothing_to_say(self):
        for page in [self.page] + self.workers:
            ours = "\n".join(line for line in page.text.splitlines() if "exposer_" not in line) + "\n"
            check = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True)
            self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("prometheus"), "no prometheus here (Debian package prometheus)")
    def test_a_real_prometheus_scrapes_all_pages(self):
        folder = os.environ.get("TEST_TMPDIR", "/tmp")
        targets = [int(self.service.ports["metrics_port"])] + worker_ports(self.service)
        config = os.path.join(folder, "prometheus.json")
        with open(config, "w") as file:
            json.dump({"global": {"scrape_interval": "200ms"},
                       "scrape_configs": [{"job_name": "bitshard", "static_configs": [
                           {"targets": [f"127.0.0.1:{port}" for port in targets]}]}]}, file)
        log = open(os.path.join(folder, "prometheus.log"), "w+")
        server = subprocess.Popen(["prometheus", f"--config.file={config}", "--web.listen-address=127.0.0.1:0",
                                   f"--storage.tsdb.path={folder}/tsdb"], stdout=log, stderr=log)
        try:
            self._ask(server, log, len(targets))
        finally:
            server.terminate()
            server.wait()

    def _ask(self, server, log, targets):
        end = time.monotonic() + 60
        up = address = None
        while time.monotonic() < end and up != targets:
            time.sleep(0.2)
            self.assertIsNone(server.poll(), "prometheus ended")
            log.seek(0)
            # It does not say which port it took.
            address = address or self._listening(server.pid)
            if address:
                up = self._query(address, "sum(up)")
        self.assertEqual(up, targets)
        self.assertEqual(self._query(address, "sum(bitshard_worker_up)"), 2)
        rate = None  # it wants two scrapes
        while rate is None and time.monotonic() < end:
            rate = self._query(address, "sum(rate(bitshard_generation_tokens_total[1m]))")
        self.assertEqual(rate, 0)

    @staticmethod
    def _listening(pid):
        """The port on which the process listens."""
        inodes = set()
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
        for line in open(f"/proc/{pid}/net/tcp").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return f"127.0.0.1:{int(fields[1].split(':')[1], 16)}"
        return None

    @staticmethod
    def _query(address, expression):
        try:
            with urllib.request.urlopen(f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression}),
                                        timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except OSError:
            return None
        return float(result[0]["value"][1]) if result else None


class Scraper(threading.Thread):
    """Scrapes all the time and keeps what is wrong with the identity, and how much was under way."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.stopping = port, threading.Event()
        self.wrong, self.scrapes, self.most_live, self.failure = [], 0, 0, None
        self.start()

    def run(self):
        try:
            while not self.stopping.is_set():
                page = Page(self.port)
                received, parts = identity(page)
                if received != sum(parts.values()):
                    self.wrong.append((received, parts))
                live = parts["requests_running"] + parts["requests_waiting"]
                by_reason = page.sum("bitshard_requests_waiting_by_reason")
                if by_reason != parts["requests_waiting"]:
                    self.wrong.append(("waiting", by_reason, parts))
                blocks = page.sum("bitshard_kv_blocks")
                if page.sum("bitshard_group_state", state="ready") and blocks not in (0, KV_BLOCKS):
                    self.wrong.append(("kv_blocks", blocks))
                self.most_live = max(self.most_live, live)
                self.scrapes += 1
                self.stopping.wait(0.02)
        except BaseException as error:  # noqa: B902: told to the test
            self.failure = error

    def stop(self):
        self.stopping.set()
        self.join()


class MixedRequestsTest(unittest.TestCase):
    def test_the_pages_add_up_after_requests_of_every_ending(self):
        seed = int(os.environ.get("BITSHARD_TEST_SEED", "20261129"))
        print(f"seed {seed}")
        rng = random.Random(seed)
        flags = [f"--kv-blocks={KV_BLOCKS}", f"--max-running={MAX_RUNNING}", f"--max-waiting={MAX_WAITING}",
                 "--token-budget=64"]
        with Service(golden_model("tiny-llama-q"), workers=2, coordinator_flags=flags,
                     worker_flags=["--metrics-port=0"]) as service:
            port = service.ports["metrics_port"]
            before = Page(port)
            scraper = Scraper(port)
            codes = self._mixed(service, rng, REQUESTS)
            self._burst(service, codes)
            service.await_idle()
            workers = self._same_steps(service)
            self._lose_a_worker(service, codes)
            scraper.stop()
            page = self._settled(port)
            self.assertIsNone(scraper.failure)
            self.assertEqual(scraper.wrong[:3], [])
            self.assertGreater(scraper.most_live, 4)
            print(f"{scraper.scrapes} scrapes under load, at most {scraper.most_live:.0f} requests under way in one")
            self._endings(page, before, codes)
            self._sums(page)
            self._workers(workers)

    def _mixed(self, service, rng, requests):
        codes, live, lock = collections.Counter(), threading.Semaphore(AT_ONCE), threading.Lock()
        raw = service.channel.unary_stream("/bitshard.v1.Inference/Generate")

        def count(code):
            with lock:
                codes[code.name] += 1

        def unary(method, request, timeout):
            try:
                method(request, timeout=timeout)
                count(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                count(error.code())

        def go(kind, request, timeout, cancel_after):
            try:
                if kind == "complete":
                    unary(service.inference.Complete, pb.CompleteRequest.FromString(request.SerializeToString()), timeout)
                elif kind == "score":
                    unary(service.inference.Score, pb.ScoreRequest(tokens=request.tokens), timeout)
                elif kind == "malformed":
                    unary(lambda message, timeout: list(raw(message, timeout=timeout)), b"\xff\xff\xff", timeout)
                else:
                    stream = Stream(service.inference, request, timeout=timeout, cancel_after_tokens=cancel_after)
                    if kind == "cancel":
                        stream.cancel()
                    stream.join()
                    self.assertEqual(stream.gaps, [])
                    count(stream.code)
            finally:
                live.release()

        threads = []
        for i in range(requests):
            kind = rng.choices(["plain", "stop", "complete", "score", "deadline", "cancel", "cancel_later", "invalid",
                                "too_long", "malformed"], [30, 15, 10, 5, 12, 5, 12, 5, 3, 3])[0]
            request = pb.GenerateRequest(
                request_id=f"mixed-{i}", tokens=pb.TokenIds(ids=[rng.randrange(7, 512) for _ in range(rng.randint(1, 60))]),
                max_tokens=rng.randint(1, 12),
                sampling=pb.Sampling(temperature=-1 if kind == "invalid" else rng.choice([0, 0.9]), seed=i),
                stop=pb.Stopping(ignore_eos=True, strings=list("aeiost ") if kind == "stop" else []))
            if kind == "too_long":
                request.max_tokens = 1 << 20
            timeout = rng.uniform(0.002, 0.15) if kind == "deadline" else 120
            live.acquire()
            thread = threading.Thread(target=go, args=(kind, request, timeout, rng.randint(1, 6) if kind == "cancel_later" else None))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        self.assertEqual(sum(codes.values()), requests)
        return codes

    def _burst(self, service, codes):
        """More long streams at once than there is room for, in the queue and in the cache."""
        streams = [Stream(service.inference, pb.GenerateRequest(
            tokens=pb.TokenIds(ids=[7, 8, 9]), max_tokens=1500, stop=pb.Stopping(ignore_eos=True))) for _ in range(BURST)]
        end = time.monotonic() + 60
        while time.monotonic() < end:
            refused = sum(stream.code == grpc.StatusCode.RESOURCE_EXHAUSTED for stream in streams)
            if refused >= BURST - MAX_RUNNING - MAX_WAITING:
                if Page(service.ports["metrics_port"]).sum("bitshard_preemptions_total") > 0:
                    break
            time.sleep(0.02)
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.join()
            codes[stream.code.name] += 1

    def _lose_a_worker(self, service, codes):
        """Streams on which a worker is killed, and requests while there is no group."""
        streams = [Stream(service.inference, pb.GenerateRequest(
            tokens=pb.TokenIds(ids=[7, 8, 9]), max_tokens=1900, stop=pb.Stopping(ignore_eos=True))) for _ in range(2)]
        end = time.monotonic() + 30
        while any(stream.token_count < 3 for stream in streams) and time.monotonic() < end:
            time.sleep(0.005)
        os.kill(service.worker_pids()[1], signal.SIGKILL)
        for stream in streams:
            stream.join()
            codes[stream.code.name] += 1
        service.await_ready()
        stream = Stream(service.inference, pb.GenerateRequest(tokens=pb.TokenIds(ids=[7]), max_tokens=2))
        stream.join()
        codes[stream.code.name] += 1
        self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
        print(f"requests by the code that the client saw: {dict(codes)}")

    def _settled(self, port):
        """The page once every call has been let go."""
        page = settled(port)
        e2e = page.sum("bitshard_e2e_request_latency_seconds_count")
        counted = page.sum("bitshard_time_to_first_token_seconds_count") + page.sum("bitshard_ended_without_token_total")
        calls = [page.sum(f"bitshard_grpc_server_{what}_total", grpc_service="bitshard.v1.Inference")
                 for what in ("started", "handled")]
        self.assertEqual(e2e, counted, "time to first token + ended without token = requests")
        self.assertEqual(calls[0], calls[1], "calls started = calls handled")
        return page

    def _endings(self, page, before, codes):
        received, parts = identity(page)
        self.assertEqual(received, parts["requests_total"] + parts["admission_rejections_total"], "idle: nothing is under way")
        ends = {reason: page.sum("bitshard_requests_total", finished_reason=reason)
                for reason in page.labels("bitshard_requests_total", "finished_reason")}
        rejects = {reason: page.sum("bitshard_admission_rejections_total", reason=reason)
                   for reason in page.labels("bitshard_admission_rejections_total", "reason")}
        print(f"received {received:.0f}; ended {ends}; rejected { {k: v for k, v in rejects.items() if v} }")
        for reason in ("stop", "length", "cancelled", "deadline"):
            self.assertGreater(ends[reason], 20, reason)
        self.assertEqual(ends["worker_lost"], 2)
        self.assertEqual(ends["error"] + ends["shutdown"], 0)
        for reason in ("bad_request", "prompt_too_long", "queue_full"):
            self.assertGreater(rejects[reason], 20, reason)
        # What the client saw end well did; and every answer with INVALID_ARGUMENT is one of these refusals.
        started_well = before.sum("bitshard_requests_total", grpc_code="OK")
        self.assertGreaterEqual(page.sum("bitshard_requests_total", grpc_code="OK") - started_well, codes["OK"])
        self.assertEqual(rejects["bad_request"] + rejects["prompt_too_long"], codes["INVALID_ARGUMENT"])
        self.assertGreaterEqual(page.sum("bitshard_grpc_server_started_total", grpc_service="bitshard.v1.Inference"), received)
        handled = page.sum("bitshard_grpc_server_handled_total", grpc_service="bitshard.v1.Inference", grpc_code="INVALID_ARGUMENT")
        self.assertEqual(handled, codes["INVALID_ARGUMENT"])
        self.assertEqual(page.sum("bitshard_rejection_seconds_count"), sum(rejects.values()))
        self.assertEqual(page.sum("bitshard_group_losses_total"), 1)
        self.assertEqual(page.sum("bitshard_group_rebuilds_total"), 1)
        self.assertEqual(page.sum("bitshard_stream_backlog_chunks"), 0)
        print(f"refusals answered: p99 {1e3 * page.quantile('bitshard_rejection_seconds', 0.99):.2f} ms")

    def _sums(self, page):
        def total(name):
            return page.sum(f"bitshard_{name}_sum")

        phases = {phase: total(f"request_{phase}_time_seconds") for phase in PHASES}
        self.assertAlmostEqual(sum(phases.values()), total("e2e_request_latency_seconds"), delta=1e-3)
        self.assertAlmostEqual(phases["prefill"] + phases["decode"] + phases["recompute"],
                               total("request_inference_time_seconds"), delta=1e-3)
        count = page.sum("bitshard_e2e_request_latency_seconds_count")
        self.assertEqual(count, page.sum("bitshard_requests_total"))
        for phase in PHASES:
            self.assertEqual(page.sum(f"bitshard_request_{phase}_time_seconds_count"), count)
        self.assertEqual(total("request_generation_tokens"), page.sum("bitshard_generation_tokens_total"))
        # A gap for each token but the first: what is left are the requests that generated something.
        firsts = page.sum("bitshard_generation_tokens_total") - page.sum("bitshard_inter_token_latency_seconds_count")
        self.assertGreaterEqual(firsts, page.sum("bitshard_time_to_first_token_seconds_count"))
        self.assertLessEqual(firsts, count)
        self.assertEqual(page.sum("bitshard_step_seconds_count"), page.sum("bitshard_step_tokens_count"))
        self.assertGreater(page.sum("bitshard_preemptions_total"), 0)
        self.assertEqual(page.sum("bitshard_preemptions_total"), total("request_num_preemptions"))
        self.assertGreater(phases["recompute"], 0)
        print(f"phases in seconds { {k: round(v, 3) for k, v in phases.items()} }")

    @staticmethod
    def _same_steps(service):
        """The workers' pages, once both have ended the same last step."""
        end = time.monotonic() + SETTLE_S
        while True:
            pages = [Page(port) for port in worker_ports(service)]
            steps = {page.sum("bitshard_worker_step_seconds_count", phase="gemm") for page in pages}
            if len(steps) == 1 or time.monotonic() > end:
                return pages
            time.sleep(0.05)

    def _workers(self, pages):
        self.assertEqual(len(pages), 2)
        steps = [page.sum("bitshard_worker_step_seconds_count", phase="gemm") for page in pages]
        self.assertEqual(steps[0], steps[1], "every rank runs every step")
        self.assertGreater(steps[0], 1000)
        tokens = [page.sum("bitshard_worker_output_tokens_total") for page in pages]
        self.assertEqual(tokens[0], tokens[1])
        for op in ("allreduce", "allgather"):
            counts = [page.sum("bitshard_collective_seconds_count", op=op) for page in pages]
            self.assertGreater(counts[0], steps[0])
        for page in pages:
            for phase in ("gemm", "attention", "collective", "other"):
                self.assertGreater(page.sum("bitshard_worker_step_seconds_sum", phase=phase), 0, phase)
            self.assertGreater(page.sum("bitshard_model_read_bytes_total"), 0)
            self.assertGreater(page.sum("bitshard_model_flops_total"), 0)
            self.assertGreater(page.sum("bitshard_sampling_seconds_count"), 0)


if __name__ == "__main__":
    case_report.main()
