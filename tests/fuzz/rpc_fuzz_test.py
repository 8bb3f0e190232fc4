"""Fuzzes all RPCs of a real service (rpc_fuzz.py): 40 seconds here. By hand, with the programs built:

  bazel test //tests/fuzz:rpc_fuzz_test --test_arg=--minutes=30 --test_timeout=3600 --test_output=streamed
  bazel test //tests/fuzz:rpc_fuzz_test --test_arg=--seed=7       another seed
  bazel test //tests/fuzz:rpc_fuzz_test --test_arg=--replay=SEED:CALLER:NUMBER   one case, to a service of its own
"""

import argparse
import random
import sys
import unittest

import grpc
from google.rpc import status_pb2

import case_report
import rpc_fuzz
from live_service import admin_pb, pb
from rpc_judge import Answer, Method, complaints, parsed
from rpc_messages import fields_of, fields_set, make_request

# What may come on top of the first rests' figures: blocks of memory that the allocator keeps, and grammars, of which the
# coordinator holds the latest (coordinator/grammar/README.md). A leak passes any bound in half an hour.
GROWTH_BYTES = {"coordinator": 96 << 20, "worker 0": 24 << 20, "worker 1": 24 << 20}
GROWTH_FILES = GROWTH_THREADS = 16

arguments = argparse.ArgumentParser()
arguments.add_argument("--minutes", type=float, default=40 / 60)
arguments.add_argument("--seed", type=int, default=20261129)
arguments.add_argument("--replay", default="", metavar="SEED:CALLER:NUMBER")


class RpcFuzzTest(unittest.TestCase):
    def test_the_service_stands_whatever_comes(self):
        options = arguments.parse_args()
        print(f"seed {options.seed}", flush=True)
        with rpc_fuzz.open_service() as service:
            fuzz = rpc_fuzz.Fuzz(service, options.seed)
            fuzz.run(options.minutes * 60, rests=5 if options.minutes < 3 else int(options.minutes))
            self._print(fuzz)
            self.assertEqual(fuzz.findings, [])
            self.assertIsNone(service.process.poll(), service.log()[-4000:])
            self._assert_flat(fuzz.rests)
            self._assert_broad(fuzz)
            metrics = service.metrics()

            def total(name):
                return sum(v for k, v in metrics.items() if k.split("{")[0] == name)

            self.assertEqual(total("bitshard_requests_received_total"),
                             total("bitshard_requests_total") + total("bitshard_admission_rejections_total"))
            # A drain, last of all: with a field nobody knows.
            service.admin.Drain(admin_pb.DrainRequest.FromString(b"\x0a\x02\x08\x01\xf8\x06\x01"), timeout=10)
            self.assertEqual(service.process.wait(60), 0, service.log()[-4000:])
            self.assertEqual(service.close(), [])

    def _print(self, fuzz):
        print(f"{fuzz.sent} requests, {fuzz.malformed} of them malformed; {fuzz.checks} health checks and {fuzz.answers} "
              f"known answers in between; {len(fuzz.fields)} fields set")
        by_method = {}
        for (method, code), count in sorted(fuzz.codes.items()):
            by_method.setdefault(method, []).append(f"{code} {count}")
        for method, codes in by_method.items():
            print(f"  {method}: {', '.join(codes)}")
        for at, processes in fuzz.rests:
            print(f"  at {at:.0f} s: " + "; ".join(
                f"{name} {f['bytes'] / 2**20:.1f} MiB, {f['files']} files, {f['threads']} threads"
                for name, f in processes.items()))

    def _assert_flat(self, rests):
        """After the first third, which warms up."""
        self.assertGreater(len(rests), 3)
        warm, end = rests[max(1, len(rests) // 3)][1], rests[-1][1]
        for name, after in end.items():
            before = warm[name]
            self.assertLessEqual(after["bytes"] - before["bytes"], GROWTH_BYTES[name], name)
            self.assertLessEqual(after["files"] - before["files"], GROWTH_FILES, name)
            self.assertLessEqual(after["threads"] - before["threads"], GROWTH_THREADS, name)

    def _assert_broad(self, fuzz):
        """All fields of all requests were sent, all methods answered, and not only with refusals."""
        wanted = set().union(*(fields_of(method.request.DESCRIPTOR) for method, _, _ in rpc_fuzz.methods()))
        self.assertEqual(wanted - fuzz.fields, set())
        self.assertGreater(fuzz.malformed, 50)
        for method, _, _ in rpc_fuzz.methods():
            name = method.path.rpartition("/")[2]
            if name not in ("Drain", "Watch", "WatchStatus"):  # refused; cancelled by us
                self.assertGreater(fuzz.codes[name, "OK"], 0, name)
        for code in ("INVALID_ARGUMENT", "NOT_FOUND", "CANCELLED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"):
            self.assertGreater(sum(n for (_, c), n in fuzz.codes.items() if c == code), 0, code)


class JudgeTest(unittest.TestCase):
    """The judge can say no."""

    method = Method("/bitshard.v1.Inference/Generate", pb.GenerateRequest, pb.GenerateResponse, streams=True)

    def _judge(self, code, payload=b"", details="because", messages=(), **more):
        return complaints(self.method, payload, Answer(code, details, messages=[m.SerializeToString() for m in messages], **more),
                          ["shared"])

    def test_what_breaks_the_contract_is_found(self):
        code = grpc.StatusCode
        token = pb.GenerateResponse(token_index=0, token_count=1)
        end = pb.GenerateResponse(finished=pb.Finished())
        self.assertEqual(self._judge(code.OK, messages=[token, end]), [])
        bad = status_pb2.Status(code=3)
        bad.details.add(type_url="type.googleapis.com/google.rpc.BadRequest")
        self.assertEqual(self._judge(code.INVALID_ARGUMENT, trailers=(("grpc-status-details-bin", bad.SerializeToString()),)), [])
        for wrong in (self._judge(code.INTERNAL), self._judge(code.UNKNOWN), self._judge(code.UNAVAILABLE),
                      self._judge(code.UNIMPLEMENTED, details=""), self._judge(code.INVALID_ARGUMENT),
                      self._judge(code.NOT_FOUND, trailers=(("grpc-status-details-bin", bad.SerializeToString()),)),
                      self._judge(code.OK, messages=[token]), self._judge(code.OK, messages=[end, token]),
                      self._judge(code.OK, messages=[token, token, end]), self._judge(code.CANCELLED),
                      self._judge(code.OK, payload=b"\xff", messages=[end]), self._judge(code.UNIMPLEMENTED, payload=b"\xff"),
                      complaints(self.method, b"", Answer(code.OK, messages=[b"\xff"]), [])):
            self.assertNotEqual(wrong, [])

    def test_requests_are_both_good_and_bad_and_reproducible(self):
        for method, _, _ in rpc_fuzz.methods():
            descriptor = method.request.DESCRIPTOR
            made = [make_request(random.Random(seed), descriptor) for seed in range(150)]
            self.assertEqual(made, [make_request(random.Random(seed), descriptor) for seed in range(150)])
            messages = [parsed(method.request, data) for data in made]
            self.assertIn(None, messages, method.path)
            fields = set()
            for message in messages:
                if message is not None:
                    fields_set(message, fields)
            if descriptor.fields:
                self.assertGreater(len(fields), len(fields_of(descriptor)) // 2, method.path)


if __name__ == "__main__":
    chosen = arguments.parse_args()
    if chosen.replay:
        rpc_fuzz.replay(chosen.replay)
        sys.exit(0)
    case_report.main()
