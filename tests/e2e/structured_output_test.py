"""Structured output through a real service with two workers. The model is random at temperature 1: whatever is valid is so by
the masks alone. Limits are kept while other streams go on."""

import json
import os
import random
import re
import signal
import threading
import time
import unittest

import grpc
import jsonschema

import case_report
from live_service import Service, Stream, children_of, golden_model, pb

REQUESTS = 220  # of each kind
AT_ONCE = 32


def prompt(rng):
    return pb.TokenIds(ids=[rng.randrange(7, 2048) for _ in range(rng.choice([1, 3, 17, 40]))])


def request(rng, constraint, max_tokens=400, **stop):
    return pb.GenerateRequest(tokens=prompt(rng), max_tokens=max_tokens, constraint=constraint, stop=pb.Stopping(**stop),
                              sampling=pb.Sampling(temperature=1, seed=rng.randrange(1 << 63)))


def preemptions(service):
    return sum(value for series, value in service.metrics().items() if series.startswith("bitshard_preemptions_total"))


def random_schema(rng, depth=0):
    """A schema of the supported words."""
    leaf = [
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"type": "integer"} if rng.random() < 0.3 else {"type": "integer", "minimum": rng.randrange(-50, 1),
                                                                "maximum": rng.randrange(1, 2000)},
        lambda: {"type": "number", "minimum": 0, "maximum": rng.randrange(1, 100)},
        lambda: {"type": "string", "minLength": rng.randrange(0, 3), "maxLength": rng.randrange(3, 20)},
        lambda: {"type": "string", "pattern": rng.choice(["^[a-z]{2,6}$", "^\\d{3}-\\d{4}$", "^(red|green|blue)!?$"])},
        lambda: {"type": "string", "format": rng.choice(["date", "time", "uuid", "ipv4"])},
        lambda: {"enum": rng.sample(["a", "b c", 1, 2.5, True, None, "\u00fc\"\\", [1], {"k": 1}], 3)},
        lambda: {"const": rng.choice(["fixed", 7, None])},
        lambda: {"type": ["string", "null"], "maxLength": 5},
    ]
    if depth >= 3 or rng.random() < 0.35 and depth > 0:
        return rng.choice(leaf)()
    kind = rng.random()
    if kind < 0.55:
        names = rng.sample(["id", "name", "x y", "\u00e9t\u00e9", "value", "a\"b", "list"], rng.randint(1, 4))
        return {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": [name for name in names if rng.random() < 0.7], "additionalProperties": False}
    if kind < 0.8:
        least = rng.randrange(0, 3)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": least, "maxItems": least + rng.randrange(1, 3)}
    return {"anyOf": [random_schema(rng, depth + 1), random_schema(rng, depth + 1)]}


class StructuredOutputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(golden_model("tiny-llama"), workers=2, coordinator_flags=["--kv-blocks=150"],
                              flags=["--threads=1"])

    @classmethod
    def tearDownClass(cls):
        cls.service.close()

    def _run(self, requests):
        streams = []
        for begin in range(0, len(requests), AT_ONCE):
            batch = [Stream(self.service.inference, r, timeout=300) for r in requests[begin:begin + AT_ONCE]]
            for stream in batch:
                stream.join()
            streams += batch
        for stream in streams:
            self.assertEqual(stream.code, grpc.StatusCode.OK, f"{stream.details}\n{stream.request}")
            self.assertEqual(stream.gaps, [])
        return streams

    def _stopped(self, streams, share):
        """Those that ended by themselves; at least `share` of all."""
        stopped = [s for s in streams if s.finished.reason == pb.FINISH_REASON_STOP]
        print(f"{len(stopped)} of {len(streams)} ended by themselves, {len({s.text for s in stopped})} different texts")
        self.assertGreaterEqual(len(stopped), share * len(streams))
        return stopped

    def test_json_fits_its_schema(self):
        rng = random.Random(1)
        schemas = [random_schema(rng) for _ in range(REQUESTS)]
        streams = self._run([request(rng, pb.Constraint(json_schema=json.dumps(s))) for s in schemas])
        for stream in self._stopped(streams, 0.9):
            schema = json.loads(stream.request.constraint.json_schema)
            try:
                value = json.loads(stream.text)
                jsonschema.Draft202012Validator(schema).validate(value)
            except (ValueError, jsonschema.ValidationError) as error:
                self.fail(f"{error}\nschema {schema}\ntext {stream.text!r}")

    def test_any_json_object(self):
        rng = random.Random(2)
        schema = {"type": "object", "additionalProperties": True}
        streams = self._run([request(rng, pb.Constraint(json_schema=json.dumps(schema)), max_tokens=600) for _ in range(40)])
        for stream in self._stopped(streams, 0.5):
            self.assertIsInstance(json.loads(stream.text), dict)

    def test_a_schema_that_refers_to_itself(self):
        rng = random.Random(3)
        schema = {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {
            "anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": False}},
            "$ref": "#/$defs/node"}
        streams = self._run([request(rng, pb.Constraint(json_schema=json.dumps(schema))) for _ in range(30)])
        for stream in self._stopped(streams, 0.5):
            jsonschema.Draft202012Validator(schema).validate(json.loads(stream.text))

    def test_text_matches_its_regex(self):
        rng = random.Random(4)
        patterns = ["[a-z]{3,12}", r"\d{4}-(0[1-9]|1[0-2])-\d{2}", "(foo|bar|baz)(, (foo|bar|baz)){0,5}", r"[^\d\s]{1,8}\d",
                    "(a|b(c|d)*)+e", r"-?(0|[1-9]\d{0,11})(\.\d{1,9})?", ".{2,10}", "Stra\u00dfe \\d{1,4}[a-f]?", r"\w{1,12}@\w{1,12}\.(de|com)",
                    "x{5}|y{1,3}z", "(?:[A-Z][a-z]{1,9} ?){1,4}"]
        streams = self._run([request(rng, pb.Constraint(regex=patterns[i % len(patterns)])) for i in range(REQUESTS)])
        for stream in self._stopped(streams, 0.95):
            pattern = stream.request.constraint.regex
            self.assertIsNotNone(re.fullmatch(pattern, stream.text, re.DOTALL), f"{pattern}: {stream.text!r}")

    def test_text_is_one_of_the_choices(self):
        rng = random.Random(5)
        words = ["yes", "no", "maybe", "yes, please", "\u65e5\u672c\u8a9e", "a \"quoted\" \\ one", "line\nbreak", "emoji \U0001F600", "no!"]
        streams = self._run([request(rng, pb.Constraint(choice=pb.ChoiceConstraint(options=rng.sample(words, rng.randint(1, 6)))))
                             for _ in range(REQUESTS)])
        for stream in self._stopped(streams, 1):
            self.assertIn(stream.text, list(stream.request.constraint.choice.options))

    def test_text_is_of_the_grammar(self):
        rng = random.Random(6)
        grammar = """
            root ::= sum
            sum ::= product (" + " product){0,3}   # four at most
            product ::= factor ("*" factor)?
            factor ::= [1-9] [0-9]{0,2} | "(" sum ")"
        """
        streams = self._run([request(rng, pb.Constraint(grammar=grammar)) for _ in range(REQUESTS)])
        for stream in self._stopped(streams, 0.7):
            self.assertRegex(stream.text, r"\A[0-9+*() ]+\Z")
            eval(stream.text, {"__builtins__": {}})  # nothing but digits, operators and parentheses: see above

    def test_unary_and_with_all_the_rest(self):
        rng = random.Random(7)
        for i in range(20):
            made = request(rng, pb.Constraint(regex="[a-f]{4}"), ignore_eos=i % 2 == 0)
            made.sampling.top_k, made.sampling.top_p, made.output.top_logprobs, made.output.token_ids = 5, 0.9, 3, True
            answer = self.service.inference.Complete(pb.CompleteRequest.FromString(made.SerializeToString()), timeout=60)
            choice = answer.choices[0]
            self.assertRegex(choice.text, r"\A[a-f]{4}\Z")
            self.assertEqual(choice.finished.reason, pb.FINISH_REASON_STOP)
            self.assertEqual(len(choice.logprobs), len(choice.token_ids))

    def test_preempted_ones_go_on(self):
        """Long answers in a pool that holds a few of them."""
        rng = random.Random(8)
        before = preemptions(self.service)
        streams = self._run([request(rng, pb.Constraint(regex="([a-z]{1,9} ){90}[A-Z]{5}"), max_tokens=700) for _ in range(64)])
        for stream in self._stopped(streams, 0.9):
            self.assertIsNotNone(re.fullmatch("([a-z]{1,9} ){90}[A-Z]{5}", stream.text), stream.text)
        self.assertGreater(preemptions(self.service), before, "the pool was meant to be too small")
        self.assertEqual(self.service.await_idle().blocks.used, 0)

    def test_wrong_constraints_name_their_field(self):
        rng = random.Random(9)
        for constraint, field in [
                (pb.Constraint(), "constraint"),
                (pb.Constraint(json_schema="{"), "constraint.json_schema"),
                (pb.Constraint(json_schema='{"not":{}}'), "constraint.json_schema"),
                (pb.Constraint(json_schema=json.dumps({"enum": ["x" * 70000]})), "constraint.json_schema"),
                (pb.Constraint(regex="(a"), "constraint.regex"),
                (pb.Constraint(regex="(" * 5000), "constraint.regex"),
                (pb.Constraint(grammar="root ::= nothing"), "constraint.grammar"),
                (pb.Constraint(choice=pb.ChoiceConstraint()), "constraint.choice.options"),
                (pb.Constraint(choice=pb.ChoiceConstraint(options=["a"] * 2000)), "constraint.choice.options")]:
            with self.subTest(field=field, constraint=str(constraint)[:60]):
                with self.assertRaises(grpc.RpcError) as raised:
                    list(self.service.inference.Generate(request(rng, constraint), timeout=60))
                self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, raised.exception.details())
                self.assertTrue(raised.exception.details().startswith(field), raised.exception.details())

    def test_explosive_ones_are_bounded_while_streams_go_on(self):
        rng = random.Random(10)
        rules = "root ::= r0\n" + "".join(f'r{i} ::= "x" r{(i * 7 + 1) % 900} | r{(i * 13 + 5) % 900} "y" | "z"\n' for i in range(900))
        nested = "a"
        for _ in range(30):
            nested = f"({nested}){{9,10}}"
        explosive = [pb.Constraint(grammar=rules), pb.Constraint(regex=nested), pb.Constraint(regex="a{1000000000}b"),
                     pb.Constraint(regex="(a{1,1000}){1,1000}"),
                     pb.Constraint(regex="(" + "|".join(f"(a|b)*{i}" for i in range(2500)) + ")*"),
                     pb.Constraint(json_schema=json.dumps({"enum": [i * 7919 for i in range(6000)]}))]
        stop, gaps, tokens = threading.Event(), [], [0]

        def others():
            while not stop.is_set():
                stream = Stream(self.service.inference, pb.GenerateRequest(
                    tokens=prompt(rng), max_tokens=100, stop=pb.Stopping(ignore_eos=True)), timeout=120)
                stream.join()
                self.assertEqual(stream.code, grpc.StatusCode.OK)
                times = [t for t, _ in stream.messages]
                gaps.extend(b - a for a, b in zip(times, times[1:]))
                tokens[0] += stream.token_count

        thread = threading.Thread(target=others)
        thread.start()
        try:
            for constraint in explosive:
                begin = time.monotonic()
                try:
                    answer = list(self.service.inference.Generate(request(rng, constraint, max_tokens=20), timeout=240))
                    outcome = f"served {sum(m.token_count for m in answer)} tokens"
                except grpc.RpcError as error:
                    outcome = f"{error.code().name}: {error.details()}"
                    self.assertIn(error.code(), (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), outcome)
                print(f"{time.monotonic() - begin:6.2f} s  {str(constraint)[:50]!r}: {outcome[:150]}")
        finally:
            stop.set()
            thread.join()
        print(f"meanwhile {tokens[0]} tokens of other streams, largest gap {max(gaps):.3f} s")
        self.assertGreater(tokens[0], 100)
        self.assertTrue(self.service.status().ready)

    def test_the_compiling_process_may_die(self):
        rng = random.Random(11)
        self._run([request(rng, pb.Constraint(regex="[ab]{3}"))])
        guards = children_of(self.service.coordinator_pid())
        self.assertEqual(list(guards), ["bitshard-guard"])
        for pid in guards["bitshard-guard"]:
            os.kill(pid, signal.SIGKILL)
        answered = 0
        for i in range(4):
            stream = Stream(self.service.inference, request(rng, pb.Constraint(regex=f"[cd]{{{i + 2}}}")), timeout=60)
            stream.join()
            answered += stream.code == grpc.StatusCode.OK
        self.assertGreaterEqual(answered, 2)
        self._run([request(rng, pb.Constraint(regex="[ef]{3}"))])


class RecoveryTest(unittest.TestCase):
    def test_a_worker_may_die_in_the_middle(self):
        """What streams have got by then is the beginning of their text; the next group answers as if nothing had been."""
        rng = random.Random(12)
        pattern = "([a-z]{1,9} ){40}[A-Z]{5}"
        made = [request(rng, pb.Constraint(regex=pattern), max_tokens=500) for _ in range(8)]

        def run(service, kill=False):
            streams = [Stream(service.inference, r, timeout=120) for r in made]
            while kill and min(s.token_count for s in streams) < 10:
                self.assertTrue(all(s.code is None for s in streams), "one ended before the kill")
                time.sleep(0.005)
            if kill:
                os.kill(service.worker_pids()[1], signal.SIGKILL)
            for stream in streams:
                stream.join()
                self.assertEqual(stream.gaps, [])
            return streams

        with Service(golden_model("tiny-llama"), workers=2, flags=["--threads=1"]) as service:
            whole = run(service)
            for stream in whole:
                self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
                self.assertIsNotNone(re.fullmatch(pattern, stream.text), stream.text)
            cut = run(service, kill=True)
            self.assertIn(grpc.StatusCode.UNAVAILABLE, [s.code for s in cut])
            for before, stream in zip(whole, cut):
                self.assertIn(stream.code, (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE), stream.details)
                self.assertTrue(before.text.startswith(stream.text), f"{stream.text!r} of {before.text!r}")
            service.await_ready()
            again = run(service)
            self.assertEqual([s.text for s in again], [s.text for s in whole])


if __name__ == "__main__":
    case_report.main()
