"""load_client against a server that speaks as llama-server does: what it sends, counts and reports; and its flags.

Its other face is used against the real service, in tests/e2e/many_streams_test.py.
"""

import http.server
import json
import pathlib
import threading
import time
import unittest

import case_report
import load_client

PROGRAM = pathlib.Path.cwd() / "tests/bench/load/load_client"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.changed:
            server.requests.append((self.path, request))
            server.live += 1
            server.most_live = max(server.most_live, server.live)
            server.changed.notify_all()
            server.changed.wait_for(lambda: server.most_live >= server.at_once, timeout=60)
        time.sleep(0.005)  # for more to come than may
        with server.changed:
            server.live -= 1
        if request["n_predict"] == 13:
            self.send_error(503, "busy")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(request["n_predict"]):
            self._event({"content": f"{sum(request['prompt'])}+{i} é", "stop": False})
        self._event({"content": "", "stop": True, "tokens_predicted": request["n_predict"]})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event):
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Server:
    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.changed, self.server.requests = threading.Condition(), []
        self.server.live = self.server.most_live = 0
        self.server.at_once = 1  # the first calls are held until so many are there
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self.server

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def run(server, **settings):
    return load_client.run(PROGRAM, address=f"127.0.0.1:{server.server_port}", face="llama-server", timeout=60, **settings)


class LlamaServerTest(unittest.TestCase):
    def test_a_closed_loop_keeps_so_many_calls_up(self):
        with Server() as server:
            server.at_once = 4
            calls = run(server, calls=20, callers=4, prompt_tokens=5, output_tokens=3, vocabulary=100)
            self.assertEqual(len(calls), 20)
            for call in calls:
                self.assertEqual((call.code, call.tokens, call.attempts), ("OK", 3, 1))
                self.assertGreater(call.ttft_s, 0)
                self.assertGreaterEqual(call.end_s, call.first_s)
            self.assertEqual(server.most_live, 4)
            path, request = server.requests[0]
            self.assertEqual(path, "/completion")
            self.assertEqual({key: request[key] for key in request if key != "prompt"},
                             {"n_predict": 3, "stream": True, "temperature": 0, "ignore_eos": True, "cache_prompt": False})
            prompts = {tuple(request["prompt"]) for _, request in server.requests}
            self.assertEqual(len(prompts), 20, "each call has a prompt of its own")
            self.assertTrue(all(len(prompt) == 5 and max(prompt) < 100 for prompt in prompts))

    def test_equal_prompts_have_equal_digests_and_others_do_not(self):
        with Server() as server:
            calls = run(server, calls=12, callers=3, prompts=4, prompt_tokens=6, output_tokens=2)
        for i, call in enumerate(calls):
            self.assertEqual(call.digest, calls[i % 4].digest)
        self.assertEqual(len({call.digest for call in calls}), 4)

    def test_an_open_loop_keeps_to_its_moments(self):
        with Server() as server:
            calls = run(server, calls=60, rate=400, seed=3, prompt_tokens=4, output_tokens=1)
            again = run(server, calls=60, rate=400, seed=3, prompt_tokens=4, output_tokens=1)
            other = run(server, calls=60, rate=400, seed=4, prompt_tokens=4, output_tokens=1)
        for call in calls:
            self.assertGreaterEqual(call.sent_s, call.due_s)
        gaps = [[b.due_s - a.due_s for a, b in zip(loop, loop[1:])] for loop in (calls, again, other)]
        for first, second in zip(gaps[0], gaps[1]):
            self.assertAlmostEqual(first, second, places=6)
        self.assertNotAlmostEqual(gaps[0][0], gaps[2][0], places=6)
        self.assertGreater(max(gaps[0]), 2 * sum(gaps[0]) / len(gaps[0]), "gaps of a Poisson process are uneven")

    def test_errors_are_reported(self):
        with Server() as server:
            calls = run(server, calls=3, callers=1, output_tokens=13)
        for call in calls:
            self.assertEqual((call.code, call.tokens, call.first_s), ("UNAVAILABLE", 0, None))
            self.assertIn("503", call.message)


class FlagsTest(unittest.TestCase):
    def test_flags_that_make_no_sense_are_refused(self):
        for settings, said in (({"face": "http"}, "--face"), ({"rate": 1, "callers": 1}, "one of them"),
                               ({"calls": 0}, "at least 1"), ({"calls": 1001}, "give more --channels"),
                               ({"blockers": 1, "callers": 1}, "--blockers")):
            with self.assertRaisesRegex(RuntimeError, said):
                load_client.run(PROGRAM, **settings)


class PercentileTest(unittest.TestCase):
    def test_is_a_value_that_was_seen(self):
        self.assertIsNone(load_client.percentile([], 0.5))
        self.assertEqual(load_client.percentile([3], 0.99), 3)
        self.assertEqual(load_client.percentile(range(1, 101), 0.99), 99)
        self.assertEqual(load_client.percentile(range(1, 101), 0.5), 50)
        self.assertEqual(load_client.percentile([5, 1, 3], 0.5), 3)
        self.assertEqual(load_client.percentile([5, 1, 3], 1), 5)


if __name__ == "__main__":
    case_report.main()
