"""What the server measures as the time to the first token is what a client sees, but for the way to it and back."""

import time
import unittest

import grpc

import case_report
from live_service import Service, Stream, golden_model, pb
from metrics_page import Page

ROUNDS, REQUESTS, PROMPT = 6, 31, 500
NAME = "bitshard_time_to_first_token_seconds"


class FirstTokenTest(unittest.TestCase):
    def test_client_and_server_agree_on_the_time_to_the_first_token(self):
        """Requests one by one: medians within max(5 %, 2 ms).

        A machine that does other things holds up the way to the server and back, which its clock does not see: where even
        an empty call takes more than 1 ms, that way is allowed for. Of some rounds the first that fits counts.
        """
        with Service(golden_model("tiny-llama-q"), workers=2, coordinator_flags=["--token-budget=64"]) as service:
            for turn in range(ROUNDS):
                client, server, way = self._medians(service, turn)
                allowed = max(0.05 * server, 2e-3) + (2 * way if way > 1e-3 else 0)
                print(f"p50 of {REQUESTS} requests one by one: client {1e3 * client:.2f} ms, server {1e3 * server:.2f} ms; an "
                      f"empty call {1e3 * way:.2f} ms")
                if abs(client - server) <= allowed:
                    break
            self.assertLessEqual(abs(client - server), allowed)

    def _medians(self, service, turn):
        """Seconds: of the client's times, of the server's, of an empty call's."""
        client, server, empty = [], [], []
        port = service.ports["metrics_port"]
        before = Page(port)
        for i in range(REQUESTS):
            prompt = [7 + (turn * 101 + i * 31 + k * (1 + i)) % 500 for k in range(PROMPT)]
            begin = time.monotonic()
            service.inference.ListModels(pb.ListModelsRequest(), timeout=60)
            empty.append(time.monotonic() - begin)
            begin = time.monotonic()
            stream = Stream(service.inference, pb.GenerateRequest(
                tokens=pb.TokenIds(ids=prompt), max_tokens=4, stop=pb.Stopping(ignore_eos=True)))
            stream.join()
            self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
            client.append(next(at for at, count in stream.messages if count) - begin)
            # With nothing else under way, what the sum has grown by is this request's.
            after = Page(port)
            self.assertEqual(after.sum(NAME + "_count") - before.sum(NAME + "_count"), 1)
            server.append(after.sum(NAME + "_sum") - before.sum(NAME + "_sum"))
            self.assertLess(server[-1], client[-1] + 1e-3, "the server hands a token over before the client has it")
            before = after
        return (sorted(times)[len(times) // 2] for times in (client, server, empty))


if __name__ == "__main__":
    case_report.main()
